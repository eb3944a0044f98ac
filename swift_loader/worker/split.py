"""Who splits a stream that several training processes ("ranks") read.

Exactly one party may split by rank. `stream_split` says which:

- ``"workers"``: the stream. Worker info counts the workers of this rank, as in torch.
- ``"ranks"``: the loader. Worker info counts the workers of all ranks, so a stream that splits by
  worker info splits by rank too.
- ``"auto"``: the stream, where it does that; otherwise the loader. A stream splits by rank where

  1. it is of a kind that does: made by Hugging Face's ``split_dataset_by_node``, with a node
     splitter of webdataset, Mosaic's or LitData's ``StreamingDataset``;
  2. it may have done so before: it is not the same on every rank, or its code, attributes or
     arguments speak of ``rank``, ``WORLD_SIZE`` or the like. That is doubtful, unless
  3. a worker sees it ask for both, rank and size, before its first item.

In doubt the stream splits: seeing a sample twice is better than losing one.

The training processes look for 1 and 2, and tell all workers of all ranks the same: see
`swift_loader.loader.who_splits`. Where they find nothing, a worker decides by 3 at the first item
of its first epoch, and warns: other workers may not have asked. A stream that takes the number of
its worker or of all workers from worker info, but not both, is doubtful too. One whose worker info
was asked for before there was a sign, and that asks for its rank after that, is built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from swift_loader.errors import StateError, refuse
from swift_loader.worker.place import Place
from swift_loader.worker.rank_signs import kind_that_splits, names_of_ranks, that_count
from swift_loader.worker.rank_watch import RankWatch

__all__ = ["Split"]

_WHOLE_PLACE = {"id", "num_workers"}


class Split:
    """What a worker has decided, and the place that its worker info tells."""

    def __init__(self, place: Place, index: int) -> None:
        option = place.stream_split
        self._index, self._workers = index, place.worker_per_consumer
        self._consumer, self._consumers = place.consumer_index, place.nb_consumer
        self._group = place.group is not None
        self._watch = RankWatch()
        #: whether what the stream asks for counts
        self.watches = (option == "auto" or place.split_in_doubt) and place.nb_consumer > 1
        #: what was asked of worker info: whoever asks for a place, splits by it
        self.asked: set[str] = set()
        self._asked_at_birth: set[str] = set()  # counts in every epoch
        #: "workers" or "ranks", None while there is no sign
        self.by: str | None = None if option == "auto" else option
        self.why = place.split_why or f"stream_split={option!r}"
        self.in_doubt = place.split_in_doubt
        #: whether this worker has decided by itself what others may have decided otherwise
        self.alone = False
        self._settled = False
        if option == "auto" and place.nb_consumer == 1:
            self.by, self.why = "workers", "there is one rank"

    @property
    def place(self) -> tuple[int, int]:
        """``(id, number of workers)``, of this rank's or of all."""
        if self.by == "workers":
            return self._index, self._workers
        return self._consumer * self._workers + self._index, self._consumers * self._workers

    def watching(self) -> AbstractContextManager[None]:
        """While code of the user's runs that sets the stream up, or iterates it."""
        return self._watch.open() if self.watches else nullcontext()

    def ask(self, name: str, at_birth: bool = False) -> tuple[int, int]:
        """The place, for the attribute `name` of worker info."""
        self._look_at_watch()
        self.asked.add(name)
        if at_birth:
            self._asked_at_birth.add(name)
        return self.place

    def begin_epoch(self) -> None:
        """The stream is begun: it asks again, or was told at its birth."""
        self.asked = set(self._asked_at_birth)

    def ask_for_pipes(self) -> tuple[int, int]:
        """The place for the graph of data pipes, which torch splits over the ranks of a group."""
        self.asked |= _WHOLE_PLACE
        if self._group and self.by == "workers":
            return self._consumer * self._workers + self._index, self._consumers * self._workers
        return self.place

    def look_at(self, dataset: Any, kwargs: Mapping[str, Any]) -> None:
        """Decide by the kind of the stream that was built with `kwargs`."""
        if self.by is not None:
            return
        kind = kind_that_splits(dataset)
        if kind:
            self._decide("workers", kind)
            return
        self._look_at_watch()
        names = that_count(names_of_ranks(dataset, kwargs))
        if self.by is None and names:
            self._decide("workers", f"it knows {', '.join(names[:4])}", in_doubt=True)

    def settle(self) -> bool:
        """Decide, at the first item. False: the stream was told another place, build it again.

        Raises `ConfigError` where it asks for its rank later: then data may be lost already.
        """
        if self._settled:
            self._look_again()
            return True
        self._settled = True
        before = self.place
        self._look_at_watch()
        if self.by is None and self.asked and not self.asked >= _WHOLE_PLACE:
            what = f"it takes {', '.join(sorted(self.asked))} alone from worker info"
            self._decide("workers", what, in_doubt=True)  # the rest is of its own knowledge
        if self.by is None:
            self._decide("ranks", "the stream does not split by rank")
        if self.by == "workers":
            self.watches = False
        if self.asked and self.place != before:
            self._asked_at_birth.clear()
            return False
        return True

    def resumed(self, by: str) -> None:
        """Go on as a saved state says. Raises `StateError` where an option says another thing."""
        if self.by is None:
            self._decide(by, "the loaded state says so")
        elif self.by != by and self._consumers > 1:
            raise StateError(
                f"stream_split was {by!r} when the state was saved, is now {self.by!r}: {self.why}"
            )

    def story(self) -> str:
        """The decision in a line."""
        who = {
            "workers": "the stream splits by rank, worker info is of this rank",
            "ranks": "the loader splits by rank, worker info is of all ranks",
        }
        return f"stream_split: {who[self.by or 'ranks']} ({self.why})"

    def _look_at_watch(self) -> None:
        asked = self._watch.asked
        if self.by is None and asked:
            what = f"it asks for {', '.join(asked[:4])}"
            self._decide("workers", what, in_doubt=True)  # other workers may not have asked
            self.alone = True
        elif self.in_doubt and not self.alone and self._watch.rank_and_size:
            self._decide("workers", f"it asks for {', '.join(asked[:4])}")

    def _look_again(self) -> None:
        if self._watch.rank_and_size:
            refuse(
                "stream_split",
                "auto",
                f"the stream asks for {', '.join(self._watch.asked[:4])} after its first item, and "
                "may split a second time what is split by rank already. Give stream_split="
                "'workers' if it splits by rank, else 'ranks'",
            )

    def _decide(self, by: str, why: str, in_doubt: bool = False) -> None:
        self.by, self.why, self.in_doubt = by, why, in_doubt
