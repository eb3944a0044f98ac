"""The user's sampler: iterated epoch after epoch, and brought back to where a state stands.

A sampler that has ``state_dict`` and ``load_state_dict`` is asked after each batch that it gives,
since more is drawn than the training loop has had. From any other, the epoch is drawn again and
what was delivered is passed over. For that, the state holds the generators that are attributes of
the sampler, as they were before the epoch, and those global ones (torch, numpy, `random`) that it
drew from, as they were before it first did. A checksum of the keys that were delivered tells
whether the sampler gives them again; where it doesn't, the rest can't be right either.

After that, the global generators stand again where the script has them. In the next epoch, they are
brought to where the undisturbed run has them, unless the script has done so or draws by itself.

Where the training loop leaves an epoch early, more was drawn than torch's loader would have drawn,
and how much more depends on time. So the sampler's generators are brought to where torch's loader
would have left them, before the next epoch is drawn.

Of an epoch that nobody has begun, the state holds how the global generators stand that epochs draw
from, and a checksum of the run's first batch: a sampler that a new process makes anew would begin
with the first epoch again.
"""

from __future__ import annotations

import threading
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from types import GeneratorType
from typing import Any

from swift_loader.batch.plain import from_plain, to_plain
from swift_loader.errors import StateError
from swift_loader.order.ahead import STATELESS, undisturbed
from swift_loader.order.drawn import Drawn, Replay, beginning_of, saved_sampler
from swift_loader.order.generators import (
    GLOBALS,
    GlobalGenerators,
    come_forward,
    draw_seed,
    generators_of,
    go_on_from,
    read_generators,
    set_generator,
    stands_at,
    state_of,
    states_to_come,
)
from swift_loader.order.keys import KeptKeys, encode_keys, told_by
from swift_loader.order.part import EpochPart, Taken
from swift_loader.order.sampler_epochs import SamplerEpochs
from swift_loader.order.state import integer, refuse_state

__all__ = ["Sampling"]

#: Batches of an epoch after which nobody looks for a first draw, as looking takes a while
_LATEST = 1000
_LATE = (
    "after the resume, the sampler draws from a global generator ({}) from which it had drawn "
    "nothing when the state was saved, so its keys are those of the undisturbed run only if the "
    "script has brought that generator back: {}"
)
_AS_IT_GOES = (
    "the sampler draws its keys from a global generator ({}) as it goes, and is asked ahead of "
    "the training loop, by an amount that depends on time. If the script draws from it too, in the "
    "loop, its numbers and the keys differ from run to run: give the sampler a generator of its own"
)
_END: Any = object()
_LOOKED_AT = 100  # batches
_WATCHED = 3  # batches after the first, for draws that the script may disturb


class Sampling:
    """A `torch.utils.data.Sampler`, a batch sampler, or any iterable of the kind.

    `batch_size` None: each key is a batch of its own. `asks_ahead`: how many batches beyond those
    that the training loop has had torch's loader would ask for; 0: this process makes the batches.
    `of_main`: see `encode_keys`.
    ``set_epoch`` is called where the sampler has it, or the one inside a batch sampler, and the
    script has not called it.
    """

    def __init__(
        self,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        batch_size: int | None,
        drop_last: bool,
        asks_ahead: int = 1,
        of_main: Container[str] | None = None,
    ) -> None:
        source: Any = batch_sampler if batch_sampler is not None else sampler
        self._source = source
        self._gives_batches = batch_sampler is not None
        self._batch_size = batch_size or 1
        self._drop_last = drop_last
        self._encode: Callable[[Any], bytes] = (
            partial(encode_keys, of_main=of_main) if asks_ahead else KeptKeys.of
        )
        self._asks_ahead = asks_ahead
        both = [source, getattr(source, "sampler", None)]
        self._epochs = SamplerEpochs(both)
        self._stateful = next(
            (o for o in both if hasattr(o, "state_dict") and hasattr(o, "load_state_dict")), None
        )
        self._generators = {} if self._stateful is not None else generators_of(source)
        # Torch's own draw before their first batch. Looking takes a tenth of a millisecond a batch.
        known = all(one is None or _is_known(one) for one in both)
        self._may_draw = self._stateful is None and not known
        self._drawn: Drawn | None = None
        self._begun: list[Drawn] = []  # by the loop: this epoch, and those before it not left yet
        self._leaving = threading.Lock()  # a state may be asked for while the first batch is drawn
        self._first: int | None = None  # checksum of the first batch of the run
        self._repeats = False  # the last epoch began as the first one did
        self._drawn_from: set[str] = set()  # global generators
        self._watches = asks_ahead > 0
        self._after: dict[str, Any] = {}  # how these stood at the end of an epoch that was replayed

    def __len__(self) -> int:
        """Batches of an epoch, as the sampler says. Raises `TypeError` where it can't tell."""
        try:
            length = len(self._source)
        except NotImplementedError as error:
            raise TypeError(str(error)) from error
        if self._gives_batches:
            return length
        return length // self._batch_size if self._drop_last else -(-length // self._batch_size)

    def begin(self, taken: Taken, replay: Replay | None) -> None:
        """The training loop begins the part of `taken`; `replay`: of a part after a resume."""
        self._drawn = Drawn(taken, replay)
        self._begun.append(self._drawn)

    def draw(self, part: EpochPart, replay: Replay | None) -> Iterator[tuple[int, bytes]]:
        """Batches of the part, by number; of those that were delivered, any may be left out."""
        drawn = next((one for one in self._begun if one.taken.part is part), None)
        if drawn is None:
            drawn = self._drawn = Drawn(Taken(part))
        k, checksum = 0, 0
        at_beginning = replay is not None and part.first == 0
        self._epochs.heed()
        if at_beginning:
            self._load(replay)
        with self._leaving:
            self._leave_as_torch(drawn)
            if replay is not None:
                self._set_generators(replay)
            drawn.generators = self._generators_now()
        self._epochs.tell(part.epoch)
        if replay is not None and not at_beginning:
            self._load(replay)
            k = part.first if self._stateful is not None else 0
        after, self._after = self._after, {}
        if "torch" in after:
            come_forward(after.pop("torch"))
        draw_seed()
        if replay is not None:
            go_on_from(replay.carried)
        with GlobalGenerators(replay.globals if replay is not None else {}) as used:
            batches = self._batches()
            drawn.after[k] = checksum, self._state_now()
            batch = next(batches, _END)
            if self._stateful is None:
                drawn.length = self._length()
                drawn.first = self._first if replay is None else replay.first
                self._repeats = drawn.first is not None and drawn.first == self._sum_of(batch)
                if replay is not None:
                    batches, batch = self._checked(replay, at_beginning, used, batches, batch)
                    stood = used.now()
                elif after and self._repeats:  # the script has seeded them anew
                    used.again(after)
                    batches = self._batches()
                    batch = next(batches, _END)
                    self._repeats = drawn.first == self._sum_of(batch)
                self._first = drawn.first if drawn.first is not None else self._sum_of(batch)
            while batch is not _END and k < part.first:
                checksum = zlib.crc32(told_by(self._encode(batch)), checksum)
                k += 1
                batch = next(batches, _END)
            if self._stateful is None:
                drawn.after[k] = checksum, None
            if replay is not None:
                if k != part.first or checksum != replay.checksum:
                    raise _other(
                        f"did not give the same {part.first} batches again that it gave before"
                    )
                drawn_from = used.drawn_from
                yet = replay.globals.keys() - drawn_from  # the loop was not as far as the sampler
                if self._stateful is None and batch is not _END and (drawn_from or yet):
                    rest = chain((batch,), batches)
                    seen = None if yet else stood
                    batches = undisturbed(rest, used, seen, k, drawn.length or 0)
                    batch = next(batches, _END)
        self._epochs.look()
        drawn.globals = used.before
        if replay is not None and self._stateful is None and not self._repeats:
            self._after = used.after
        self._drawn_from |= used.before.keys()
        now, before = drawn.length, replay.length if replay is not None else None
        if now != before and now is not None and before is not None:
            raise _other(f"has a length of {now} batches in this epoch, and had {before}")
        drawn.batches = batches
        while batch is not _END:
            details = self._encode(batch)
            if self._stateful is None:
                checksum = zlib.crc32(told_by(details), checksum)
            k += 1
            drawn.after[k] = checksum, self._state_now()
            self._note(drawn, k)
            for old in [old for old in islice(drawn.after, 2) if old < drawn.taken.first]:
                del drawn.after[old]
            yield k - 1, details
            if self._may_draw and k < _LATEST:
                batch = self._next(batches, drawn, k, replay is not None)
            else:
                batch = next(batches, _END)
        self._note(drawn, k + 1)
        self._epochs.look()
        if self._stateful is None and drawn.length is None:
            drawn.length = k
            if replay is not None and replay.length not in (None, k):
                raise _other(f"gave {k} batches in this epoch, and {replay.length} before")
        if part.expected is not None and part.expected != k:
            warnings.warn(
                f"the sampler has a length of {part.expected} batches and gave {k}: all of them "
                "were delivered, but what counts by its length is wrong",
                RuntimeWarning,
                stacklevel=2,
            )

    def _note(self, drawn: Drawn, nb_asked: int) -> None:
        """Keep how the sampler's generators stand, now that it was asked so often in this epoch."""
        if self._generators and self._asks_ahead:
            states = {name: state_of(one) for name, one in self._generators.items()}
            drawn.left[nb_asked] = states
            for old in [old for old in islice(drawn.left, 2) if old < drawn.taken.first]:
                del drawn.left[old]

    def _leave_as_torch(self, now: Drawn) -> None:
        """Bring the generators to where torch's loader leaves them after the epochs before `now`.

        In each epoch, it asks `asks_ahead` batches ahead of the loop, and no more.
        """
        while now in self._begun and self._begun[0] is not now:
            before = self._begun.pop(0)
            if before.left:
                self._ask_or_set_back(before)
            elif not before.after and self._generators:  # the loop has begun it, nothing was drawn
                if before.replay is not None:
                    self._set_generators(before.replay)
                deque(islice(self._batches(), before.taken.first + self._asks_ahead), 0)

    def _set_generators(self, replay: Replay) -> None:
        for name, state in replay.generators.items():
            set_generator(self._generators[name], state)

    def _ask_or_set_back(self, before: Drawn) -> None:
        """Do so after one epoch, unless the script has seeded one of the generators since."""
        nb_asked = next(reversed(before.left))
        wanted = before.taken.first + len(before.taken.beyond) + self._asks_ahead
        stands = before.left[nb_asked]
        if not all(stands_at(self._generators[name], state) for name, state in stands.items()):
            return
        if wanted in before.left:
            for name, state in before.left[wanted].items():
                set_generator(self._generators[name], state)
        else:  # at its end, this asks for nothing
            deque(islice(before.batches, max(0, wanted - nb_asked)), 0)

    def _next(self, batches: Iterator[Any], drawn: Drawn, k: int, is_resumed: bool) -> Any:
        """The next batch. Where it is the first to draw from a global generator, that is noted."""
        watches = self._watches and k <= _WATCHED
        names = GLOBALS.keys() - (set() if watches else drawn.globals.keys())
        stood = {name: state_of(GLOBALS[name]) for name in names}
        batch = next(batches, _END)
        moved = {name: it for name, it in stood.items() if not stands_at(GLOBALS[name], it)}
        if moved and watches:
            self._watches = False  # once
            text = _AS_IT_GOES.format(" and ".join(sorted(moved)))
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        late = {name: it for name, it in moved.items() if name not in drawn.globals}
        if late:
            plain = {name: to_plain(state, name) for name, state in late.items()}
            drawn.globals = {**drawn.globals, **plain}
            self._drawn_from |= late.keys()
            if is_resumed:
                text = _LATE.format(" and ".join(sorted(late)), STATELESS)
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return batch

    def checksum(self, k: int) -> int | None:
        """Of the keys of the first `k + 1` batches; None where they have not been drawn.

        That of a sampler with a state of its own is 0.
        """
        drawn = self._drawn
        found = drawn.after.get(k + 1) if drawn is not None else None
        return None if found is None else found[0]

    def capture(self, taken: Taken, replay: Replay | None) -> dict[str, Any]:
        """What the state of a consumer holds of the sampler; `replay`: that of the part."""
        drawn = self._drawn
        if drawn is None or drawn.taken is not taken or not drawn.after:  # of what comes next
            if replay is not None:
                return dict(replay.saved)
            with self._leaving:
                if drawn is not None:
                    self._leave_as_torch(drawn)
                begun = drawn is not None and drawn.taken is taken and drawn.generators
                generators = begun or self._generators_now()
            drawn_from = () if self._repeats or self._stateful is not None else self._drawn_from
            beginning = beginning_of(self._first, carried=states_to_come(drawn_from))
            return saved_sampler(self._state_now(), generators, {}, 0, beginning)
        checksum, state = drawn.after[taken.first]
        batch = None
        if taken.first == 0 and self._stateful is None and 1 in drawn.after:
            batch = drawn.after[1][0]
        beginning = beginning_of(drawn.first, batch, drawn.length)
        return saved_sampler(state, drawn.generators, drawn.globals, checksum, beginning)

    def read(self, saved: Any) -> Replay:
        """Raises `StateError` for what `capture` can't have returned."""
        names = ("state", "generators", "globals", "checksum", "beginning")
        if not isinstance(saved, Mapping) or saved.keys() != set(names):
            raise refuse_state("sampler", saved, f"does not have the fields {list(names)}")
        beginning = saved["beginning"]
        if not isinstance(beginning, Mapping) or beginning.keys() != beginning_of(None).keys():
            raise refuse_state("sampler.beginning", beginning, "is no beginning of an epoch")
        first, batch, length = (
            None if beginning[name] is None else integer(beginning, name, 0, 2**63 - 1)
            for name in ("first", "batch", "length")
        )
        checksum = integer(saved, "checksum", 0, 2**32 - 1)
        state = from_plain(saved["state"], "sampler.state")
        if (state is None) != (self._stateful is None):
            raise StateError(
                "the state is of a sampler with state_dict() or this one has it, but not both; "
                "build the loader with the same sampler"
            )
        generators = read_generators(saved, "generators", self._generators)
        if generators.keys() != self._generators.keys():
            raise refuse_state("generators", list(generators), f"are not {list(self._generators)}")
        known = read_generators(saved, "globals", GLOBALS)
        carried = read_generators(beginning, "carried", GLOBALS)
        return Replay(saved, state, generators, known, checksum, first, batch, length, carried)

    def _checked(
        self,
        replay: Replay,
        at_beginning: bool,
        used: GlobalGenerators,
        batches: Iterator[Any],
        batch: Any,
    ) -> tuple[Iterator[Any], Any]:
        """The epoch whose first batch is drawn, if it is the one of the state.

        Where it begins as the run did, all epochs do, or else the sampler, or a generator that it
        draws from, is not where it was. A second look tells which.
        """
        first = self._sum_of(batch)
        if replay.batch is not None and first != replay.batch:
            raise _other("did not give the same first batch again that it gave before")
        if not at_beginning or first is None or first != replay.first:
            return batches, batch
        once = [batch, *islice(batches, _LOOKED_AT - 1)]
        self._set_generators(replay)
        carried = {name: state for name, state in replay.carried.items() if name != "torch"}
        used.again(carried)
        batches = self._batches()
        again = list(islice(batches, _LOOKED_AT))
        if not carried and list(map(self._sum_of, once)) != list(map(self._sum_of, again)):
            raise _other("began with its first epoch again, and gives other keys in each epoch")
        if self._generators:  # which stand as far ahead as was looked
            self._set_generators(replay)
            used.again(carried)
            again, batches = [], self._batches()
        rest = chain(again, batches)
        return rest, next(rest, _END)

    def _sum_of(self, batch: Any) -> int | None:
        return None if batch is _END else zlib.crc32(told_by(self._encode(batch)))

    def _length(self) -> int | None:
        try:
            return len(self)
        except Exception:  # noqa: BLE001 - the user's __len__
            return None

    def _load(self, replay: Replay | None) -> None:
        if self._stateful is not None and replay is not None:
            self._stateful.load_state_dict(replay.state)

    def _state_now(self) -> Any:
        if self._stateful is None:
            return None
        return to_plain(self._stateful.state_dict(), "the sampler's state_dict()")

    def _generators_now(self) -> dict[str, Any]:
        return {name: to_plain(state_of(one), name) for name, one in self._generators.items()}

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
        if keys is self._source:  # `islice` would begin it anew for each batch
            keys = (key for key in self._source)
        while batch := list(islice(keys, self._batch_size)):
            if len(batch) == self._batch_size or not self._drop_last:
                yield batch


def _is_known(sampler: Any) -> bool:
    kind = type(sampler)
    return kind in (list, tuple, range) or kind.__module__.startswith("torch.utils.data.")


def _other(what: str) -> StateError:
    return StateError(
        f"after the resume, the sampler {what}, so the rest can't be told: {STATELESS}"
    )
