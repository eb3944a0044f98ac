"""States of consumers: how they are written, and the one place that reads and checks them.

A state is a small JSON-able dict:

```python
{"version": 2, "order": "plan", "plan": {...}, "epoch": 3, "consumer": 0, "delivered": 17,
 "ahead": [19]}
```

It counts the batches of `epoch` that the training loop has had: all before ``delivered``, and those
of ``ahead``, which came out of order. Where all are delivered, the epoch is over but for its
`StopIteration`. ``plan`` is every field of the plan. The orders of samplers and streams add fields
of their own, which they check.

`read` accepts nothing that `written` can't have returned. It runs no code of a state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from swift_loader.errors import ConfigError, StateError
from swift_loader.order.mixture_checks import unwritten
from swift_loader.order.mixture_state import read_mixture, shown
from swift_loader.order.part import MAX_EPOCH
from swift_loader.plan import FIELDS, JSON, Plan

__all__ = [
    *("Kind", "Saved", "State", "check_same_run", "integer", "own", "read", "refuse_state"),
    *("saved_consumer", "saved_seed"),
]

State: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Kind = Literal["plan", "sampler", "stream", "budget", "shards"]

_VERSION = 2
_KINDS = {
    "plan": "a loader with an order of its own",
    "sampler": "a loader with a sampler of yours",
    "stream": "a loader of a stream",
    "budget": "a loader with batch_tokens",
    "shards": "a loader of a stream that tells its shards",
}
_COMMON = ("version", "order", "plan", "epoch", "consumer", "delivered", "ahead")
_GENUINE = "give what state_dict() returned"


@dataclass(frozen=True)
class Saved:
    """What one consumer has had of an epoch. `more`: the fields that its kind of order adds."""

    kind: Kind
    plan: Plan
    epoch: int
    consumer: int
    delivered: int
    ahead: tuple[int, ...] = ()
    more: Mapping[str, JSON] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """The state, for JSON."""
        return {
            "version": _VERSION,
            "order": self.kind,
            "plan": self.plan.fingerprint(),
            "epoch": self.epoch,
            "consumer": self.consumer,
            "delivered": self.delivered,
            "ahead": list(self.ahead),
            **self.more,
        }


def read(state: object, kind: Kind, more: Collection[str] = ()) -> list[Saved]:
    """The states of one consumer, or of several in a list; each has the fields `more` besides.

    Raises `StateError`, which names the field.
    """
    states = [state] if isinstance(state, Mapping) else state
    if not isinstance(states, Sequence) or isinstance(states, (str, bytes, bytearray)):
        raise StateError(f"a {type(state).__name__} is not a state; {_GENUINE}")
    if not states:
        raise StateError("the list of states is empty; give the state of every consumer")
    saved = [_read(one, kind, more) for one in states]
    ended = (one.delivered == one.plan.nb_batches(one.consumer) for one in saved)
    mixed = ((one.plan, one.epoch, is_over) for one, is_over in zip(saved, ended, strict=True))
    for name, value in unwritten(mixed):
        raise refuse_state(name, value, "is not what a run of a mixture has there")
    return saved


def own(state: object, plan: Plan, consumer: int, kind: Kind, more: Collection[str]) -> Saved:
    """The state of `consumer`, where it can't do with another's, and everything must be as it was.

    Raises `StateError`.
    """
    saved = read(state, kind, more)
    mine = next((one for one in saved if one.consumer == consumer), None)
    if mine is None:
        raise StateError(
            f"there is no state of consumer {consumer} among those of consumers "
            f"{[one.consumer for one in saved]}: each needs its own, since {_KINDS[kind]} can't "
            "tell what others got"
        )
    differences = differing(mine.plan, plan, [field.name for field in fields(Plan)])
    if differences:
        raise StateError(
            f"{differences}: {_KINDS[kind]} can be resumed in the same set-up only; build it as it "
            "was, or start afresh without the state"
        )
    return mine


def saved_seed(state: object) -> int:
    """The seed of the run that `state` (or a list of states) is of. Raises `StateError`."""
    one = state[0] if isinstance(state, Sequence) and state else state
    if not isinstance(one, Mapping):
        raise StateError(f"a {type(one).__name__} is not a state; {_GENUINE}")
    _check_version(one)
    return _plan(one).seed


def saved_consumer(state: object, nb_consumer: int) -> int:
    """The only one of so many that `state` is good for; else 0, as it is good for all or none."""
    if isinstance(state, Mapping) and state.get("order") in ("sampler", "stream", "shards"):
        found = state.get("consumer")
        if type(found) is int and 0 <= found < nb_consumer:
            return found
    return 0


def differing(old: Plan, new: Plan, names: Collection[str]) -> str:
    """``seed was 1, is now 2``, for each of the fields `names` that differs."""
    return ", ".join(
        "the mixture is another one"
        if name == "mixture"
        else f"{name} was {getattr(old, name)!r}, is now {getattr(new, name)!r}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    )


def refuse_state(field: str, value: object, problem: str) -> StateError:
    """The error that names a field, to be raised."""
    return StateError(f"the state is malformed: {field}={shown(value)} {problem}; {_GENUINE}")


def check_same_run(what: str, was: Mapping[str, object], facts: Mapping[str, object]) -> None:
    """Raises `StateError` where a saved fact is another one now. `what`: what the state is of."""
    differences = ", ".join(
        f"{name} was {shown(was[name])}, is now {value!r}"
        for name, value in facts.items()
        if was[name] != value or type(was[name]) is not type(value)
    )
    if differences:
        raise StateError(
            f"the state is of {what}: {differences}; build the loader as it was, or start afresh "
            "without the state"
        )


def integer(state: Mapping[str, Any], field: str, low: int, high: int) -> int:
    """The field, a plain integer in ``[low, high]``. Raises `StateError`."""
    value = _present(state, field)
    if type(value) is not int or not low <= value <= high:
        raise refuse_state(field, value, f"is not an integer in [{low}, {high}]")
    return value


def _read(state: object, kind: Kind, more: Collection[str]) -> Saved:
    if not isinstance(state, Mapping):
        raise StateError(f"a {type(state).__name__} is not a state; {_GENUINE}")
    _check_version(state)
    was = _present(state, "order")
    if was != kind:
        of = _KINDS[was] if isinstance(was, str) and was in _KINDS else "nothing that is known"
        raise StateError(f"the state is of {of}, and this is {_KINDS[kind]}; build it as it was")
    unknown = [name for name in state if name not in _COMMON and name not in more]
    if unknown:
        raise StateError(f"the state is malformed: it has fields {unknown!r:.100}; {_GENUINE}")
    plan = _plan(state)
    consumer = integer(state, "consumer", 0, plan.nb_consumer - 1)
    most = plan.nb_batches(consumer)
    delivered = integer(state, "delivered", 0, most)
    ahead = _present(state, "ahead")
    if not isinstance(ahead, (list, tuple)):
        raise refuse_state("ahead", ahead, "is no list")
    last = delivered
    for k in ahead:
        if type(k) is not int or not last < k < most:
            raise refuse_state("ahead", ahead, f"are not ascending batches in ({last}, {most})")
        last = k
    return Saved(
        kind,
        plan,
        integer(state, "epoch", 0, MAX_EPOCH),
        consumer,
        delivered,
        tuple(ahead),
        {name: _present(state, name) for name in more},
    )


def _check_version(state: Mapping[str, Any]) -> None:
    version = state.get("version")
    if type(version) is not int or version < 1:
        raise StateError(f"the state has no valid version ({shown(version)}); {_GENUINE}")
    if version > _VERSION:
        raise StateError(
            f"the state has version {shown(version)}, this swift_loader reads version {_VERSION}; "
            "it was saved by a newer one: upgrade"
        )
    if version < _VERSION:
        raise StateError(
            f"the state has version {version}, this swift_loader reads version {_VERSION}: "
            "epochs are shuffled in another way since. Finish the epoch with the version that "
            "saved it, or start afresh without the state"
        )


def _present(state: Mapping[str, Any], field: str) -> Any:
    try:
        return state[field]
    except KeyError:
        raise StateError(f"the state is malformed: {field!r} is missing; {_GENUINE}") from None


def _plan(state: Mapping[str, Any]) -> Plan:
    given = _present(state, "plan")
    names = [name for name in FIELDS if name != "mixture"]
    if not isinstance(given, Mapping) or given.keys() - {"mixture"} != set(names):
        raise refuse_state("plan", given, f"does not have the fields {names}")
    for name in ("nb_samples", "batch_size", "nb_consumer", "nearby_shuffle", "seed"):
        integer(given, name, 0, 2**64 - 1)
    spans = given["spans"]
    if spans is not None:
        spans = _spans(spans, given["nb_samples"])
    mixture = read_mixture(given["mixture"]) if "mixture" in given else None
    try:
        return Plan(**{**given, "spans": spans, "mixture": mixture})
    except ConfigError as error:
        raise StateError(f"the state is malformed: plan: {error}; {_GENUINE}") from error


def _spans(spans: object, nb_samples: int) -> tuple[tuple[int, int], ...]:
    """Ascending ones with gaps between them, less than the whole."""
    end = -1
    if not isinstance(spans, (list, tuple)) or not spans:
        raise refuse_state("spans", spans, "is no list of what is left")
    for span in spans:
        if (
            not isinstance(span, (list, tuple))
            or len(span) != 2
            or not all(type(bound) is int for bound in span)
            or not end < span[0] < span[1] <= nb_samples
        ):
            raise refuse_state("spans", spans, f"does not ascend from {end + 1} to {nb_samples}")
        end = span[1]
    if spans[0][0] == 0 and spans[0][1] == nb_samples:
        raise refuse_state("spans", spans, "is the whole epoch")
    return tuple((start, stop) for start, stop in spans)
