"""Samples out of a dataset: by `__getitems__`, by threads, by coroutines, or one by one; out of a
cache where there is one; then through the user's `transform`. And what to do with a sample that
raises.

`on_error` is one of

- ``"raise"`` (default): the exception goes to the training loop;
- ``"skip"``: the batch is smaller by that sample;
- ``"replace"``: another good sample of the batch stands in;
- a callable ``(exception, index) -> sample``: what it returns stands in, `SKIP` leaves it out, and
  what it raises goes to the training loop.

An exception of any kind is one of the sample's, a library's cancellation or panic as well; but
`KeyboardInterrupt` and `SystemExit` go to the training loop whatever the policy.

A batch never vanishes, since all consumers must make the same number of steps: where every sample
of a batch is bad, the next good sample of the dataset (of a mixture: of its source) stands in,
whatever the policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from swift_loader.batch.asynchronous import Loop, is_asynchronous
from swift_loader.batch.stopwatch import Stopwatch

__all__ = ["ENDS", "SKIP", "Bad", "BadSampleError", "Fetcher", "OnError", "Raised", "Source"]

_STAND_IN_TRIES = 100


class _Skip:
    """What an `on_error` callable returns to leave a sample out."""

    def __repr__(self) -> str:
        return "swift_loader.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = _Skip()
OnError = Literal["raise", "skip", "replace"] | Callable[[BaseException, Any], Any]
#: nobody means that a sample be left out
ENDS = (KeyboardInterrupt, SystemExit)


class BadSampleError(Exception):
    """Internal: one of `keys` raised, and the policy is to raise. The cause is what it raised."""

    def __init__(self, keys: Sequence[Any]) -> None:
        super().__init__(keys)
        self.keys = keys


class Source(Protocol):
    """What keeps samples: see `swift_loader.cache`."""

    def fetch(self, keys: list[int], make: Callable[[list[int]], list[Any]]) -> list[Any]:
        """The samples of `keys`: kept ones, others by `make`, which gives `Raised` for some."""


class Fetcher:
    """Fetches the samples of a batch. Not for several threads at once.

    `progress[0]` is set to the index of each sample before it is fetched, where it is a number.
    `transform` is called with each sample, by the calling thread, in the order of the batch; what
    it raises counts as the sample's. `kept` is asked first for samples whose keys are numbers.
    `loop`: where the data set's coroutines run, `pool`: the threads that fetch, if there are any.
    """

    def __init__(
        self,
        dataset: Any,
        nb_samples: int,
        on_error: OnError,
        threads: int,
        progress: MutableSequence[int] | memoryview,
        transform: Callable[[Any], Any] | None = None,
        kept: Source | None = None,
        *,
        as_given: bool = False,
    ) -> None:
        self._transform = transform
        self._as_given = as_given and transform is None and kept is None
        self._kept = kept
        self._dataset = self._plain = dataset
        self._stopwatch = Stopwatch(dataset)
        self._nb_samples = nb_samples
        self._on_error = on_error
        self._cells = self._progress = progress
        self._many = getattr(dataset, "__getitems__", None)
        mixes = hasattr(type(dataset), "append_each")  # not by an attribute that means all names
        self._source_of = dataset.samples_of_same_source if mixes else None
        self._append_each = dataset.append_each if mixes else None
        self.loop = Loop() if is_asynchronous(dataset) else None
        self.pool = (
            ThreadPoolExecutor(threads, thread_name_prefix="swift_loader-fetch")
            if threads > 1
            else None
        )

    def ahead(self, indices: Any) -> list[Future[Any]]:
        """Have samples fetched that are wanted later, by coroutines: `fetch` takes the results."""
        assert self.loop is not None
        if callable(self._many):
            return [self.loop.submit(self._many(indices))]
        return [self.loop.submit(self._plain[index]) for index in list(indices)]

    def fetch(
        self, indices: Any, plain: bool = True, begun: list[Future[Any]] | None = None
    ) -> tuple[Any, list[Bad]]:
        """The samples, a list where it is not `as_given`; and the bad ones.

        `plain`: the keys are a list of int64. Else they are what a sampler gave, of any types, and
        ``__getitems__`` is given that very object. `begun`: what `ahead` returned for them.

        Raises `BadSampleError` (from the exception itself) when a sample raised and the policy,
        or the callable, says so.
        """
        self._progress = self._cells if plain else [-1]
        if self._kept is not None and plain:
            return self._finished(indices, self._kept.fetch(indices, self._made))
        if self.loop is not None:
            return self._finished(indices, self._awaited(indices, begun))
        if callable(self._many):
            return self._fetch_many(indices)
        if not plain:
            indices = list(indices)
        if self.pool is not None:
            return self._finished(indices, list(self.pool.map(self._try, indices)))
        samples: list[Any] = []
        dataset, progress = self._plain, self._progress
        try:
            if self._dataset is self._stopwatch:
                self._stopwatch.fetch(indices, samples, progress)
            elif self._append_each is not None:
                self._append_each(indices, samples, progress)
            else:
                for index in indices:
                    progress[0] = index
                    samples.append(dataset[index])
        except BaseException as error:
            done = len(samples)
            if self._on_error == "raise" or isinstance(error, ENDS):
                raise BadSampleError(indices[done : done + 1]) from error
            rest = [self._try(i) for i in indices[done + 1 :]]
            return self._finished(indices, [*samples, Raised(error), *rest])
        return (samples, []) if self._transform is None else self._finished(indices, samples)

    def fetch_one(self, keys: Any, plain: bool = True) -> tuple[list[Any], list[Bad]]:
        """The sample of the only key, without ``__getitems__``: not batched, as torch has it."""
        self._progress = self._cells if plain else [-1]
        if self._kept is not None and plain:
            one_by_one = partial(map, self._try)
            return self._finished(keys, self._kept.fetch(keys, lambda all_: list(one_by_one(all_))))
        return self._resolve(keys, [self._try_whole(keys[0])])

    def time_samples(self, on: bool) -> None:
        """Whether the clock is looked at around each sample from now on; see `Stopwatch`."""
        self._dataset = self._stopwatch if on else self._plain

    def slowest(self) -> tuple[float, int]:
        """Seconds and index of the slowest sample since the last call, if they were timed."""
        return self._stopwatch.read()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        if self.loop is not None:
            self.loop.close()

    def _made(self, indices: list[int]) -> list[Any]:
        """The samples of these, whatever the policy: `Raised` for those that raised."""
        if self.loop is not None:
            kept: list[Any] = self._awaited(indices, None)
            return kept
        if not callable(self._many):
            each = map if self.pool is None else self.pool.map
            return list(each(self._try, indices))
        self._progress[0] = indices[0]
        try:
            samples: list[Any] = self._samples_of(self._many(indices))
        except BaseException as error:
            if self._on_error == "raise" or isinstance(error, ENDS):
                raise BadSampleError(indices) from error
            return [self._try(index) for index in indices]
        if len(samples) != len(indices):
            raise BadSampleError(indices) from ValueError(
                f"__getitems__ gave {len(samples)} samples for {len(indices)}: a cache can't tell "
                "which is which"
            )
        return samples

    def _awaited(self, indices: Any, begun: list[Future[Any]] | None) -> Any:
        """What coroutines give."""
        futures = self.ahead(indices) if begun is None else begun
        indices = list(indices)
        if callable(self._many):
            try:
                return self._samples_of(futures[0].result())
            except BaseException as error:
                if self._on_error == "raise" or isinstance(error, ENDS) or len(indices) == 1:
                    raise BadSampleError(indices) from error
            return [self._try(index) for index in indices]
        results = []
        for index, future in zip(indices, futures, strict=True):
            self._progress[0] = index
            results.append(_result(index, future))
        return results

    def _samples_of(self, given: Any) -> Any:
        """What ``__getitems__`` gave, as a list, unless it is to stay as it is."""
        if self._as_given and not isinstance(given, Iterator):
            return given
        if isinstance(given, Mapping):
            raise TypeError(
                f"__getitems__ gave a {type(given).__name__} in place of a list of samples: return "
                "a list, or give a collate_fn, which gets it as it is (without transform or cache)"
            )
        return list(given)

    def _finished(self, indices: Any, results: Any) -> tuple[Any, list[Bad]]:
        if type(results) is not list:
            return results, []
        return self._resolve(indices, self._transformed(indices, results))

    def _fetch_many(self, indices: Any) -> tuple[Any, list[Bad]]:
        assert self._many is not None
        self._progress[0] = indices[0] if self._progress is self._cells and indices else -1
        try:
            samples = self._samples_of(self._many(indices))
        except BaseException as error:
            if self._on_error == "raise" or isinstance(error, ENDS):
                raise BadSampleError(list(indices)) from error
            indices = list(indices)
            samples = [self._try(index) for index in indices]
        return self._finished(list(indices), samples)

    def _transformed(self, indices: Sequence[Any], results: list[Any]) -> list[Any]:
        """The results through the user's `transform`, where there is one."""
        transform = self._transform
        if transform is None:
            return results
        known = len(indices) == len(results)  # ``__getitems__`` may give more or fewer
        for place, result in enumerate(results):
            if type(result) is not Raised:
                keys = indices[place : place + 1] if known else indices
                self._progress[0] = keys[0] if known else -1
                results[place] = self._through(transform, keys, result)
        return results

    def _through(self, transform: Callable[[Any], Any], keys: Sequence[Any], sample: Any) -> Any:
        try:
            if self._dataset is not self._stopwatch or len(keys) != 1:
                return transform(sample)
            began_s = time.perf_counter()
            changed = transform(sample)
            self._stopwatch.add(keys[0], time.perf_counter() - began_s)
            return changed
        except BaseException as error:
            if self._on_error == "raise" or isinstance(error, ENDS) or len(keys) != 1:
                raise BadSampleError(keys) from error
            return Raised(error)

    def _try_whole(self, index: Any) -> Any:
        """One sample, fetched and through the `transform`."""
        result = self._try(index)
        if self._transform is None or type(result) is Raised:
            return result
        return self._through(self._transform, [index], result)

    def _try(self, index: Any) -> Any:
        self._progress[0] = index
        try:
            if self.loop is not None:
                return self._asked_alone(index)
            return self._dataset[index]
        except BaseException as error:
            if isinstance(error, ENDS):
                raise BadSampleError([index]) from error
            return Raised(error)

    def _asked_alone(self, index: Any) -> Any:
        assert self.loop is not None
        if callable(self._many):
            [sample] = self.loop.submit(self._many([index])).result()
            return sample
        return self.loop.submit(self._plain[index]).result()

    def _resolve(self, indices: Sequence[Any], results: list[Any]) -> tuple[list[Any], list[Bad]]:
        """Apply the policy to the bad ones among `results`."""
        if not any(type(result) is Raised for result in results):
            return results, []
        good = [result for result in results if type(result) is not Raised]
        samples: list[Any] = []
        bad: list[Bad] = []
        for position, (index, result) in enumerate(zip(indices, results, strict=True)):
            if type(result) is not Raised:
                samples.append(result)
                continue
            stand_in = self._stand_in(result.error, index, position, good, bad)
            bad.append(Bad(index, result.error, replaced=stand_in is not SKIP))
            if stand_in is not SKIP:
                samples.append(stand_in)
        if not samples:
            samples.append(self._next_good(indices[-1], bad[-1].error, bad))
        return samples, bad

    def _stand_in(
        self, error: BaseException, index: Any, position: int, good: list[Any], bad: list[Bad]
    ) -> Any:
        """What takes the place of a bad sample: another one, or `SKIP`."""
        if self._on_error == "raise":
            raise BadSampleError([index]) from error
        if self._on_error == "skip":
            return SKIP
        if self._on_error == "replace":
            if not good:
                good.append(self._next_good(index, error, bad))
            return good[position % len(good)]
        try:
            return self._on_error(error, index)
        except BaseException as refused:
            raise BadSampleError([index]) from refused

    def _next_good(self, index: Any, error: BaseException, bad: list[Bad]) -> Any:
        """The next good sample after `index`, which raised `error`: a batch must hold something."""
        if self._progress is not self._cells:  # nobody knows what follows a key that is no number
            raise BadSampleError([index]) from error
        # A batch of one source of a mixture is collated as that source's.
        others = range(self._nb_samples) if self._source_of is None else self._source_of(index)
        for step in range(1, min(_STAND_IN_TRIES, len(others)) + 1):
            candidate = others[(index - others.start + step) % len(others)]
            result = self._try_whole(candidate)
            if type(result) is not Raised:
                return result
            error = result.error
            bad.append(Bad(candidate, error, replaced=True))
        raise BadSampleError([index]) from error


@dataclass(frozen=True, slots=True)
class Bad:
    """A sample that raised, and whether another one stands in."""

    index: Any
    error: BaseException
    replaced: bool


def _result(index: Any, future: Future[Any]) -> Any:
    try:
        return future.result()
    except BaseException as error:
        if isinstance(error, ENDS):
            raise BadSampleError([index]) from error
        return Raised(error)


class Raised:
    """Stands for a sample that raised, among those that did not."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error
