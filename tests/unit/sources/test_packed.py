"""`Packed`: what a sequence holds, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from swift_loader import ConfigError, Mixture, Packed
from swift_loader.batch.arena import Arena
from swift_loader.batch.collate import collate
from swift_loader.sources.packed import FIELDS
from swift_loader.worker.columns import gather_of

LENGTHS = [3, 0, 9, 2, 5, 21, 1]


class Documents:
    """Document `i` has the tokens ``100 * i + 1, 100 * i + 2, ...``."""

    def __init__(self, lengths: list[int] = LENGTHS, make: Any = np.array) -> None:
        self.lengths = lengths
        self.make = make
        self.reads: list[int] = []
        self.epoch = -1

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return self.make([100 * index + 1 + token for token in range(self.lengths[index])])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_sequence_says_where_its_documents_are() -> None:
    packed = Packed(Documents(), 8, separator=[7, 8], pad=-9)
    assert packed[0]["tokens"].tolist() == [1, 2, 3, 7, 8, 201, 202, 203]
    assert packed[0]["positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert packed[0]["document_ids"].tolist() == [0] * 5 + [2] * 3
    assert packed[0]["cu_seqlens"].tolist() == [0, 5, 8]
    assert packed[1]["tokens"].tolist() == [204, 205, 206, 207, 208, 209, 7, 8]
    assert packed[1]["positions"].tolist() == list(range(8))
    last = packed[len(packed) - 1]
    assert last["tokens"].tolist() == [7, 8, 601, 7, 8, -9, -9, -9]
    assert last["document_ids"].tolist() == [5] * 2 + [6] * 3 + [-1] * 3
    assert last["cu_seqlens"].tolist() == [0, 2, 5, 8]
    assert last["positions"].tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    assert last["tokens"].dtype == np.int64
    assert {last[name].dtype for name in ("positions", "document_ids", "cu_seqlens")} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize("how", ["split", "best-fit"])
@pytest.mark.parametrize("make", [np.array, list, torch.tensor])
def test_documents_are_arrays_lists_or_tensors(how: Any, make: Any) -> None:
    packed = Packed(Documents(make=make), 8, how=how, separator=7)
    tokens = np.concatenate([packed[i]["tokens"] for i in range(len(packed))])
    ids = np.concatenate([packed[i]["document_ids"] for i in range(len(packed))])
    for document, length in enumerate(LENGTHS):
        own = tokens[ids == document].tolist()
        want = [100 * document + 1 + token for token in range(length)] + [7] * (length > 0)
        assert sorted(own) == sorted(want)


def test_tokens_lie_under_a_key() -> None:
    packed = Packed(Documents(make=lambda tokens: {"input_ids": tokens}), 4, key="input_ids")
    assert packed[0]["tokens"].tolist() == [1, 2, 3, 201]


def test_a_batch_joins_the_boundaries_of_its_sequences() -> None:
    packed = Packed(Documents(), 8, how="best-fit")
    samples = [packed[i] for i in range(len(packed))]
    batch = collate(samples)
    ends = np.concatenate([sample["cu_seqlens"][1:] + 8 * i for i, sample in enumerate(samples)])
    assert batch["cu_seqlens"].tolist() == [0, *ends.tolist()]
    assert batch["cu_seqlens"].dtype == torch.int32
    flat = batch["positions"].view(-1)
    assert (flat[batch["cu_seqlens"][:-1].long()] == 0).all()
    assert (flat == 0).sum() == len(batch["cu_seqlens"]) - 1


@pytest.mark.parametrize("how", ["split", "best-fit"])
@pytest.mark.parametrize("fields", [FIELDS, ("cu_seqlens", "tokens"), ("document_ids",)])
@pytest.mark.parametrize("nbytes", [0, 100, 1 << 16])
def test_a_gathered_batch_is_that_of_its_sequences(how: Any, fields: Any, nbytes: int) -> None:
    for make in (np.array, list, torch.tensor):
        documents = Documents(make=make)
        packed = Packed(documents, 8, separator=7, how=how, fields=fields)  # type: ignore[arg-type]
        gather = gather_of(packed)
        assert gather is not None
        for keys in ([0], [2, 0, 2], list(range(len(packed)))[::-1]):
            batch = gather(keys, Arena(memoryview(bytearray(nbytes))))
            expected = collate(packed.__getitems__(keys))
            assert list(batch) == list(expected)
            for name, tensor in expected.items():
                assert batch[name].dtype == tensor.dtype
                assert torch.equal(batch[name], tensor)


def test_a_loader_of_torch_reads_sequences_too() -> None:
    packed = Packed(Documents(), 8, fields=["tokens", "positions"])
    [batch] = DataLoader(packed, batch_size=len(packed))  # type: ignore[arg-type]
    assert batch["tokens"].shape == (len(packed), 8)


def test_only_the_documents_of_a_sequence_are_read() -> None:
    documents = Documents()
    packed = Packed(documents, 8, LENGTHS)
    assert documents.reads == []
    packed[1]
    assert documents.reads == [2, 3, 4]


def test_lengths_are_counted_once_and_kept(tmp_path: Path) -> None:
    documents, path = Documents(), tmp_path / "lengths.npy"
    first = Packed(documents, 8, path)
    assert documents.reads == list(range(len(LENGTHS)))
    assert np.load(path).tolist() == LENGTHS
    documents.reads.clear()
    second = Packed(documents, 8, path)
    assert documents.reads == []
    assert [second[i]["tokens"].tolist() for i in range(len(second))] == [
        first[i]["tokens"].tolist() for i in range(len(first))
    ]
    np.save(tmp_path / "plain.npy", LENGTHS)
    assert path.stat().st_mode == (tmp_path / "plain.npy").stat().st_mode
    assert {one.name for one in tmp_path.iterdir()} == {"lengths.npy", "plain.npy"}
    path.write_text("half a file")
    with pytest.raises(ConfigError, match=r"no \.npy file of numbers: delete it"):
        Packed(documents, 8, path)


def test_documents_are_laid_in_another_order_in_each_epoch() -> None:
    documents = Documents()
    packed = Packed(documents, 8, shuffle_documents=True, seed=3)

    def epoch(number: int) -> list[int]:
        packed.set_epoch(number)
        return [token for i in range(len(packed)) for token in packed[i]["tokens"].tolist()]

    first, second = epoch(0), epoch(1)
    assert documents.epoch == 1
    assert first != second
    assert sorted(first) == sorted(second)
    assert epoch(0) == first


@pytest.mark.parametrize("how", ["split", "best-fit"])
def test_it_travels_by_pickle(how: Any) -> None:
    packed = Packed(Documents(), 8, how=how)
    again = pickle.loads(pickle.dumps(packed))
    assert [again[i]["tokens"].tolist() for i in range(len(again))] == [
        packed[i]["tokens"].tolist() for i in range(len(packed))
    ]


def test_a_document_of_another_length_is_named() -> None:
    packed = Packed(Documents(), 8, [3, 0, 9, 2, 6, 21, 1])
    with pytest.raises(ValueError, match="document 4 has 5 tokens, and `lengths` says 6"):
        packed[1], packed[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"length": 0}, "length=0"),
        ({"length": 8.0}, "length=8.0"),
        ({"how": "first-fit"}, "give 'split' or 'best-fit'"),
        ({"lengths": [1, 2]}, "there are 2, and the data set has 7 documents"),
        ({"lengths": [0.5] * 7}, "whole number a document"),
        ({"lengths": [1, 1, -1, 1, 1, 1, 1]}, "document 2 has the length -1"),
        ({"lengths": "lengths.txt"}, "the path of a .npy file"),
        ({"separator": "end"}, "give a token"),
        ({"separator": 1.5}, "give a token"),
        ({"separator": -1, "dtype": np.uint16}, "fit into dtype=uint16"),
        ({"pad": 70_000, "dtype": np.uint16}, "fit into dtype=uint16"),
        ({"pad": None}, "pad=None: give a token"),
        ({"pad": [1, 2]}, "give one token"),
        ({"dtype": torch.int32}, "a type of numpy's"),
        ({"dtype": "U3"}, "tokens are numbers"),
        ({"seed": "now"}, "seed='now': give a whole number"),
        ({"fields": ["labels"]}, "give some of"),
        ({"how": "best-fit", "shuffle_documents": True}, "stay together"),
        ({"dataset": iter([])}, "__getitem__ and __len__"),
        ({"dataset": Documents}, "built already"),
        ({"dataset": Mixture({"a": [[1, 2]]})}, "its sources can"),
        ({"lengths": "/no/folder/lengths.npy"}, "no such folder"),
    ],
)
def test_what_can_not_work_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Packed(**{"dataset": Documents(), "length": 8, **arguments})


@pytest.mark.parametrize("document", [{"ids": [1, 2]}, "a text", [[1, 2], [3, 4]]], ids=str)
@pytest.mark.parametrize("lengths", [None, [2]])
def test_a_document_that_is_no_tokens_is_shown(document: Any, lengths: Any) -> None:
    with pytest.raises(ValueError, match=r"document 0 is .* `key` says where"):
        Packed([document], 8, lengths, separator=0)[0]


def test_there_is_no_sequence_beyond_the_last() -> None:
    packed = Packed(Documents(), 8)
    with pytest.raises(IndexError, match="sequence 6 is not in"):
        packed[len(packed)]


def test_a_fraction_is_no_number_of_a_sequence() -> None:
    with pytest.raises(TypeError, match="integer"):
        Packed(Documents(), 8)[1.5]  # type: ignore[index]


@pytest.mark.parametrize("make", [np.array, list, torch.tensor])
def test_tokens_come_in_a_narrower_type_where_they_fit(make: Any) -> None:
    packed = Packed(Documents(make=make), 8, dtype=np.uint16, separator=9)
    whole = Packed(Documents(make=make), 8, separator=9)
    for index in range(len(packed)):
        assert packed[index]["tokens"].dtype == np.uint16
        assert packed[index]["tokens"].tolist() == whole[index]["tokens"].tolist()


def test_large_tokens_without_a_sign_come_exactly_beside_signed_ones() -> None:
    token = 2**53 + 1  # numpy joins uint64 and int64 to float64, which has no such number
    assert Packed([np.array([token], np.uint64)], 2, separator=0)[0]["tokens"][0] == token


@pytest.mark.parametrize(
    ("token", "dtype"), [(70_000, np.uint16), (-5, np.uint16), (1.5, np.int64), (2**24 + 1, "f4")]
)
def test_a_token_that_does_not_fit_is_named(token: Any, dtype: Any) -> None:
    packed = Packed([[1, 2], [3, token], [4]], 5, dtype=dtype)
    with pytest.raises(
        ValueError, match=f"document 1 has the token {token:.1f}".removesuffix(".0")
    ):
        packed[0]
