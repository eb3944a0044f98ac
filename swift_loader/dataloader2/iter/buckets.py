"""Batches of items that are alike, so that padding them wastes little."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe

from swift_loader.dataloader2.iter.order import InBatchShuffler
from swift_loader.dataloader2.registry import functional_datapipe

__all__ = ["BucketBatcher", "MaxTokenBucketizer", "bucketbatch"]

T = TypeVar("T")


@functional_datapipe("bucketbatch")
def bucketbatch(
    datapipe: IterDataPipe[T],
    batch_size: int,
    drop_last: bool = False,
    batch_num: int = 100,
    bucket_num: int = 1,
    sort_key: Callable[[list[T]], Iterable[T]] | None = None,
    use_in_batch_shuffle: bool = True,
) -> IterDataPipe[list[T]]:
    """Batches of similar items, by sorting buckets of many batches (`.bucketbatch`).

    A pool of `batch_size * batch_num * bucket_num` items is shuffled, cut into `bucket_num`
    buckets, each bucket is put in order by `sort_key` (a function of the *list*, e.g. `sorted`),
    and cut into batches, which are shuffled within the bucket. With one bucket and `sort_key`
    nothing is shuffled: all batches of the pool come in order. Without `sort_key`: shuffled
    batches. `use_in_batch_shuffle`: shuffle pool by pool; `False`: by a running buffer of that
    size. `drop_last`: leave out a last batch that is short. Returns the pipe built from these
    steps.
    """
    for name, value in [
        ("batch_size", batch_size),
        ("batch_num", batch_num),
        ("bucket_num", bucket_num),
    ]:
        if value <= 0:
            raise ValueError(f"'{name}' is required to be a positive integer, got {value}")

    def mixed(pipe: Any, nb_item: int) -> Any:
        if use_in_batch_shuffle:
            return InBatchShuffler(pipe.batch(nb_item)).unbatch()
        return pipe.shuffle(buffer_size=nb_item)

    bucket_size = batch_size * batch_num
    sorts_all = sort_key is not None and bucket_num == 1
    pipe: Any = datapipe if sorts_all else mixed(datapipe, bucket_size * bucket_num)
    if sort_key is not None:
        pipe = pipe.batch(bucket_size).map(sort_key).unbatch()
    pipe = pipe.batch(batch_size, drop_last=drop_last)
    if sort_key is not None and not sorts_all:
        pipe = mixed(pipe, batch_num)
    result: IterDataPipe[list[T]] = pipe
    return result


BucketBatcher = bucketbatch


@functional_datapipe("max_token_bucketize")
class MaxTokenBucketizer(IterDataPipe[list[Any]]):
    """Batches whose lengths sum up to at most `max_token_count` (`.max_token_bucketize`).

    `len_fn` gives an item's length. The `buffer_size` items read ahead are taken in the order of
    their lengths, shortest first. Items shorter than `min_len` or longer than `max_len` (by default
    `max_token_count`) are left out. `include_padding`: count a batch as if all its items had the
    length of its longest. Has no length (`TypeError`). `ValueError` for limits that contradict each
    other.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        max_token_count: int,
        len_fn: Callable[[Any], int] = len,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> None:
        max_len = max_token_count if max_len is None else max_len
        if not 0 <= min_len <= max_len:
            raise ValueError(f"Need 0 <= min_len <= max_len, got {min_len} and {max_len}")
        if max_len > max_token_count:
            raise ValueError(
                f"`max_token_count` ({max_token_count}) must not be below `max_len` ({max_len})"
            )
        if buffer_size <= 0:
            raise ValueError(
                f"'buffer_size' is required to be a positive integer, got {buffer_size}"
            )
        self.datapipe = datapipe
        self.max_token_count = max_token_count
        self.len_fn = len_fn
        self.min_len = min_len
        self.max_len = max_len
        self.buffer_size = buffer_size
        self.include_padding = include_padding

    def __iter__(self) -> Iterator[list[Any]]:
        batch: list[Any] = []
        nb_token = longest = 0
        for length, item in self._shortest_first():
            longest_with = max(longest, length)
            if self.include_padding:
                nb_token_with = longest_with * (len(batch) + 1)
            else:
                nb_token_with = nb_token + length
            if batch and nb_token_with > self.max_token_count:
                yield batch
                batch, nb_token_with, longest_with = [], length, length
            batch.append(item)
            nb_token, longest = nb_token_with, longest_with
        if batch:
            yield batch

    def _shortest_first(self) -> Iterator[tuple[int, Any]]:
        # The number breaks ties in the order of arrival, so items themselves are never compared.
        heap: list[tuple[int, int, Any]] = []
        for number, item in enumerate(self.datapipe):
            length = self.len_fn(item)
            if not self.min_len <= length <= self.max_len:
                continue
            heapq.heappush(heap, (length, number, item))
            if len(heap) >= self.buffer_size:
                shortest = heapq.heappop(heap)
                yield shortest[0], shortest[2]
        while heap:
            shortest = heapq.heappop(heap)
            yield shortest[0], shortest[2]

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no length: it depends on the items' lengths")
