"""`Packed`: sequences of one length, made of the documents of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index as whole
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from swift_loader.batch.offsets import Offsets, check_total
from swift_loader.batch.wrapped import listeners_of
from swift_loader.errors import ConfigError, refuse
from swift_loader.plan.keys import key64
from swift_loader.plan.packing import Lengths, Packing, Pieces, SplitPacking
from swift_loader.plan.packing_fit import BestFitPacking
from swift_loader.sources.counting import lengths_of
from swift_loader.sources.mixture import Mixture

__all__ = ["FIELDS", "Packed"]

#: what a sequence may have, in this order
FIELDS = ("tokens", "positions", "document_ids", "cu_seqlens")
#: makes an array of a shape and a dtype, with anything in it
Empty = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
_DOCUMENTS = 23  # purpose of a key
_PADDING = -1


class Packed:
    """A map-style data set of sequences, each of exactly `length` tokens.

    The documents' lengths alone decide which pieces of which documents make sequence ``i``. So a
    run resumes at any place, and any worker can make any sequence.

    Workers lay a batch straight into its shared memory, without making the sequences one by one,
    unless the loader has a `transform`, a `collate_fn`, a `batch_encoder` or a `cache`.

    A sequence is a dict of numpy arrays:

    - ``"tokens"``: `dtype`, shape ``(length,)``;
    - ``"positions"``: int32, ``(length,)``: the place of each token in its piece, from 0 on;
    - ``"document_ids"``: the document of each token, -1 for padding; int32, or int64 from
      2^31 documents on;
    - ``"cu_seqlens"``: int32, ``(pieces + 1,)``: where the pieces begin and end, from 0 to
      `length`. Padding counts as a piece. A batch has one such array for all of its sequences laid
      end to end, ``(pieces of all + 1,)``, as FlashAttention's variable-length functions take it
      for ``tokens.view(-1)``. No piece is longer than `length`, so give that as ``max_seqlen``.

    Parameters
    ----------
    dataset:
        Documents by index: ``dataset[i]`` is a list, or an array or tensor of one dimension, of
        whole numbers. A worker reads a document whenever a sequence has a piece of it. If the items
        are views of a memory-mapped array, the worker reads no more than that piece.
    length:
        Tokens in a sequence.
    lengths:
        The number of tokens of each document, without the separator: an integer array of shape
        ``(len(dataset),)``, which may be memory-mapped. Or the path of a ``.npy`` file: if it does
        not exist, `Packed` counts once and writes it. None: `Packed` reads every document, to
        count.
    how:
        ``"split"``: the documents lie end to end, and are cut every `length` tokens. Only the last
        sequence has padding. ``"best-fit"``: a document that fits into a sequence is not cut. A
        longer one fills as many sequences as it can; its rest is packed like the short documents. A
        few tokens in a thousand are padding. `Packed` works out a table of 4 bytes a document once.
    separator:
        A token, or several, after each document. It counts as the end of the document.
    key:
        Where the tokens are in ``dataset[i]``, such as ``"input_ids"``. None: ``dataset[i]`` is the
        tokens.
    pad:
        The token that fills the rest of a sequence.
    shuffle_documents:
        With ``how="split"``: the documents lie in another order in each epoch. Blocks of 1024
        neighbours change places, and so do the documents within each block. The number of sequences
        stays the same. The loader's `shuffle` is another thing: it shuffles sequences.
    seed:
        The seed of `shuffle_documents`.
    fields:
        The fields that a sequence has: some of the four above.
    dtype:
        The dtype of the tokens.

    Raises
    ------
    ConfigError
        An argument can't work. The error names it, and the fix.
    """

    def __init__(
        self,
        dataset: Any,
        length: int = 4096,
        lengths: Any = None,
        how: Literal["split", "best-fit"] = "split",
        separator: int | Sequence[int] | None = None,
        *,
        key: Any = None,
        pad: int = 0,
        shuffle_documents: bool = False,
        seed: int = 0,
        fields: Sequence[str] = FIELDS,
        dtype: Any = np.int64,
    ) -> None:
        is_whole = isinstance(length, (int, np.integer)) and not isinstance(length, bool)
        if not is_whole or not 0 < length < 2**31:
            refuse("length", length, "give the number of tokens in a sequence")
        if how not in ("split", "best-fit"):
            refuse("how", how, "give 'split' or 'best-fit'")
        if shuffle_documents and how == "best-fit":
            refuse("shuffle_documents", True, "with how='best-fit' the documents of a sequence "
                   "stay together; give the loader shuffle=True, or how='split'")  # fmt: skip
        unknown = [name for name in fields if name not in FIELDS]
        if isinstance(fields, str) or unknown or not fields:
            refuse("fields", fields, f"give some of {FIELDS}")
        if isinstance(dataset, Mixture):
            refuse("dataset", dataset, "a Mixture can't be packed, but its sources can: "
                   "Mixture({'web': (Packed(web, 4096), 0.7), ...})")  # fmt: skip
        by_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not by_index or isinstance(dataset, type):
            refuse(
                "dataset", dataset, "give a data set with __getitem__ and __len__, built already"
            )
        self.dataset = dataset
        self._length = length = int(length)
        self._key = key
        self._epoch = 0
        self._shuffles = shuffle_documents
        self._fields = tuple(name for name in FIELDS if name in fields)
        try:
            self._seed = whole(seed)
        except TypeError:
            refuse("seed", seed, "give a whole number")
        try:
            self._dtype = np.dtype(dtype)
        except TypeError:
            refuse("dtype", dtype, "give a type of numpy's, such as numpy.int32")
        if self._dtype.kind not in "iuf":
            refuse("dtype", dtype, "tokens are numbers: give such as numpy.int32")
        self._separator = _tokens("separator", () if separator is None else separator, self._dtype)
        self._pad = _tokens("pad", pad, self._dtype)
        if len(self._pad) != 1:
            refuse("pad", pad, "give one token")
        counted = lengths_of(lengths, len(dataset), lambda i: len(self._document(i)))
        all_lengths = Lengths(counted, len(self._separator))
        self._lengths = all_lengths
        self._id_dtype = np.int32 if len(all_lengths) < 2**31 else np.int64
        kind = SplitPacking if how == "split" else BestFitPacking
        try:
            self._packing: Packing = kind(all_lengths, length)
        except ValueError as error:
            raise ConfigError(f"lengths: {error}; give the number of tokens of each") from None

    def __len__(self) -> int:
        return self._packing.nb_sequences

    @property
    def tokens_per_sample(self) -> int:
        """`length`: tokens in a sequence, with its padding."""
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Take the documents' order of `epoch`. The loader calls it in every worker."""
        self._epoch = epoch
        for one in listeners_of(self.dataset):
            one.set_epoch(epoch)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """A sequence; see the class.

        Raises
        ------
        IndexError
            There is no such sequence.
        ValueError
            A document has not the length that `lengths` says.
        """
        [found] = self.__getitems__([index])
        return found

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, NDArray[Any]]]:
        """Several sequences, made together: each is a view of arrays of all."""
        rows = self._rows(indices)
        arrays = self._arrays(rows, np.empty)
        samples: list[dict[str, NDArray[Any]]] = [
            {name: array[row] for name, array in arrays.items()} for row in range(len(indices))
        ]
        if "cu_seqlens" in self._fields:
            for sample, bounds in zip(samples, rows.bounds(), strict=True):
                sample["cu_seqlens"] = bounds
        return samples

    def batch(self, indices: Sequence[int], empty: Empty = np.empty) -> dict[str, NDArray[Any]]:
        """The batch of these sequences, made at once: the same that the default collate makes.

        Arrays have the shape ``(sequences, length)``; ``"cu_seqlens"`` is of all sequences laid end
        to end. `empty` makes the arrays, for instance in memory that another process will read.

        Raises
        ------
        IndexError, ValueError
            As ``packed[i]`` does.
        OverflowError
            The batch has more than 2^31 - 1 tokens.
        """
        rows = self._rows(indices)
        batch = self._arrays(rows, empty)
        if "cu_seqlens" in self._fields:
            batch["cu_seqlens"] = rows.all_bounds(empty)
        return batch

    def _rows(self, indices: Sequence[int]) -> _Rows:
        nb_sequences = len(self)
        indices = list(map(whole, indices))  # no fraction is cut off in silence
        for index in indices:
            if not 0 <= index < nb_sequences:
                raise IndexError(f"sequence {index} is not in [0, {nb_sequences})")
        order = key64(_DOCUMENTS, self._seed, self._epoch) if self._shuffles else None
        pieces, counts = self._packing.pieces_of(indices, order)
        return _Rows.of(pieces, counts, self._length)

    def _arrays(self, rows: _Rows, empty: Empty) -> dict[str, NDArray[Any]]:
        """All fields that have as many elements as the tokens: ``(sequences, length)`` each."""
        shape = (len(rows.counts), self._length)
        found: dict[str, NDArray[Any]] = {}
        for name in self._fields:
            if name == "tokens":
                found[name] = empty(shape, self._dtype)
                self._put_tokens(rows, found[name].reshape(-1))
            elif name == "positions":
                found[name] = empty(shape, np.dtype(np.int32))
                rows.put_places(found[name].reshape(-1))
            elif name == "document_ids":
                found[name] = empty(shape, np.dtype(self._id_dtype))
                ids = rows.documents.astype(self._id_dtype)
                found[name].reshape(-1)[:] = np.repeat(ids, rows.sizes)
        return found

    def facts(self) -> dict[str, Any]:
        """What its sequences follow from, beside the documents: ranks must have it alike."""
        return {
            "length": self._length,
            "how": "best-fit" if isinstance(self._packing, BestFitPacking) else "split",
            "lengths": self._lengths.checksum(),
            "separator": self._separator.tolist(),
            "pad": self._pad.tolist(),
            "shuffle_documents": self._shuffles,
            "seed": self._seed if self._shuffles else None,
            "fields": list(self._fields),
            "dtype": str(self._dtype),
        }

    def __repr__(self) -> str:
        return f"<Packed: {len(self)} sequences of {self._length} tokens>"

    def _put_tokens(self, rows: _Rows, out: NDArray[Any]) -> None:
        parts: list[Any] = []
        dataset, key, separator = self.dataset, self._key, self._separator
        said = self._lengths.array[rows.documents].tolist()  # of padding too, where it isn't used
        pieces = (rows.documents.tolist(), rows.starts.tolist(), rows.stops.tolist())
        for document, start, stop, length in zip(*pieces, said, strict=True):
            if document == _PADDING:
                parts.append(self._pad.repeat(stop - start))
                continue
            read = dataset[document]
            if key is not None:
                read = read[key]
            count = len(read)
            if count != length or isinstance(read, (dict, str)):
                raise ValueError(_unfit(document, read, length))
            if start < count:
                part = np.asarray(read if start == 0 and stop >= count else read[start:stop])
                if part.ndim != 1:
                    raise ValueError(_unfit(document, read, length))
                parts.append(part)
            if stop > count:
                parts.append(separator[max(start - count, 0) : stop - count])
        try:
            np.concatenate(parts, out=out, casting="safe")
        except TypeError:  # of a type that holds more than `dtype`: look whether these tokens do
            tokens = np.concatenate(parts)
            if tokens.dtype.kind == "f":  # int64 and uint64 join to a float, which rounds
                tokens = np.concatenate(parts, dtype=object)
            with np.errstate(invalid="ignore"):
                np.concatenate(parts, out=out, casting="unsafe")
            if not np.array_equal(out, tokens):
                place = int((out != tokens).argmax())
                document = int(np.repeat(rows.documents, rows.sizes)[place])
                raise ValueError(
                    f"document {document} has the token {tokens[place]}, which does not fit into "
                    f"dtype={self._dtype}: give Packed another dtype"
                ) from None

    def _document(self, index: int) -> Any:
        found = self.dataset[index]
        return found if self._key is None else found[self._key]


@dataclass(frozen=True)
class _Rows:
    """The pieces of several sequences, padding included: `counts` of each sequence."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]
    length: int

    @classmethod
    def of(cls, pieces: Pieces, counts: NDArray[np.int64], length: int) -> _Rows:
        """With a piece of padding, of document -1, where a sequence is not full."""
        ends = np.cumsum(counts)
        missing = length - np.add.reduceat(pieces.stops - pieces.starts, ends - counts)
        short = np.flatnonzero(missing)
        padding = Pieces(
            np.full(len(short), _PADDING), np.zeros(len(short), np.int64), missing[short]
        )
        pieces = pieces.with_others(padding, ends[short] + np.arange(len(short)))
        return cls(pieces.documents, pieces.starts, pieces.stops, counts + (missing > 0), length)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes)

    def put_places(self, out: NDArray[np.int32]) -> None:
        """The place of each token in its piece."""
        out[:] = np.arange(len(out), dtype=np.int32)
        out -= np.repeat((self._ends - self.sizes).astype(np.int32), self.sizes)

    def all_bounds(self, empty: Empty) -> NDArray[np.int32]:
        """Where the pieces of all sequences, laid end to end, begin and end."""
        check_total(len(self.counts) * self.length)
        bounds = empty((len(self.sizes) + 1,), np.dtype(np.int32))
        bounds[0] = 0
        bounds[1:] = self._ends
        return bounds

    def bounds(self) -> list[Offsets]:
        """Where the pieces of each sequence begin and end."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        within = (self._ends - rows * self.length).astype(np.int32)
        lasts = np.cumsum(self.counts).tolist()
        zero = np.zeros(1, np.int32)
        return [
            Offsets.of(np.concatenate((zero, within[first:last])))
            for first, last in zip([0, *lasts[:-1]], lasts, strict=True)
        ]


def _unfit(document: int, read: Any, length: int) -> str:
    """What is wrong with a document that has no such length, or no tokens."""
    if isinstance(read, (dict, str)) or np.ndim(read) != 1:
        return (
            f"document {document} is {read!r:.100}: give a list, array or tensor of whole numbers, "
            "of one dimension; `key` says where it is in an item"
        )
    return (
        f"document {document} has {len(read)} tokens, and `lengths` says {length}: give Packed the "
        "lengths of this data set"
    )


def _tokens(option: str, given: int | Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A token, or several, of this type. Raises `ConfigError` for what does not fit into it."""
    fix = f"give a token, or several, as whole numbers that fit into dtype={dtype}"
    try:
        found = np.array(given).reshape(-1)
    except (TypeError, ValueError):  # lists of several lengths
        refuse(option, given, fix)
    if found.dtype.kind not in "iuf":
        refuse(option, given, fix)
    with np.errstate(invalid="ignore"):
        tokens: NDArray[Any] = found.astype(dtype)
    if not np.array_equal(tokens, found):
        refuse(option, given, fix)
    return tokens
