"""The lengths of a data set's documents: given, read from a file, or counted and kept there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_loader.errors import ConfigError, refuse

__all__ = ["Given", "lengths_of"]

Given = Any  # an array, a sequence of integers, the path of a .npy file, or None


def lengths_of(
    given: Given, count: int, count_one: Callable[[int], int]
) -> NDArray[np.integer[Any]]:
    """The lengths of `count` documents: an integer array of shape ``(count,)``.

    Parameters
    ----------
    given:
        They themselves; or the path of a ``.npy`` file, which is memory-mapped if it is
        there, and else counted and written; or None: they are counted each time.
    count_one:
        The length of one document, by its index.

    Raises
    ------
    ConfigError
        What is given are no lengths, or not so many.
    """
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if path.suffix != ".npy":
            refuse("lengths", os.fspath(given), "give the path of a .npy file, to be read, or "
                   "written if it is not there")  # fmt: skip
        if not path.exists():
            if not os.access(path.parent, os.W_OK | os.X_OK):  # known before the long counting
                refuse("lengths", os.fspath(given), "there is no such folder, or it can't be "
                       "written: give a path where the counted lengths can be kept")  # fmt: skip
            _write(path, _counted(count, count_one))
        try:
            given = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError):  # numpy's own words advise to trust the file
            refuse("lengths", os.fspath(path), "it is no .npy file of numbers: delete it to have "
                   "the documents counted again, or give another")  # fmt: skip
        where = f" in {path}"
    elif given is None:
        return _counted(count, count_one)
    else:
        where = ""
    lengths: NDArray[Any] = np.asarray(given)
    if isinstance(given, np.memmap):
        lengths = given
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        refuse("lengths", given, "give one whole number a document: an integer array of one "
               "dimension")  # fmt: skip
    if len(lengths) != count:
        raise ConfigError(
            f"lengths: there are {len(lengths)}{where}, and the data set has {count} documents: "
            "give the lengths of this data set, or delete the file to have them counted again"
        )
    return lengths


def _counted(count: int, count_one: Callable[[int], int]) -> NDArray[np.int64]:
    return np.fromiter(map(count_one, range(count)), np.int64, count)


def _write(path: Path, lengths: NDArray[Any]) -> None:
    """All or nothing: several processes may count at the same time."""
    part = path.with_name(f"{path.stem}-{secrets.token_hex(8)}.npy")
    try:
        with part.open("xb") as file:  # by the umask, as numpy.save: others may share the folder
            np.save(file, lengths)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
