"""What is told the epoch: each thing once, and nothing that was not meant."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from swift_loader.batch.wrapped import listeners_of


class Listener:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def set_epoch(self, epoch: int) -> None:
        pass

    def collate(self, samples: Any) -> Any:
        return samples


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("dataset",)

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Delegates(Holder):
    """A wrapper that has all that its data set has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class Answers:
    """Has whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return Answers()

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("nobody meant this")


class Raises:
    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


class Opens:
    """Its data set is opened when it is asked for."""

    @property
    def dataset(self) -> Any:
        raise AssertionError("opened")


def test_what_holds_a_listener_is_looked_through() -> None:
    one, two = Listener(), Listener()
    for holder in (
        one.collate,
        partial(print, one),
        partial(one.collate),
        partial(print, key=one),
        partial(partial(print, 1), one),
        Holder(dataset=one),
        Slotted(Slotted(one)),
        Holder(datasets=[one, one]),
        Holder(datasets={"a": one}),
        Holder(transform=partial(print, one)),
        Holder(target_transform=one),
        Holder(transform=Holder(transforms=[print, one])),
        torch.nn.Sequential(torch.nn.ReLU(), Module(one)),
        Delegates(inner=one),
        Delegates(inner=one, dataset=one),
        StackDataset([0], Subset(Holder(dataset=one), [0])),  # type: ignore[arg-type]
    ):
        assert listeners_of(holder) == [one]
        assert listeners_of(two, holder, one, two.collate) == [two, one]


class Module(torch.nn.Module):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform


def test_a_wrapper_that_listens_tells_what_it_wraps_by_itself() -> None:
    wrapper = Listener(dataset=Listener(), transform=Listener())
    assert listeners_of(wrapper) == [wrapper, wrapper.transform]  # type: ignore[attr-defined]

    class Told(Subset[Any], Listener):
        """A wrapper of torch's that was given a `set_epoch`."""

        __init__ = Subset.__init__

    told = Told(Listener(), [0])  # type: ignore[arg-type]
    assert listeners_of(told) == [told, told.dataset]


def test_what_was_not_meant_is_not_told() -> None:
    for other in (Answers(), Raises(), Opens(), Listener, partial(print, Listener, torch), 3, None):
        assert listeners_of(other) == []
        assert listeners_of(Holder(dataset=other), partial(print, other)) == []


def test_things_that_hold_each_other_end() -> None:
    first, second = Holder(), Holder()
    first.dataset, second.dataset = second, first  # type: ignore[attr-defined]
    assert listeners_of(first) == []
    many = ConcatDataset([Subset(Listener(), [0]) for _ in range(3000)])  # type: ignore[arg-type]
    assert len(listeners_of(many)) == 3000
    plain = Holder(dataset=list(range(100)), datasets=["a", "b"])
    assert listeners_of(plain) == []
