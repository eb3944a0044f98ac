"""An exception arrives with all that it carried, soon, and however large it is."""

from __future__ import annotations

import asyncio
import email.message
import io
import json
import os
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from swift_loader.batch import in_time
from swift_loader.batch.exceptions import summary_of
from swift_loader.batch.fetch import SKIP, BadSampleError, Fetcher
from swift_loader.batch.in_time import InTime
from swift_loader.errors import WorkerError
from swift_loader.worker.faults import report, revive

SOON_S = 1.0


def raised(raise_it: Callable[[], Any]) -> BaseException:
    try:
        raise_it()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def arrived(raise_it: Callable[[], Any]) -> Any:
    fault = report(raised(raise_it), "fetching", [3])
    assert len(fault.exception or b"") + len(fault.traceback) + len(fault.message) < 2_000_000
    error = revive(fault, "worker 0, batch 1")
    told = error if isinstance(error, WorkerError) else error.__cause__
    assert type(told) is WorkerError
    assert "worker 0, batch 1, while fetching sample 3" in str(told)
    return error


def throw(error: BaseException) -> Callable[[], Any]:
    def it() -> None:
        raise error

    return it


def test_attributes_that_cannot_travel_are_left_out_alone() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = "3"
    response = io.BufferedReader(io.BytesIO(b"gone"))  # type: ignore[arg-type]
    error = arrived(throw(urllib.error.HTTPError("http://x", 404, "Not Found", headers, response)))  # type: ignore[arg-type]
    assert type(error) is urllib.error.HTTPError
    assert (error.code, error.filename, error.headers["Retry-After"]) == (404, "http://x", "3")
    assert str(error) == "HTTP Error 404: Not Found"
    assert error.fp is None
    assert not hasattr(error, "no_such_attribute"), "or Python can't show it: it asks for notes"


class Ours(ValueError):
    __slots__ = ("kept",)

    def __init__(self, *, code: int, lock: Any) -> None:
        super().__init__(f"code {code}")
        self.code, self.lock, self.kept = code, lock, "in a slot"


def test_an_exception_with_a_constructor_of_its_own_arrives() -> None:
    error = arrived(throw(Ours(code=7, lock=threading.Lock())))
    assert type(error) is Ours
    assert (str(error), error.code, error.kept, error.lock) == ("code 7", 7, "in a slot", None)


def test_what_builtin_exceptions_carry_arrives() -> None:
    error = arrived(lambda: os.stat("/no/such file"))
    assert type(error) is FileNotFoundError
    assert (error.errno, error.filename) == (2, "/no/such file")
    assert str(error) == "[Errno 2] No such file or directory: '/no/such file'"
    error = arrived(lambda: __import__("no_such_module"))
    assert type(error) is ModuleNotFoundError
    assert (error.name, str(error)) == ("no_such_module", "No module named 'no_such_module'")
    error = arrived(lambda: b"a\xff".decode())
    assert (type(error), error.start, error.object) == (UnicodeDecodeError, 1, b"a\xff")
    assert "can't decode byte 0xff in position 1" in str(error)
    error = arrived(lambda: {}["key"])
    assert (type(error), error.args) == (KeyError, ("key",))
    error = arrived(lambda: compile("a b", "file", "exec"))
    assert (type(error), error.filename, error.lineno) == (SyntaxError, "file", 1)


def test_arrays_tensors_and_notes_arrive() -> None:
    def it() -> None:
        error = ValueError("bad box", np.arange(4), torch.arange(3, dtype=torch.bfloat16))
        error.__notes__ = ["of image 7"]  # type: ignore[attr-defined]
        raise error

    error = arrived(it)
    assert error.args[0] == "bad box"
    assert error.args[1].tolist() == [0, 1, 2, 3]
    assert error.args[2].tolist() == [0, 1, 2]
    assert error.__notes__ == ["of image 7"]


def test_causes_and_contexts_arrive() -> None:
    def it() -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as inner:
                raise OSError(5, "disk") from inner
        except OSError:
            raise ValueError("outer")  # noqa: B904

    error = arrived(it)
    assert type(error) is ValueError
    disk = error.__context__
    assert (type(disk), disk.errno) == (OSError, 5)
    assert type(disk.__cause__) is KeyError
    assert error.__cause__.__context__ is disk
    cause = arrived(lambda: (_ for _ in ()).throw(ValueError("b"))).__cause__
    assert cause.__cause__ is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs exception groups")
def test_groups_arrive_with_their_members() -> None:
    group = ExceptionGroup("two", [OSError(2, "x", "name"), ExceptionGroup("in", [KeyError(1)])])  # noqa: F821
    error = arrived(throw(group))
    assert type(error) is ExceptionGroup  # noqa: F821
    assert error.message == "two"
    assert error.exceptions[0].filename == "name"
    assert error.exceptions[1].exceptions[0].args == (1,)


class Cyclic(Exception):
    def __init__(self) -> None:
        self.self = self
        self.__context__ = self.__cause__ = RuntimeError("x")
        self.__cause__.__cause__ = self


def test_exceptions_that_hold_each_other_arrive() -> None:
    assert type(arrived(throw(Cyclic()))) is Cyclic


class Document:
    def __repr__(self) -> str:
        time.sleep(60)
        return ""


LARGE: dict[str, tuple[Callable[[], Any], type]] = {
    "JSON": (lambda: json.loads("[" + "1," * 5_000_000 + "}"), json.JSONDecodeError),
    "text": (throw(ValueError("x" * 40_000_000)), ValueError),
    "list": (throw(ValueError("bad", list(range(3_000_000)))), ValueError),
    "nested": (throw(KeyError({"k": [b"x" * 40_000_000] * 20})), KeyError),
    "array": (throw(ValueError(np.zeros((10_000, 10_000), np.uint8))), ValueError),
    "tensor view": (throw(ValueError(torch.zeros(10_000, 10_000)[0, :2])), ValueError),
    "slow repr": (throw(RuntimeError([Document()] * 1_000_000)), RuntimeError),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_exception_arrives_soon_and_shortened(name: str) -> None:
    raise_it, kind = LARGE[name]
    error = raised(raise_it)
    began = time.perf_counter()
    fault = report(error, "fetching", [3])
    got = revive(fault, "worker 0")
    assert time.perf_counter() - began < SOON_S * 3  # on a busy machine
    assert type(got) is kind
    assert len(fault.exception or b"") < 2_000_000
    assert len(fault.traceback) < 300_000
    assert fault.traceback.startswith("Traceback (most recent call last)")
    if name == "JSON":
        assert got.pos == 10_000_001  # type: ignore[attr-defined]
        assert "characters in all" in got.doc  # type: ignore[attr-defined]


class Panic(BaseException):
    """As Rust's in Python."""


@pytest.mark.parametrize(
    "kind", [Panic, asyncio.CancelledError, GeneratorExit, StopIteration, SystemExit]
)
def test_what_would_mean_something_else_in_the_loop_is_a_worker_error(kind: Any) -> None:
    error = arrived(throw(kind("why")))
    assert type(error) is WorkerError
    assert type(error.__cause__) is kind
    assert f"{kind.__name__}: why" in str(error)


class Broken:
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise self.kind("no")
        return index


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [Panic, asyncio.CancelledError, GeneratorExit])
def test_on_error_gets_exceptions_of_every_kind(kind: Any, threads: int) -> None:
    got = {}
    for policy in ("skip", "replace", lambda error, index: (type(error), index)):
        fetcher = Fetcher(Broken(kind), 5, policy, threads, [-1])
        got[str(policy)[:7]], bad = fetcher.fetch([1, 2, 3])
        fetcher.close()
        assert [(one.index, type(one.error)) for one in bad] == [(2, kind)]
    assert list(got.values()) == [[1, 3], [1, 3, 3], [1, (kind, 2), 3]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("policy", ["raise", "skip", "replace", lambda error, index: SKIP])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_nobody_means_to_skip_a_call_of_exit(kind: Any, policy: Any, threads: int) -> None:
    fetcher = Fetcher(Broken(kind), 5, policy, threads, [-1])
    with pytest.raises(BadSampleError) as caught:
        fetcher.fetch([1, 2, 3])
    fetcher.close()
    assert caught.value.keys == [2]
    assert type(caught.value.__cause__) is kind


class Waits:
    """Can't be pickled, shown or read before the test says so."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked = 0

    def __reduce__(self) -> Any:
        return int, (self.wait(),)

    def __repr__(self) -> str:
        return f"waited {self.wait()}"

    def wait(self) -> int:
        self.asked += 1
        self.may_go_on.wait(60)
        return self.asked


@pytest.fixture
def waits() -> Iterator[Waits]:
    waits = Waits()
    yield waits
    waits.may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "swift_loader error report":
            thread.join()


class Slow(ValueError):
    def __init__(self, waits: Waits) -> None:
        super().__init__("slow")
        self.waits = waits

    def __str__(self) -> str:
        return repr(self.waits)


def test_an_attribute_that_takes_long_to_pickle_is_left_out_alone(waits: Waits) -> None:
    broken = ValueError("holds a socket")
    vars(broken).update(before=[1], waits=waits, after={"a": 2})
    error = arrived(throw(broken))
    assert not waits.may_go_on.is_set()
    assert type(error) is ValueError
    assert str(error) == "holds a socket"
    assert vars(error).items() >= {"before": [1], "waits": None, "after": {"a": 2}}.items()


def test_an_argument_that_takes_long_is_described(waits: Waits) -> None:
    error = arrived(throw(ValueError("holds", waits)))
    assert type(error) is ValueError
    assert error.args == ("holds", f"<{__name__}.Waits, left out>")
    assert f"ValueError: (holds, <{__name__}.Waits>)" in str(error.__cause__)
    assert not waits.may_go_on.is_set()


def test_a_text_that_takes_long_is_asked_for_once_and_not_waited_for(waits: Waits) -> None:
    def fail() -> None:
        try:
            raise Slow(waits)
        except Slow as slow:
            raise KeyError("key") from slow

    error = arrived(fail)
    assert type(error) is KeyError
    assert type(error.__cause__.__cause__) is Slow
    told = str(error.__cause__)
    assert "Slow: (its text takes too long to wait for)" in told
    assert "KeyError: 'key'" in told
    assert "raise Slow(waits)" in told
    assert waits.asked == 2, "once for its text, and once for its attribute"
    assert not waits.may_go_on.is_set()


def test_a_text_is_asked_for_once(waits: Waits) -> None:
    waits.may_go_on.set()
    fault = report(raised(throw(Slow(waits))), "fetching")
    assert fault.message == "waited 1"
    assert "Slow: waited 1\n" in fault.traceback


def test_a_summary_does_not_wait(waits: Waits) -> None:
    assert summary_of(Slow(waits)) == "Slow: (its text takes too long to wait for)"


def test_not_many_threads_are_left_behind(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "_MOST_LATE", 2)
    for _ in range(4):
        summary_of(Slow(waits))
    assert waits.asked == 2
    assert str(arrived(throw(ValueError("plain", 1)))) == "('plain', 1)"


def test_an_error_of_what_is_waited_for_is_raised() -> None:
    def fail() -> None:
        raise KeyError("key")

    with pytest.raises(KeyError, match="key"):
        InTime(60).run(fail)
