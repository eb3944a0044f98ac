"""Generators of random numbers that a sampler draws from: where they stand, and back there."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MemberDescriptorType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from swift_loader.batch.plain import from_plain, to_plain
from swift_loader.order.state import refuse_state

__all__ = [
    *("GLOBALS", "GlobalGenerators", "generators_of", "go_on_from", "read_generators"),
    *("come_forward", "draw_seed", "set_generator", "stands_at", "state_of", "states_to_come"),
]

_DEEPEST = 3  # attributes of attributes of a sampler
_LARGEST = 64  # a longer list holds keys
_NEAR = 2000  # numbers drawn


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
GLOBALS: dict[str, Any] = {
    "torch": torch.default_generator,
    "numpy": np.random.mtrand._rand,
    "python": random._inst,
}


def _accessors(generator: Any) -> _Accessors | None:
    return next((how for kind, how in _KINDS.items() if isinstance(generator, kind)), None)


def state_of(generator: Any) -> Any:
    how = _accessors(generator)
    assert how is not None
    return how[0](generator)


def set_generator(generator: Any, state: Any) -> None:
    how = _accessors(generator)
    assert how is not None
    how[1](generator, state)


def stands_at(generator: Any, state: Any) -> bool:
    """Whether nobody has drawn from a global generator since `state_of` gave this."""
    return _are_equal(state_of(generator), state)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple) and len(one) < _LARGEST:  # numpy's, which holds an array
        return all(map(_are_equal, one, other))
    return bool(one == other)


def generators_of(sampler: Any) -> dict[str, Any]:
    """The generators that a sampler holds, by name: of its own, and of samplers inside it."""
    found: dict[str, Any] = {}
    _gather(sampler, "", _DEEPEST, found)
    return found


def _gather(holder: Any, prefix: str, depth: int, found: dict[str, Any]) -> None:
    for name, value in _parts_of(holder, prefix):
        if _accessors(value) is not None:
            if not any(value is other for other in found.values()):
                found[name] = value
        elif depth and (isinstance(value, (list, tuple, dict)) or _is_sampler(value)):
            _gather(value, name, depth - 1, found)


def _parts_of(holder: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, (list, tuple, dict)):
        if len(holder) <= _LARGEST:
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, value in items:
                if isinstance(key, (str, int)):  # others may have another name in each process
                    yield f"{prefix}[{key!r}]", value
        return
    dot = f"{prefix}." if prefix else ""
    for kind in type(holder).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType) and hasattr(holder, name):
                yield dot + name, getattr(holder, name)
    for name, value in getattr(holder, "__dict__", {}).items():
        yield dot + name, value


def _is_sampler(value: Any) -> bool:
    """A data set may hold generators, too, that are none of a sampler's."""
    kind = type(value)
    by_index = isinstance(value, Dataset) or hasattr(kind, "__getitem__")
    return isinstance(value, Sampler) or (hasattr(kind, "__iter__") and not by_index)


def read_generators(saved: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> Any:
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


class GlobalGenerators:
    """While it is entered, the global generators stand where `replayed` says.

    `before`: of those that were drawn from meanwhile, how they stood, as plain data; `after`: how
    they stand at the end. What was replayed is put back, so that the script's own random numbers
    are not drawn twice.
    """

    def __init__(self, replayed: Mapping[str, Any]) -> None:
        self._replayed = replayed
        self._outside = {name: state_of(GLOBALS[name]) for name in replayed}
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}

    def __enter__(self) -> GlobalGenerators:
        for name, state in self._replayed.items():
            set_generator(GLOBALS[name], state)
        self._at_first = self.now()
        return self

    def now(self) -> dict[str, Any]:
        """How they stand, as plain data."""
        return {name: to_plain(state_of(one), name) for name, one in GLOBALS.items()}

    @property
    def drawn_from(self) -> set[str]:
        """The names of those that are not where they were on entering."""
        now = self.now()
        return {name for name, state in self._at_first.items() if now[name] != state}

    def again(self, states: Mapping[str, Any]) -> None:
        """Back to where they stood on entering, and those that `states` names to these."""
        for name, plain in self._at_first.items():
            set_generator(GLOBALS[name], states.get(name, from_plain(plain, name)))
            self._at_first[name] = to_plain(state_of(GLOBALS[name]), name)

    def __exit__(self, *exception: object) -> None:
        now = self.now()
        for name, state in self._at_first.items():
            if now[name] != state:
                self.before[name] = state
                self.after[name] = state_of(GLOBALS[name])
        for name, state in self._outside.items():
            set_generator(GLOBALS[name], state)


# ---- between two epochs


def states_to_come(names: Collection[str]) -> dict[str, Any]:
    """How these global generators will stand when the next epoch is drawn, if nobody else draws."""
    states = {name: state_of(GLOBALS[name]) for name in names}
    if "torch" in states:
        states["torch"] = _seeding_drawn(states["torch"])
    return {name: to_plain(state, name) for name, state in states.items()}


def go_on_from(states: Mapping[str, Any]) -> None:
    """Bring torch's generator to where `states` has it, if the script was no more than seeded anew.

    That is so where it stands at an earlier place of the same seed's numbers. One that the script
    has seeded otherwise (for each epoch, say), or has brought back itself, stays as it is.
    """
    if "torch" not in states:
        return
    saved, now = torch.Generator(), torch.Generator()
    saved.set_state(states["torch"])
    now.set_state(torch.default_generator.get_state())
    if saved.initial_seed() == now.initial_seed() and not _comes_to(saved, now.get_state()):
        torch.default_generator.set_state(states["torch"])


def come_forward(state: Any) -> None:
    """Bring torch's generator to `state`, if it stands shortly before that.

    So it does where the script has seeded it anew; one that the script has brought back itself
    stands there, or behind it.
    """
    now = torch.Generator()
    now.set_state(torch.default_generator.get_state())
    if _comes_to(now, state):
        torch.default_generator.set_state(state)


def _comes_to(generator: torch.Generator, state: torch.Tensor) -> bool:
    """Whether a generator stands there, or will soon."""
    for _ in range(_NEAR):
        if torch.equal(generator.get_state(), state):
            return True
        torch.empty((), dtype=torch.int32, device="cpu").random_(generator=generator)
    return False


def _seeding_drawn(state: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.set_state(state)
    draw_seed(generator)
    return generator.get_state()


def draw_seed(generator: torch.Generator | None = None) -> None:
    """As torch's DataLoader does it for its workers' seed, before a sampler is asked."""
    device = None if generator is None else generator.device
    torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
