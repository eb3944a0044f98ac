"""Options and errors of single pipes, against plain loops."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import random
import tarfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.dataloader2.iter import (
    CompressionType,
    SampleMultiplexer,
    ShardingRoundRobinDispatcher,
)
from swift_loader.dataloader2.iter import IterableWrapper as Wrap
from swift_loader.dataloader2.map import SequenceWrapper


def text(*contents: str | bytes) -> Any:
    return Wrap(
        [
            (f"f{i}", io.StringIO(c) if isinstance(c, str) else io.BytesIO(c))
            for i, c in enumerate(contents)
        ]
    )


class TestRows:
    table = st.lists(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1),
            min_size=1,
        ),
        min_size=1,
    )

    @given(table)
    def test_csv_rows_come_back(self, rows: list[list[str]]) -> None:
        buffer = io.StringIO(newline="")
        csv.writer(buffer).writerows(rows)
        stream = io.StringIO(buffer.getvalue(), newline="")
        assert list(Wrap([("f", stream)], deepcopy=False).parse_csv()) == rows

    def test_csv_options(self) -> None:
        raw = b"h;i\r\n1;\xff2\r\n"
        assert list(text(raw).parse_csv(delimiter=";", skip_lines=1)) == [["1", "2"]]
        assert list(text(raw).parse_csv(delimiter=";", encoding="latin-1"))[1] == ["1", "\xff2"]
        assert list(text("a,b\n").parse_csv(return_path=True, as_tuple=True)) == [
            ("f0", ("a", "b"))
        ]
        with pytest.raises(UnicodeDecodeError):
            list(text(raw).parse_csv(errors="strict"))
        with pytest.raises(ValueError, match="skip_lines"):
            text(raw).parse_csv(skip_lines=-1)

    def test_csv_dict_options(self) -> None:
        pipe = text("x\na,b\n1,2\n", "x\nc,d\n3,4\n").parse_csv_as_dict(
            skip_lines=1, return_path=True
        )
        assert list(pipe) == [("f0", {"a": "1", "b": "2"}), ("f1", {"c": "3", "d": "4"})]

    def test_lines_as_bytes_text_and_raw(self) -> None:
        assert list(text(b"a\r\nb").readlines(return_path=False)) == [b"a", b"b"]
        assert list(text(b"a\n").readlines(decode=True)) == [("f0", "a")]
        raw = text(b"a\nb\n").readlines(strip_newline=False, skip_lines=1, return_path=False)
        assert list(raw) == [b"b\n"]

    def test_streams_are_closed_when_read_and_when_given_up(self) -> None:
        streams = [io.StringIO("a\nb\n"), io.StringIO("c\nd\n")]
        pipe = Wrap([("x", streams[0]), ("y", streams[1])], deepcopy=False).readlines()
        iterator = iter(pipe)
        list(itertools.islice(iterator, 3))
        assert [stream.closed for stream in streams] == [True, False]
        del iterator
        assert streams[1].closed

    def test_json_options_and_errors(self) -> None:
        pipe = text(b'{"a": 1.5}').parse_json_files(parse_float=str)
        assert list(pipe) == [("f0", {"a": "1.5"})]
        with pytest.raises(json.JSONDecodeError):
            list(text("{").parse_json_files())

    def test_columns_of_lists_and_chosen_keys(self) -> None:
        named = Wrap([[[1, 2], [3, 4]]]).rows2columnar(["x", "y"])
        assert list(named) == [{"x": [1, 3], "y": [2, 4]}]
        assert list(Wrap([[{"a": 1, "b": 2}]]).rows2columnar(["b"])) == [{"b": [2]}]
        with pytest.raises(KeyError):
            list(Wrap([[{"a": 1}]]).rows2columnar(["b"]))
        with pytest.raises(ValueError, match="column_names"):
            list(Wrap([[[1]]]).rows2columnar())

    def test_paragraphs_by_a_joiner(self) -> None:
        pipe = Wrap([("a", 1), ("a", 2), ("b", 3), ("a", 4)]).lines_to_paragraphs(sum)
        assert list(pipe) == [("a", 3), ("b", 3), ("a", 4)]


class TestFlow:
    def test_cycling_for_ever_and_over_nothing(self) -> None:
        endless = Wrap([1, 2]).cycle()
        assert list(itertools.islice(endless, 5)) == [1, 2, 1, 2, 1]
        with pytest.raises(TypeError, match="forever"):
            len(endless)
        assert list(Wrap([]).cycle()) == []
        assert list(Wrap([1]).cycle(0)) == []

    def test_header_without_limit_and_with_unknown_lengths(self) -> None:
        assert list(Wrap(range(12)).header()) == list(range(10))
        assert list(Wrap(range(12)).header(None)) == list(range(12))
        assert len(Wrap([1]).header(None)) == 1
        unknown = Wrap([1, 2]).filter(bool)
        with pytest.warns(UserWarning, match="inferred"):
            assert len(unknown.header(9)) == 9
        with pytest.raises(TypeError):
            len(unknown.header(None))

    def test_header_takes_no_more_than_it_yields(self) -> None:
        rest = iter(range(5))
        assert list(iter(Wrap(rest, deepcopy=False).header(2))) == [0, 1]
        assert next(rest) == 2

    @pytest.mark.parametrize(
        ("call", "match"),
        [
            (lambda p: p.cycle(-1), "count"),
            (lambda p: p.repeat(1), "> 1"),
            (lambda p: p.header(-1), "limit"),
            (lambda p: p.set_length(-1), "length"),
        ],
    )
    def test_bad_numbers_are_refused(self, call: Any, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            call(Wrap([1]))

    def test_indices_go_into_dicts_only(self) -> None:
        with pytest.raises(NotImplementedError, match="dicts only"):
            list(Wrap([1]).add_index())

    @pytest.mark.parametrize("size", [None, 1, 0])
    def test_a_cache_yields_the_same_and_spares_the_source(self, size: int | None) -> None:
        made: Counter[int] = Counter()

        def make(i: int) -> torch.Tensor:
            made[i] += 1
            return torch.full((2**17,), i)  # 1 MB

        pipe = Wrap(range(4)).map(make).in_memory_cache(size)
        for _ in range(3):
            assert [int(x[0]) for x in pipe] == [0, 1, 2, 3]
        assert made[3] == (1 if size is None else 3)
        with pytest.raises(TypeError, match="to its end once"):
            len(Wrap([1]).filter(bool).in_memory_cache())

    def test_map_style_by_chosen_indices(self) -> None:
        pipe = SequenceWrapper({"a": 1, "b": 2}).to_iter_datapipe(indices=["b", "a"])
        assert (list(pipe), len(pipe)) == ([2, 1], 2)


class TestItems:
    def test_flatmap_columns_and_none(self) -> None:
        assert list(Wrap([[1, 2], [3]]).flatmap()) == [1, 2, 3]
        assert list(Wrap([(1, 2)]).flatmap(lambda x: [x, x], input_col=1)) == [2, 2]
        assert list(Wrap([(1, 2)]).flatmap(lambda a, b: [a + b], input_col=[0, 1])) == [3]

    def test_map_batches_by_columns_and_to_other_counts(self) -> None:
        assert list(Wrap(range(5)).map_batches(lambda b: [sum(b)], 2)) == [1, 5, 4]
        pairs = Wrap([(i, -i) for i in range(4)])
        assert list(pairs.map_batches(lambda b: b, 3, input_col=1)) == [0, -1, -2, -3]
        assert list(pairs.map_batches(lambda b: b[:2], 4, input_col=[1, 0])) == [[0, 0], [-1, 1]]
        assert list(pairs.flatmap(input_col=(1, 0)))[:4] == [0, 0, -1, 1]
        assert list(pairs.flatmap(lambda a, b: [a * b], input_col=(1, 0))) == [0, -1, -4, -9]
        assert list(Wrap([([1, 2], 0)]).flatmap(input_col=0)) == [1, 2]
        assert list(pairs.shuffled_flatmap(input_col=(1, 0), buffer_size=1))[:4] == [0, 0, -1, 1]
        for name in ("flatmap", "shuffled_flatmap", "threadpool_map"):
            with pytest.raises(ValueError, match="positional"):
                getattr(pairs, name)(lambda a, b: [a, b], input_col=0)

    @pytest.mark.parametrize("name", ["threadpool_map", "map"])
    @pytest.mark.parametrize(
        ("input_col", "output_col", "expected"),
        [
            (1, None, (1, 20, 3)),
            (1, -1, (1, 2, 3, 20)),
            (1, 0, (20, 2, 3)),
            ([0, 2], None, (30, 2)),
        ],
    )
    def test_columns_mean_what_they_mean_for_map(
        self, name: str, input_col: Any, output_col: Any, expected: Any
    ) -> None:
        def fn(*fields: int) -> int:
            product = 10
            for field in fields:
                product *= field
            return product

        pipe = getattr(Wrap([(1, 2, 3)]), name)(fn, input_col=input_col, output_col=output_col)
        assert list(pipe) == [expected]

    def test_threads_keep_the_order_and_pass_errors_on(self) -> None:
        def slow_first(x: int) -> int:
            if x == 7:
                raise KeyError(x)
            return torch.zeros(max(1, 10_000 * (5 - x))).numel() * 0 + x

        pipe = Wrap(range(10)).threadpool_map(slow_first, scheduled_tasks=3, max_workers=2)
        items = iter(pipe)
        assert list(itertools.islice(items, 7)) == list(range(7))
        with pytest.raises(KeyError):
            next(items)
        for bad in ({"scheduled_tasks": 0}, {"max_workers": 0}, {"output_col": 1}):
            with pytest.raises(ValueError, match=next(iter(bad))):
                Wrap([1]).threadpool_map(abs, **bad)

    def test_coroutines_by_columns_and_in_batches(self) -> None:
        async def negative(x: int) -> int:
            return -x

        pipe = Wrap([{"a": 1}, {"a": 2}]).async_map_batches(
            negative, 2, input_col="a", output_col="b"
        )
        assert list(pipe) == [{"a": 1, "b": -1}, {"a": 2, "b": -2}]
        batches = Wrap(range(3)).async_map_batches(negative, 2, flatten=False)
        assert (list(batches), len(batches)) == ([[0, -1], [-2]], 2)
        with pytest.raises(ValueError, match="coroutine"):
            Wrap([1]).async_map_batches(abs, 2)

    def test_slices_drops_and_flattens_by_kind(self) -> None:
        rows, dicts = Wrap([[0, 1, 2, 3]]), Wrap([{"a": 1, "b": {"c": 2}}])
        assert list(rows.slice(0, 4, 2)) == [[0, 2]]
        assert list(rows.slice([3, 0])) == [[3, 0]]
        assert list(dicts.slice(["a"])) == [{"a": 1}]
        assert list(dicts.slice("a")) == [{"a": 1}]
        assert list(rows.drop(-1)) == [[0, 1, 2]]
        assert list(dicts.drop("b")) == [{"a": 1}]
        assert list(dicts.flatten("b")) == [{"a": 1, "c": 2}]
        assert list(Wrap([((1, 2), (3, 4))]).flatten(1)) == [((1, 2), 3, 4)]

    def test_missing_fields_are_passed_over_with_a_warning(self) -> None:
        for pipe, expected in [
            (Wrap([(1, 2)]).drop(5), (1, 2)),
            (Wrap([[1, 2]]).slice([0, 5]), [1]),
            (Wrap([{"a": 1}]).slice(["a", "z"]), {"a": 1}),
            (Wrap([[1, [2]]]).flatten([1, 7]), [1, 2]),
        ]:
            with pytest.warns(UserWarning, match="lacks"):
                assert list(pipe) == [expected]
        with pytest.warns(UserWarning, match="twice"):
            assert list(Wrap([{"a": 1, "b": {"a": 2}}]).flatten()) == [{"a": 1}]
        with pytest.warns(UserWarning, match="ignored"):
            Wrap([[1]]).slice([0], 3)


class TestOrder:
    @given(st.lists(st.lists(st.integers())), st.integers(1, 5), st.integers(0, 99))
    def test_mixed_rows_keep_their_own_order(
        self, rows: list[list[int]], buffer_size: int, seed: int
    ) -> None:
        tagged = [[(i, j) for j in range(len(row))] for i, row in enumerate(rows)]
        mixed = list(Wrap(tagged).shuffled_flatmap(buffer_size=buffer_size).set_seed(seed))
        assert sorted(mixed) == sorted(itertools.chain.from_iterable(tagged))
        for i, row in enumerate(tagged):
            assert [tag for tag in mixed if tag[0] == i] == row

    def test_shuffling_can_be_turned_off(self) -> None:
        rows = Wrap([list(range(20)), list(range(20, 40))])
        assert list(rows.shuffled_flatmap().set_shuffle(False)) == list(range(40))
        assert list(rows.in_batch_shuffle().set_shuffle(False)) == [*rows]

    def test_a_batch_keeps_its_type(self) -> None:
        batches = list(Wrap(range(10)).batch(5).in_batch_shuffle())
        assert type(batches[0]).__name__ == "DataChunk"
        assert list(Wrap(batches).unbatch()) == list(itertools.chain.from_iterable(batches))

    @given(st.integers(0, 60), st.integers(0, 99))
    def test_a_split_is_disjoint_complete_and_the_same_every_time(self, n: int, seed: int) -> None:
        groups = Wrap(range(n)).random_split({"a": 0.2, "b": 0.8}, seed)
        first = [list(group) for group in groups]
        assert sorted(first[0] + first[1]) == list(range(n))
        assert [list(group) for group in groups] == first

    @given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 99))
    def test_whole_weights_are_met_exactly(self, a: int, b: int, seed: int) -> None:
        groups = Wrap(range(a + b)).random_split({"a": a, "b": b}, seed)
        assert [len(list(group)) for group in groups] == [a, b] == [len(group) for group in groups]
        shares = Wrap(range(10 * a)).random_split({"a": 0.8, "b": 0.2}, seed)
        assert [len(list(group)) for group in shares] == [8 * a, 2 * a]

    def test_a_split_can_be_changed_and_picked(self) -> None:
        a, b = Wrap(range(50)).random_split({"a": 1, "b": 1}, 0)
        picked = Wrap(range(50)).random_split({"a": 1, "b": 1}, 0, target="b")
        before = list(a)
        assert list(picked) == list(b)
        b.override_seed(1)
        assert list(a) != before
        assert [len(a), len(b)] == [25, 25]
        with pytest.raises(TypeError, match="not known"):
            len(Wrap(range(50)).random_split({"a": 1, "b": 2}, 0, target="a"))
        with pytest.raises(KeyError):
            Wrap([]).random_split({"a": 1}, 0, target="z")
        with pytest.raises(ValueError, match="group"):
            Wrap([]).random_split({}, 0)


class TestBuckets:
    @given(st.integers(0, 60), st.integers(1, 7), st.booleans(), st.booleans(), st.booleans())
    def test_bucketbatch_loses_nothing(
        self, n: int, batch_size: int, drop_last: bool, in_batch: bool, sort: bool
    ) -> None:
        pipe = Wrap(range(n)).bucketbatch(
            batch_size,
            drop_last,
            batch_num=2,
            bucket_num=2,
            sort_key=sorted if sort else None,
            use_in_batch_shuffle=in_batch,
        )
        batches = list(pipe)
        sizes = sorted(map(len, batches), reverse=True)
        full, rest = divmod(n, batch_size)
        assert sizes == [batch_size] * full + ([rest] if rest and not drop_last else [])
        if not drop_last:
            assert sorted(itertools.chain.from_iterable(batches)) == list(range(n))

    def test_batches_of_a_sorted_bucket_hold_neighbours(self) -> None:
        items = list(range(12))
        random.Random(0).shuffle(items)
        batches = list(Wrap(items).bucketbatch(3, batch_num=4, sort_key=sorted))
        assert batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]  # one bucket: in order
        batches = list(Wrap(items).bucketbatch(3, batch_num=2, bucket_num=2, sort_key=sorted))
        assert all(batch == sorted(batch) for batch in batches)

    @given(
        st.lists(st.integers(0, 12)),
        st.integers(1, 12),
        st.integers(1, 10),
        st.booleans(),
    )
    def test_token_counts_are_kept(
        self, lengths: list[int], limit: int, buffer_size: int, padding: bool
    ) -> None:
        words = ["x" * length for length in lengths]
        pipe = Wrap(words).max_token_bucketize(
            limit, buffer_size=buffer_size, include_padding=padding
        )
        batches = list(pipe)
        for batch in batches:
            sizes = [len(word) for word in batch]
            assert (max(sizes) * len(sizes) if padding else sum(sizes)) <= limit
        kept = sorted(word for word in words if len(word) <= limit)
        assert sorted(itertools.chain.from_iterable(batches)) == kept

    def test_the_documented_examples(self) -> None:
        words = ["1", "11", "1", "1111", "111", "1", "11", "11", "111"]
        assert list(Wrap(words).max_token_bucketize(5)) == [
            ["1", "1", "1", "11"], ["11", "11"], ["111"], ["111"], ["1111"],
        ]  # fmt: skip
        assert list(Wrap(words).max_token_bucketize(4, buffer_size=4)) == [
            ["1", "1", "1"], ["11", "11"], ["11"], ["111"], ["111"], ["1111"],
        ]  # fmt: skip

    def test_items_are_never_compared(self) -> None:
        items = [torch.zeros(2), torch.zeros(2), torch.zeros(1)]
        assert [len(b) for b in Wrap(items).max_token_bucketize(4)] == [2, 1]

    @pytest.mark.parametrize(
        "options",
        [{"min_len": -1}, {"min_len": 3, "max_len": 2}, {"max_len": 9}, {"buffer_size": 0}],
    )
    def test_limits_that_contradict_are_refused(self, options: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=r"min_len|max_len|buffer_size"):
            Wrap([]).max_token_bucketize(5, **options)


class TestMixing:
    def test_weights_decide_and_exhausted_pipes_are_left_out(self) -> None:
        rare, often = Wrap([0] * 100), Wrap([1] * 900)
        mixed = list(SampleMultiplexer({rare: 1, often: 9}, seed=0))
        assert Counter(mixed) == {0: 100, 1: 900}
        assert 20 < mixed[:500].count(0) < 80
        assert list(SampleMultiplexer({rare: 1, often: 9}, seed=0)) == mixed
        by_name = rare.sample_mux(often, weights=[1, 9], seed=0)
        assert list(by_name) == list(by_name) == mixed

    def test_bad_weights_are_refused(self) -> None:
        for weights in ({}, {Wrap([1]): 0}):
            with pytest.raises(ValueError, match=r"at least one|positive"):
                SampleMultiplexer(weights)
        with pytest.raises(ValueError, match="3 weights for 2 pipes"):
            Wrap([1]).sample_mux(Wrap([2]), weights=[1, 2, 3])

    @given(st.permutations(range(8)), st.permutations(range(8)))
    def test_joining_by_key_keeps_the_first_order(self, left: list[int], right: list[int]) -> None:
        pipe = Wrap(left).zip_with_iter(
            Wrap([(r, "x") for r in right]), key_fn=int, ref_key_fn=lambda p: p[0], keep_key=True
        )
        assert list(pipe) == [(x, (x, (x, "x"))) for x in left]

    def test_what_cant_be_joined_is_an_error(self) -> None:
        with pytest.raises(BufferError, match="key 9"):
            list(Wrap([9]).zip_with_iter(Wrap([1, 2]), key_fn=int))
        with pytest.raises(ValueError, match="twice"):
            list(Wrap([2]).zip_with_iter(Wrap([1, 1, 2]), key_fn=int))
        with (
            pytest.warns(UserWarning, match="drops its oldest"),
            pytest.raises(BufferError, match="buffer_size"),
        ):
            list(Wrap([3, 1]).zip_with_iter(Wrap([1, 2, 3]), key_fn=int, buffer_size=1))
        with pytest.raises(KeyError, match="not in the given"):
            list(Wrap([9]).zip_with_map(SequenceWrapper("ab"), key_fn=int))
        with pytest.raises(TypeError, match="IterDataPipe"):
            Wrap([1]).zip_with_iter([1], key_fn=int)
        with pytest.raises(TypeError, match="MapDataPipe"):
            Wrap([1]).zip_with_map([1], key_fn=int)

    def test_joined_items_can_be_merged(self) -> None:
        pipe = Wrap([1]).zip_with_map(
            SequenceWrapper([10, 20]), key_fn=int, merge_fn=lambda a, b: a + b
        )
        assert list(pipe) == [21]
        assert list(Wrap([1]).zip_with_iter(Wrap([1]), int, merge_fn=lambda a, b: a + b)) == [2]

    def test_longest_of_nothing(self) -> None:
        assert list(Wrap([]).mux_longest(Wrap([None]))) == [None]
        assert list(Wrap([]).zip_longest(Wrap([1]))) == [(None, 1)]


class TestSplitting:
    @given(st.integers(0, 30), st.integers(1, 5))
    def test_turns(self, n: int, nb_turn: int) -> None:
        turns = Wrap(range(n)).round_robin_demux(nb_turn)
        assert [len(turn) for turn in turns] == [len(range(i, n, nb_turn)) for i in range(nb_turn)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [list(turn) for turn in turns] == [
                list(range(i, n, nb_turn)) for i in range(nb_turn)
            ]

    def test_a_full_buffer_is_an_error(self) -> None:
        first, _ = Wrap(range(9)).round_robin_demux(2, buffer_size=2)
        with pytest.raises(BufferError, match="buffer size 2"):
            list(first)

    def test_fields_can_be_skipped(self) -> None:
        first, second = Wrap([(1, 2), (3, 4)]).unzip(2)
        iter(first)
        iterator = iter(second)
        assert next(iterator) == 2
        iter(first)  # the children share one pass, which its second time begins anew
        with pytest.raises(RuntimeError, match="iterator has been invalidated"):
            next(iterator)
        (only,) = Wrap([(1, 2, 3)]).unzip(3, columns_to_skip=[0, 2])
        assert list(only) == [2]
        first, _ = SequenceWrapper([(1, 2), (3, 4)]).unzip(2)
        assert list(first) == [1, 3]
        for source in (Wrap([(1, 2)]), SequenceWrapper([(1, 2)])):
            for skip in ([0, 1], [5]):
                with pytest.raises(ValueError, match="no field left"):
                    source.unzip(2, columns_to_skip=skip)
        with pytest.raises(ValueError, match="num_instances"):
            Wrap([]).round_robin_demux(0)
        for longest in (Wrap([1]).zip_longest, Wrap([1]).mux_longest):
            with pytest.raises(TypeError, match="no data pipe"):
                longest([1, 2])


class TestFiles:
    def test_listing_opening_and_saving_by_fsspec(self, tmp_path: Path) -> None:
        pytest.importorskip("fsspec")
        saved = Wrap([("b.txt", "B"), ("a.txt", "A"), ("c.bin", "C")]).save_by_fsspec(
            filepath_fn=lambda name: str(tmp_path / name)
        )
        assert len(list(saved)) == 3
        listed = Wrap([str(tmp_path)]).list_files_by_fsspec(masks="*.txt")
        assert list(listed) == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
        opened = listed.open_files_by_fsspec(mode="rb").readlines(return_path=False)
        assert list(opened) == [b"A", b"B"]
        with_protocol = Wrap([f"file://{tmp_path}"]).list_files_by_fsspec(masks="c*")
        assert list(with_protocol) == [f"file://{tmp_path}/c.bin"]

    def test_stores_of_fsspec_keep_their_protocol(self) -> None:
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/here/x.csv", b"1,2\n")
        pipe = Wrap(["memory://here"]).list_files_by_fsspec().open_files_by_fsspec().parse_csv()
        assert list(pipe) == [["1", "2"]]

    def test_saving_makes_folders(self, tmp_path: Path) -> None:
        pipe = Wrap([("x/y.bin", b"1")]).save_to_disk("wb", lambda name: str(tmp_path / name))
        (path,) = list(pipe)
        assert Path(path).read_bytes() == b"1"

    def test_hashes(self) -> None:
        md5 = "9dd4e461268c8034f5c8564e155c67a6"
        stream = io.BytesIO(b"x")
        ((_, same),) = Wrap([("f", stream)], deepcopy=False).check_hash({"f": md5}, "md5")
        assert same.read() == b"x"
        assert list(Wrap([("f", "x")]).check_hash({"f": md5}, "md5")) == [("f", "x")]
        with pytest.raises(RuntimeError, match="expected 00"):
            list(Wrap([("f", b"x")]).check_hash({"f": "00"}))
        with pytest.raises(RuntimeError, match="Unspecified"):
            list(Wrap([("f", b"x")]).check_hash({}))
        with pytest.raises(ValueError, match="hash_type"):
            Wrap([]).check_hash({}, "crc")

    def test_names_of_shards(self) -> None:
        names = ["a-{1..2}-{08..09}.tar", "plain"]
        assert list(Wrap(names).shard_expand()) == [
            "a-1-08.tar", "a-1-09.tar", "a-2-08.tar", "a-2-09.tar", "plain",
        ]  # fmt: skip
        with pytest.raises(ValueError, match="goes down"):
            list(Wrap(["{2..1}"]).shard_expand())


class TestArchives:
    def archives(self) -> dict[str, bytes]:
        tar, gz_tar, zipped = io.BytesIO(), io.BytesIO(), io.BytesIO()
        for buffer, mode in ((tar, "w"), (gz_tar, "w:gz")):
            with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
                folder = tarfile.TarInfo("d")
                folder.type = tarfile.DIRTYPE
                archive.addfile(folder)
                for name in ("d/a", "d/b"):
                    info = tarfile.TarInfo(name)
                    info.size = 5
                    archive.addfile(info, io.BytesIO(name.encode() + b"::"))
        with zipfile.ZipFile(zipped, "w") as archive:
            archive.writestr("d/", "")
            archive.writestr("d/a", "d/a::")
            archive.writestr("d/b", "d/b::")
        return {"x.tar": tar.getvalue(), "x.tar.gz": gz_tar.getvalue(), "x.zip": zipped.getvalue()}

    @pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
    def test_members_in_order_readable_later_too(self, name: str) -> None:
        pipe = Wrap([(name, io.BytesIO(self.archives()[name]))])
        members = list(pipe.load_from_zip() if name.endswith("zip") else pipe.load_from_tar())
        assert [path for path, _ in members] == [f"{name}/d/a", f"{name}/d/b"]
        assert [stream.read() for _, stream in members] == [b"d/a::", b"d/b::"]

    def test_a_tar_that_decompress_has_opened_is_read_too(self) -> None:
        pipe = Wrap([("x.tar.gz", io.BytesIO(self.archives()["x.tar.gz"]))])
        members = pipe.decompress().load_from_tar()
        assert [stream.read() for _, stream in members] == [b"d/a::", b"d/b::"]

    @pytest.mark.parametrize("kind", ["tar", "zip"])
    @pytest.mark.parametrize("name", ["/etc/x", "//x", "a/../b", "../x", "a/../../x", "a\x1b[2J"])
    def test_names_of_members_stay_below_the_archives_folder(self, kind: str, name: str) -> None:
        buffer = io.BytesIO()
        if kind == "tar":
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.addfile(tarfile.TarInfo(name))
        else:
            with zipfile.ZipFile(buffer, "w") as zipped:
                zipped.writestr(name, "")
        pipe = Wrap([("in/x", io.BytesIO(buffer.getvalue()))])
        loaded = pipe.load_from_tar() if kind == "tar" else pipe.load_from_zip()
        if name in ("/etc/x", "//x", "a/../b"):
            ((path, _),) = loaded
            assert path.startswith("in/x/")
            assert ".." not in path
        else:
            with pytest.raises(ValueError, match="leads out"):
                list(loaded)

    def test_a_stream_that_cant_seek_is_read_once(self) -> None:
        class Pipe(io.RawIOBase):
            def __init__(self, data: bytes) -> None:
                self.data = io.BytesIO(data)

            def readable(self) -> bool:
                return True

            def readinto(self, buffer: Any) -> int:
                return self.data.readinto(buffer)

        pipe = Wrap([("x.tar", Pipe(self.archives()["x.tar"]))], deepcopy=False).load_from_tar()
        assert [stream.read() for _, stream in pipe] == [b"d/a::", b"d/b::"]

    def test_files_from_disk_are_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(self.archives()["x.tar"])
        opened = list(Wrap([str(path)]).open_files("b"))
        stream = opened[0][1]
        members = list(Wrap(opened, deepcopy=False).load_from_tar())
        assert not stream.closed
        del members, opened
        assert stream.closed

    def test_compressed_files(self) -> None:
        packed = {
            "a.gz": gzip.compress(b"x"),
            "a.xz": lzma.compress(b"x"),
            "a.bz2": bz2.compress(b"x"),
        }
        streams = [(name, io.BytesIO(data)) for name, data in packed.items()]
        assert [s.read() for _, s in Wrap(streams).decompress()] == [b"x"] * 3
        named = Wrap([("odd", io.BytesIO(packed["a.gz"]))])
        assert [s.read() for _, s in named.decompress(CompressionType.GZIP)] == [b"x"]
        assert [s.read() for _, s in named.extract("gzip")] == [b"x"]
        ((_, tar),) = Wrap([("x.tar", io.BytesIO(self.archives()["x.tar"]))]).decompress()
        assert tar.getnames() == ["d", "d/a", "d/b"]
        ((path, stream),) = Wrap([("a.bz2", io.BytesIO(packed["a.bz2"]))]).load_from_bz2()
        assert (path, stream.read()) == ("a", b"x")
        ((path, stream),) = Wrap([("a.xz", io.BytesIO(packed["a.xz"]))]).load_from_xz()
        assert (path, stream.read()) == ("a", b"x")
        with pytest.raises(RuntimeError, match="does not know the suffix of odd"):
            list(named.decompress())
        with pytest.raises(ValueError, match="rar"):
            named.decompress("rar")

    def test_samples_of_a_webdataset(self) -> None:
        pairs = [("d.x/1.a.b", 1), ("d.x/1.c", 2), ("d.x/2.a", 3), ("e/2.a", 4)]
        assert list(Wrap(pairs).webdataset()) == [
            {"__key__": "d.x/1", ".a.b": 1, ".c": 2},
            {"__key__": "d.x/2", ".a": 3},
            {"__key__": "e/2", ".a": 4},
        ]
        with pytest.raises(ValueError, match="twice"):
            list(Wrap([("1.a", 1), ("1.a", 2)]).webdataset())


class TestConverting:
    def test_to_map_and_back(self) -> None:
        pipe = Wrap([("a", 1), ("b", 2), ("a", 3)]).to_map_datapipe()
        assert (pipe["a"], pipe["b"]) == (3, 2)
        with pytest.raises(IndexError, match="'z'"):
            pipe["z"]
        keyed = Wrap([5, 6]).to_map_datapipe(lambda x: (x - 5, x))
        assert list(keyed.to_iter_datapipe()) == [5, 6]
        with pytest.raises(ValueError, match="pair"):
            _ = Wrap([1]).to_map_datapipe()[0]
        unknown = Wrap([(0, 0), (1, 1)]).filter(lambda p: p[0] > 0).to_map_datapipe()
        assert len(unknown) == 1

    def test_map_style_caches(self) -> None:
        made: Counter[int] = Counter()

        def make(i: int) -> int:
            made[i] += 1
            return i

        pipe = SequenceWrapper(range(3)).map(make).in_memory_cache()
        assert [pipe[0], pipe[0], len(pipe)] == [0, 0, 3]
        assert made == {0: 1}


class TestSharding:
    @pytest.mark.parametrize("group", [None, "MULTIPROCESSING"])
    def test_a_dispatcher_wants_its_group_named(self, group: Any) -> None:
        with pytest.raises(NotImplementedError, match="MULTIPROCESSING"):
            ShardingRoundRobinDispatcher(Wrap([1]), group)

    @given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4))
    def test_shards_by_batch_have_the_batches_of_one_process(
        self, n: int, batch_size: int, nb_worker: int
    ) -> None:
        from torch.utils.data.graph_settings import apply_sharding

        whole = list(Wrap(range(n)).batch(batch_size))
        shards = []
        for worker in range(nb_worker):
            pipe = Wrap(range(n)).shard_by_batch(batch_size).map(abs).batch(batch_size)
            apply_sharding(pipe, nb_worker, worker)
            shards.append(list(pipe))
        by_turns = itertools.chain.from_iterable(itertools.zip_longest(*shards))
        assert [batch for batch in by_turns if batch is not None] == whole


def test_pinning_needs_a_cuda_device() -> None:
    if torch.cuda.is_available():
        pinned = list(Wrap([{"x": torch.ones(2)}]).pin_memory())
        assert pinned[0]["x"].is_pinned()
    else:
        with pytest.raises(RuntimeError, match="CUDA"):
            Wrap([1]).pin_memory()
