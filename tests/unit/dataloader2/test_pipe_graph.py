"""Questions to graphs and changes of them, and their parts under workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Mapper, ShardingFilter, Shuffler
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_sharding

from swift_loader.dataloader2.graph import (
    clone,
    deserialize_datapipe,
    find_dps,
    is_sharding,
    list_dps,
    remove_dp,
    replace_dp,
    serialize_datapipe,
    set_graph_random_seed,
    traverse_dps,
)
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.dataloader2.random import SeedGenerator
from swift_loader.dataloader2.split import (
    Placeholder,
    apply_worker_sharding,
    dispatching_pipe,
    replicable_pipe,
    split_for_workers,
)

MP = SHARDING_PRIORITIES.MULTIPROCESSING


def last(graph: Any) -> Any:
    ((dp, _),) = graph.values()
    return dp


class Local(IterDataPipe[Any]):
    """Can't be copied into workers."""

    def __init__(self, *sources: IterDataPipe[Any]) -> None:
        self.sources = list(sources)

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        for source in self.sources:
            yield from source


class Seeds(IterDataPipe[Any]):
    """Yields the seed it was given."""

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source
        self.seed: int | None = None

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


class TestLooking:
    def test_every_pipe_is_listed_once_the_last_first(self) -> None:
        a, b = Wrap(range(4)).fork(2)
        end = a.map(abs).zip(b)
        pipes = list_dps(traverse_dps(end))
        assert pipes[0] is end
        assert len({id(dp) for dp in pipes}) == len(pipes)
        assert sum(isinstance(dp, type(Wrap([]))) for dp in pipes) == 1

    def test_excluding_takes_away_what_feeds_the_excluded(self) -> None:
        source = Wrap(range(4))
        shuffled = source.shuffle()
        end = shuffled.map(abs)
        assert list_dps(traverse_dps(end), exclude_dps=shuffled) == [end]
        assert list_dps(traverse_dps(end), exclude_dps=[source]) == [end, shuffled]

    def test_finding_goes_by_the_type_itself(self) -> None:
        end = Wrap(range(4)).shuffle().map(abs).map(abs)
        assert len(find_dps(traverse_dps(end), Mapper)) == 2
        assert find_dps(traverse_dps(end), IterDataPipe) == []


class TestChanging:
    def test_replacing_inside_at_the_end_and_in_collections(self) -> None:
        source = Wrap([1])
        end = source.zip(Wrap([2]))
        graph = replace_dp(traverse_dps(end), source, Wrap([7]))
        assert list(last(graph)) == [(7, 2)]
        assert last(replace_dp(graph, end, source)) is source
        assert last(replace_dp(traverse_dps(end), Wrap([0]), source)) is end

    def test_a_pipe_can_be_put_behind_the_one_it_replaces(self) -> None:
        source = Wrap([-1])
        end = source.map(str)
        assert list(last(replace_dp(traverse_dps(end), source, source.map(abs)))) == ["1"]

    def test_children_of_a_fork_follow(self) -> None:
        source = Wrap([1, 2])
        a, b = source.fork(2)
        end = a.zip(b)
        assert list(last(replace_dp(traverse_dps(end), source, Wrap([3])))) == [(3, 3)]

    def test_removing_joins_the_ends(self) -> None:
        shuffled = Wrap(range(9)).shuffle()
        end = shuffled.map(abs)
        assert list(last(remove_dp(traverse_dps(end), shuffled))) == list(range(9))
        assert isinstance(last(remove_dp(traverse_dps(end), end)), type(Wrap([])))

    def test_only_a_pipe_with_one_input_can_be_removed(self) -> None:
        zipped = Wrap([1]).zip(Wrap([2]))
        for dp in (zipped, Wrap([1])):
            with pytest.raises(RuntimeError, match="inputs"):
                remove_dp(traverse_dps(dp), dp)


class TestCopying:
    def test_lambdas_are_copied_too(self) -> None:
        pipe = Wrap(range(3)).map(lambda x: x + 1)
        assert list(clone(pipe)) == [1, 2, 3]
        assert list(deserialize_datapipe(serialize_datapipe(pipe))) == [1, 2, 3]

    def test_a_copy_shares_nothing(self) -> None:
        pipe = Wrap([[1]], deepcopy=False)
        next(iter(clone(pipe))).append(2)
        assert list(pipe) == [[1]]

    def test_other_objects_are_copied_too(self) -> None:
        assert clone({"f": lambda: 1})["f"]() == 1


class TestSeeding:
    def graph(self) -> tuple[Seeds, Seeds, IterDataPipe[Any]]:
        before = Seeds(Wrap(range(8)))
        after = Seeds(before.sharding_filter())
        return before, after, after.map(abs)

    def test_workers_share_the_seeds_before_sharding_and_not_those_after(self) -> None:
        given = []
        for worker in range(3):
            before, after, end = self.graph()
            set_graph_random_seed(end, SeedGenerator(1).spawn(worker))
            given.append((before.seed, after.seed))
        assert len({before for before, _ in given}) == 1
        assert len({after for _, after in given}) == 3

    def test_before_a_dispatcher_they_are_shared_too(self) -> None:
        given = set()
        for worker in range(2):
            before = Seeds(Wrap(range(8)))
            end = before.sharding_round_robin_dispatch(MP).map(abs)
            set_graph_random_seed(end, SeedGenerator(1).spawn(worker))
            given.add(before.seed)
        assert len(given) == 1

    def test_without_sharding_each_worker_has_its_own(self) -> None:
        given = set()
        for worker in range(2):
            pipe = Seeds(Wrap(range(8)))
            set_graph_random_seed(pipe, SeedGenerator(1).spawn(worker))
            given.add(pipe.seed)
        assert len(given) == 2

    def test_a_pipe_that_is_reached_twice_is_seeded_once(self) -> None:
        before = Seeds(Wrap(range(8)))
        a, b = before.fork(2)
        end = a.sharding_filter().zip(b.sharding_filter())
        generator = SeedGenerator(1)
        set_graph_random_seed(end, generator)
        assert before.seed == SeedGenerator(1).generate_shared_seed()


class TestSplitting:
    def test_a_plain_graph_is_replicated_whole(self) -> None:
        end = Wrap(range(8)).shuffle().sharding_filter().map(abs)
        split = split_for_workers(end)
        assert (split.dispatched, split.replicated, split.kept) == (None, end, None)

    def test_what_cant_be_copied_stays_with_all_behind_it(self) -> None:
        replicated = Wrap(range(8)).map(abs)
        end = Local(replicated).map(str)
        split = split_for_workers(end)
        assert split.replicated is replicated
        assert split.kept is end
        assert len(find_dps(traverse_dps(split.kept), Placeholder)) == 1
        assert not find_dps(traverse_dps(split.kept), type(Wrap([])))

    def test_two_separate_replicable_parts_are_refused(self) -> None:
        with pytest.raises(AssertionError, match="found 2"):
            replicable_pipe(Local(Wrap([1]), Wrap([2])))

    def test_a_part_that_is_reached_twice_is_one(self) -> None:
        source = Wrap([1])
        assert replicable_pipe(Local(source, source)) is source

    def test_a_dispatcher_is_cut_off_with_what_feeds_it(self) -> None:
        dispatcher = Wrap(range(8)).shuffle().sharding_round_robin_dispatch(MP)
        end = dispatcher.map(abs)
        split = split_for_workers(end)
        assert split.dispatched is dispatcher
        assert split.replicated is end
        kinds = {type(dp) for dp in list_dps(traverse_dps(split.replicated))}
        assert kinds == {Mapper, Placeholder}

    def test_of_several_dispatchers_the_lowest_common_pipe_is_cut(self) -> None:
        a = Wrap(range(8)).sharding_round_robin_dispatch(MP)
        b = Wrap(range(8)).sharding_round_robin_dispatch(MP)
        joined = a.map(abs).zip(b)
        assert dispatching_pipe(joined.map(str)) is joined

    def test_a_fork_behind_a_dispatcher_stays_with_the_workers(self) -> None:
        dispatcher = Wrap(range(8)).sharding_round_robin_dispatch(MP)
        a, b = dispatcher.fork(2)
        assert dispatching_pipe(a.map(abs).zip(b)) is dispatcher

    def test_crossed_ways_are_cut_where_they_all_have_met(self) -> None:
        (a1, a2) = Wrap(range(8)).sharding_round_robin_dispatch(MP).fork(2)
        (b1, b2) = Wrap(range(8)).sharding_round_robin_dispatch(MP).fork(2)
        end = a1.zip(b1).zip(a2.zip(b2))
        assert dispatching_pipe(end.map(str)) is end

    def test_a_dispatcher_behind_what_cant_be_copied_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="Put it before"):
            split_for_workers(Local(Wrap([1])).sharding_round_robin_dispatch(MP).map(abs))

    @pytest.mark.parametrize("nb_worker", [1, 2, 3, 11])
    def test_workers_shards_are_disjoint_and_complete(self, nb_worker: int) -> None:
        shards = []
        for worker in range(nb_worker):
            end = Wrap(range(10)).sharding_filter().map(abs)
            assert apply_worker_sharding(end, nb_worker, worker)
            shards.append(list(end))
        assert sorted(x for shard in shards for x in shard) == list(range(10))
        assert shards[0] == list(range(0, 10, nb_worker))

    def test_ranks_and_workers_make_one_index(self) -> None:
        end = Wrap(range(12)).sharding_filter()
        apply_sharding(end, 2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
        apply_worker_sharding(end, 3, 2)
        assert list(end) == [1 * 3 + 2, 6 + 1 * 3 + 2]

    def test_behind_a_dispatcher_nothing_is_sharded_again(self) -> None:
        dispatched = Wrap(range(8)).sharding_round_robin_dispatch(MP).sharding_filter()
        other = Wrap(range(8)).sharding_filter()
        split = split_for_workers(dispatched.zip(other))
        assert apply_worker_sharding(split.replicated, 2, 1)
        filters = find_dps(traverse_dps(split.replicated), ShardingFilter)
        assert sorted(dp.num_of_instances for dp in filters) == [1, 2]

    def test_users_own_sharding_pipes_count(self) -> None:
        class Mine(IterDataPipe[Any]):
            def __init__(self, source: IterDataPipe[Any]) -> None:
                self.source = source
                self.place = (1, 0)

            def apply_sharding(self, nb: int, index: int) -> None:
                self.place = (nb, index)

            def __iter__(self) -> Iterator[Any]:
                yield from self.source

        pipe = Mine(Wrap([1]))
        assert is_sharding(pipe)
        assert apply_worker_sharding(pipe.map(abs), 4, 3)
        assert pipe.place == (4, 3)
        assert not apply_worker_sharding(Wrap([1]).map(abs), 4, 3)
        assert not is_sharding(Shuffler(Wrap([1])))
