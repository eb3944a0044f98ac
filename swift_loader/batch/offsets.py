"""Where the parts of a row begin and end, joined and not stacked when rows become a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Offsets", "check_total", "joined"]


class Offsets(np.ndarray[Any, np.dtype[np.int32]]):
    """An int32 array ``[0, end of part 0, end of part 1, ..., length of the row]``.

    Rows of a batch have different numbers of parts. Collated, the offsets are those of all parts in
    the rows laid end to end, as variable-length attention takes them (``cu_seqlens``).
    """

    @classmethod
    def of(cls, array: NDArray[np.int32]) -> Offsets:
        """`array`, seen as offsets."""
        return array.view(cls)


def joined(rows: Sequence[Offsets]) -> NDArray[np.int32]:
    """The offsets of all rows, one row after the other: int32, ``(parts of all rows + 1,)``.

    Raises `OverflowError` where there are more than 2^31 - 1 elements.
    """
    parts = [np.asarray(row) for row in rows]
    ends = np.cumsum([0, *(int(part[-1]) for part in parts)])
    check_total(int(ends[-1]))
    return np.concatenate(
        [np.zeros(1, np.int32)]
        + [
            part[1:] + np.int32(before)
            for part, before in zip(parts, ends[:-1].tolist(), strict=True)
        ]
    )


def check_total(nb_elements: int) -> None:
    """Raises `OverflowError` where the offsets of so many elements don't fit into int32."""
    if nb_elements > np.iinfo(np.int32).max:
        raise OverflowError(f"a batch of {nb_elements} tokens: offsets are int32; make it smaller")
