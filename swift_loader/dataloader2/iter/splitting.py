"""One pipe into several, each item or each field to one of them, by torch's `demux` and `fork`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.iter.flow import Enumerator
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["RoundRobinDemultiplexer", "UnZipper", "round_robin_demux", "unzip"]

T = TypeVar("T")


class _TurnOf:
    """Which of `nb_turn` children numbered item `(i, item)` goes to."""

    def __init__(self, nb_turn: int) -> None:
        self.nb_turn = nb_turn

    def __call__(self, numbered: tuple[int, Any]) -> int:
        return numbered[0] % self.nb_turn


class _Turn(IterDataPipe[T], Generic[T]):
    """One child of a round robin: every `nb_turn`-th item from item `turn` on."""

    def __init__(self, numbered: IterDataPipe[tuple[int, T]], turn: int, nb_turn: int) -> None:
        self.numbered = numbered
        self.turn = turn
        self.nb_turn = nb_turn

    def __iter__(self) -> Iterator[T]:
        return map(itemgetter(1), self.numbered)  # at once: `iter` of one ends those of others

    def __len__(self) -> int:
        enumerator: Any = self.numbered
        nb_item = len(enumerator.main_datapipe.main_datapipe)
        return (nb_item - self.turn + self.nb_turn - 1) // self.nb_turn


@functional_datapipe("round_robin_demux")
def round_robin_demux(
    datapipe: IterDataPipe[T], num_instances: int, buffer_size: int = 1000
) -> list[IterDataPipe[T]]:
    """Deals items to `num_instances` pipes by turns (`.round_robin_demux`).

    Returns the list of pipes (for 1, of the source itself). Items wait for the pipes that lag
    behind, at most `buffer_size` together (-1: no limit), then `BufferError`. `ValueError` for
    `num_instances < 1`.
    """
    if num_instances < 1:
        raise ValueError(f"Expected `num_instances` larger than 0, but {num_instances} is found")
    if num_instances == 1:
        return [datapipe]
    numbered: Any = Enumerator(datapipe)
    children = numbered.demux(num_instances, _TurnOf(num_instances), buffer_size=buffer_size)
    return [_Turn(child, turn, num_instances) for turn, child in enumerate(children)]


RoundRobinDemultiplexer = round_robin_demux


class _Field(IterDataPipe[Any]):
    """One field of each item."""

    def __init__(self, items: IterDataPipe[Sequence[Any]], field: int) -> None:
        self.items = items
        self.field = field

    def __iter__(self) -> Iterator[Any]:
        return map(itemgetter(self.field), self.items)

    def __len__(self) -> int:
        return len(self.items)


@functional_datapipe("unzip")
def unzip(
    source_datapipe: IterDataPipe[Sequence[Any]],
    sequence_length: int,
    buffer_size: int = 1000,
    columns_to_skip: Sequence[int] | None = None,
) -> list[IterDataPipe[Any]]:
    """One pipe for each field of items that are sequences (`.unzip`).

    `sequence_length`: how many fields each item has; those in `columns_to_skip` (counted from 0)
    get no pipe. The fastest pipe may run ahead of the slowest by `buffer_size` items (-1: no
    limit), then `BufferError`. `ValueError` where no field is left or a column to skip does not
    exist.
    """
    skipped = set(columns_to_skip or ())
    columns = [i for i in range(sequence_length) if i not in skipped]
    if not columns or not skipped <= set(range(sequence_length)):
        raise ValueError(
            f"unzip has no field left, or skips unknown ones: {sequence_length} fields, "
            f"skipping {sorted(skipped)}"
        )
    # torch's `fork` gives the pipe itself, not a list, where there is one child.
    children = [source_datapipe]
    if len(columns) > 1:
        children = source_datapipe.fork(len(columns), buffer_size=buffer_size)
    return [_Field(child, i) for i, child in zip(columns, children, strict=True)]


UnZipper = unzip
