"""The user's sampler: iterated epoch after epoch, and brought back to where a state stands.

A sampler that has ``state_dict`` and ``load_state_dict`` is asked after each batch that it gives,
since more is drawn than the training loop has had. From any other, the epoch is drawn again and
what was delivered is passed over. For that, the state holds the generators that are attributes of
the sampler, as they were before the epoch, and those global ones (torch, numpy, `random`) that
its first batch drew from, as they were before that. A checksum of the keys that were delivered
tells whether the sampler gives them again; where it doesn't, the rest can't be right either.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import GeneratorType
from typing import Any

import numpy as np
import torch

from swift_loader.batch.plain import from_plain, to_plain
from swift_loader.errors import StateError
from swift_loader.order.keys import KeptKeys, encode_keys
from swift_loader.order.part import EpochPart, Taken
from swift_loader.order.state import integer, refuse_state

__all__ = ["Replay", "Sampling"]

_END: Any = object()
_STATELESS = (
    "give the sampler a generator or a seed of its own, or state_dict() and load_state_dict(); or "
    "start the epoch afresh without the state"
)


@dataclass(frozen=True)
class Replay:
    """What a state says of the sampler, read and checked."""

    saved: Mapping[str, Any]
    state: Any  # of the sampler's own `state_dict`
    generators: Mapping[str, Any]
    globals: Mapping[str, Any]
    checksum: int


@dataclass
class _Drawn:
    """What was drawn of the epoch that the training loop is in."""

    taken: Taken
    generators: Mapping[str, Any] = field(default_factory=dict)  # before it, plain
    globals: Mapping[str, Any] = field(default_factory=dict)  # before it, plain; those drawn from
    after: dict[int, tuple[int, Any]] = field(default_factory=dict)  # k batches: checksum, state


class Sampling:
    """A `torch.utils.data.Sampler`, a batch sampler, or any iterable of the kind.

    `batch_size` None: each key is a batch of its own. `stays`: this process makes the batches.
    ``set_epoch`` is called where the sampler has it, or the one inside a batch sampler.
    """

    def __init__(
        self,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        batch_size: int | None,
        drop_last: bool,
        stays: bool = False,
    ) -> None:
        source: Any = batch_sampler if batch_sampler is not None else sampler
        self._source = source
        self._gives_batches = batch_sampler is not None
        self._batch_size = batch_size or 1
        self._drop_last = drop_last
        self._encode: Callable[[Any], bytes] = KeptKeys.of if stays else encode_keys
        both = [source, getattr(source, "sampler", None)]
        self._epoch_setters = [one.set_epoch for one in both if hasattr(one, "set_epoch")]
        self._stateful = next(
            (o for o in both if hasattr(o, "state_dict") and hasattr(o, "load_state_dict")), None
        )
        self._generators = {} if self._stateful is not None else _generators_of(both)
        self._drawn: _Drawn | None = None

    def __len__(self) -> int:
        """Batches of an epoch, as the sampler says. Raises `TypeError` where it can't tell."""
        try:
            length = len(self._source)
        except NotImplementedError as error:
            raise TypeError(str(error)) from error
        if self._gives_batches:
            return length
        return length // self._batch_size if self._drop_last else -(-length // self._batch_size)

    def begin(self, taken: Taken) -> None:
        """The training loop begins the part of `taken`."""
        self._drawn = _Drawn(taken)

    def draw(self, part: EpochPart, replay: Replay | None) -> Iterator[tuple[int, bytes]]:
        """Batches of the part, by number; of those that were delivered, any may be left out."""
        drawn = self._drawn
        if drawn is None or drawn.taken.part is not part:
            drawn = self._drawn = _Drawn(Taken(part))
        k, checksum = 0, 0
        at_beginning = replay is not None and part.first == 0
        if replay is not None:
            for name, state in replay.generators.items():
                _set(self._generators[name], state)
        if at_beginning:
            self._load(replay)
        drawn.generators = self._generators_now()
        for set_epoch in self._epoch_setters:
            set_epoch(part.epoch)
        if replay is not None and not at_beginning:
            self._load(replay)
            k = part.first if self._stateful is not None else 0
        torch.empty((), dtype=torch.int64).random_()  # as torch's DataLoader, for its workers' seed
        with _GlobalGenerators(replay.globals if replay is not None else {}) as used:
            batches = self._batches()
            drawn.after[k] = checksum, self._state_now()
            batch = next(batches, _END)
            while batch is not _END and k < part.first:
                checksum = zlib.crc32(self._encode(batch), checksum)
                k += 1
                batch = next(batches, _END)
            if self._stateful is None:
                drawn.after[k] = checksum, None
        drawn.globals = used.before
        if replay is not None and (k != part.first or checksum != replay.checksum):
            raise StateError(
                f"the sampler did not give the same {part.first} batches again that it gave before "
                f"the state was taken, so its rest can't be told: {_STATELESS}"
            )
        while batch is not _END:
            details = self._encode(batch)
            if self._stateful is None:
                checksum = zlib.crc32(details, checksum)
            k += 1
            drawn.after[k] = checksum, self._state_now()
            for old in [old for old in islice(drawn.after, 2) if old < drawn.taken.first]:
                del drawn.after[old]
            yield k - 1, details
            batch = next(batches, _END)
        if part.expected is not None and part.expected != k:
            warnings.warn(
                f"the sampler has a length of {part.expected} batches and gave {k}: all of them "
                "were delivered, but what counts by its length is wrong",
                RuntimeWarning,
                stacklevel=2,
            )

    def capture(self, taken: Taken, replay: Replay | None) -> dict[str, Any]:
        """What the state of a consumer holds of the sampler; `replay`: that of the part."""
        drawn = self._drawn
        if drawn is None or drawn.taken is not taken or not drawn.after:  # of what comes next
            if replay is not None:
                return dict(replay.saved)
            return _saved(self._state_now(), self._generators_now(), {}, 0)
        checksum, state = drawn.after[taken.first]
        return _saved(state, drawn.generators, drawn.globals, checksum)

    def read(self, saved: Any) -> Replay:
        """Raises `StateError` for what `capture` can't have returned."""
        names = ("state", "generators", "globals", "checksum")
        if not isinstance(saved, Mapping) or saved.keys() != set(names):
            raise refuse_state("sampler", saved, f"does not have the fields {list(names)}")
        checksum = integer(saved, "checksum", 0, 2**32 - 1)
        state = from_plain(saved["state"], "sampler.state")
        if (state is None) != (self._stateful is None):
            raise StateError(
                "the state is of a sampler with state_dict() or this one has it, but not both; "
                "build the loader with the same sampler"
            )
        generators = _read_generators(saved, "generators", self._generators)
        if generators.keys() != self._generators.keys():
            raise refuse_state("generators", list(generators), f"are not {list(self._generators)}")
        known = _read_generators(saved, "globals", _GLOBALS)
        return Replay(saved, state, generators, known, checksum)

    def _load(self, replay: Replay | None) -> None:
        if self._stateful is not None and replay is not None:
            self._stateful.load_state_dict(replay.state)

    def _state_now(self) -> Any:
        if self._stateful is None:
            return None
        return to_plain(self._stateful.state_dict(), "the sampler's state_dict()")

    def _generators_now(self) -> dict[str, Any]:
        return {name: to_plain(_get(one), name) for name, one in self._generators.items()}

    def _batches(self) -> Iterator[Any]:
        if self._gives_batches:
            for batch in self._source:
                if not isinstance(batch, Iterable):
                    raise TypeError(
                        f"the batch_sampler gave {batch!r:.60}, and each batch must be a list of "
                        "indices; what gives single indices goes as sampler=, with a batch_size"
                    )
                yield list(batch) if isinstance(batch, GeneratorType) else batch  # it can't travel
            return
        keys = iter(self._source)
        while batch := list(islice(keys, self._batch_size)):
            if len(batch) == self._batch_size or not self._drop_last:
                yield batch


def _saved(state: Any, generators: Any, known: Any, checksum: int) -> dict[str, Any]:
    return {
        "state": state,
        "generators": dict(generators),
        "globals": dict(known),
        "checksum": checksum,
    }


# ---- generators of random numbers

_Accessors = tuple[Callable[[Any], Any], Callable[[Any, Any], None], Callable[[Any], Any]]


def _set_numpy(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


# By type: how the state is read, how it is set, and an equal generator to try a state on.
_KINDS: dict[type, _Accessors] = {
    torch.Generator: (lambda g: g.get_state(), lambda g, s: g.set_state(s), lambda g: type(g)()),
    np.random.Generator: (
        lambda g: g.bit_generator.state,
        _set_numpy,
        lambda g: np.random.Generator(type(g.bit_generator)()),
    ),
    np.random.RandomState: (
        lambda g: g.get_state(),
        lambda g, s: g.set_state(s),
        lambda g: np.random.RandomState(),
    ),
    random.Random: (lambda g: g.getstate(), lambda g, s: g.setstate(s), lambda g: random.Random()),
}
_GLOBALS: dict[str, Any] = {
    "torch": torch.default_generator,
    "numpy": np.random.mtrand._rand,
    "python": random._inst,
}


def _accessors(generator: Any) -> _Accessors | None:
    return next((how for kind, how in _KINDS.items() if isinstance(generator, kind)), None)


def _get(generator: Any) -> Any:
    how = _accessors(generator)
    assert how is not None
    return how[0](generator)


def _set(generator: Any, state: Any) -> None:
    how = _accessors(generator)
    assert how is not None
    how[1](generator, state)


def _generators_of(samplers: list[Any]) -> dict[str, Any]:
    """The generators that are attributes of a sampler or of the one inside it, by name."""
    found = {}
    for prefix, one in zip(("", "sampler."), samplers, strict=True):
        for name, value in getattr(one, "__dict__", {}).items():
            if _accessors(value) is not None:
                found[prefix + name] = value
    return found


def _read_generators(saved: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> Any:
    """The states of generators, each tried on one of its kind. Raises `StateError`."""
    plain = saved[name]
    if not isinstance(plain, Mapping) or not plain.keys() <= known.keys():
        raise refuse_state(name, plain, f"are not among {list(known)}")
    states = {}
    for one, value in plain.items():
        states[one] = state = from_plain(value, f"{name}.{one}")
        how = _accessors(known[one])
        assert how is not None
        try:
            how[1](how[2](known[one]), state)
        except Exception as error:
            raise refuse_state(f"{name}.{one}", value, f"is no state of it ({error})") from error
    return states


class _GlobalGenerators:
    """While it is entered, the global generators stand where `replayed` says.

    `before`: of those that were drawn from meanwhile, how they stood, as plain data. What was
    replayed is put back, so that the script's own random numbers are not drawn twice.
    """

    def __init__(self, replayed: Mapping[str, Any]) -> None:
        self._replayed = replayed
        self._outside = {name: _get(_GLOBALS[name]) for name in replayed}
        self.before: dict[str, Any] = {}

    def __enter__(self) -> _GlobalGenerators:
        for name, state in self._replayed.items():
            _set(_GLOBALS[name], state)
        self._at_first = {name: to_plain(_get(one), name) for name, one in _GLOBALS.items()}
        return self

    def __exit__(self, *exception: object) -> None:
        for name, state in self._at_first.items():
            if to_plain(_get(_GLOBALS[name]), name) != state:
                self.before[name] = state
        for name, state in self._outside.items():
            _set(_GLOBALS[name], state)
