"""Frames: what is packed is unpacked, and nothing else is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_loader.order.part import Number
from swift_loader.pipeline.link import Crashed, NotMade, Refused, Up
from swift_loader.plan import Plan
from swift_loader.remote import messages
from swift_loader.remote.frames import (
    SHORT_BYTES,
    bundled,
    checked,
    pack_frames,
    sealed,
    unpack_frames,
)
from swift_loader.remote.messages import DamagedError, FrameError
from swift_loader.transport.messages import (
    BadSample,
    ErrorReport,
    Forget,
    SetPlan,
    StageTimes,
)

FAULT = ErrorReport(b"\x80\x05N.", "ValueError", "broken \ud7ff", "Traceback ...", "fetching", (3,))
PLAN = Plan(100, 4, 2, True, 20, 2**64 - 1, "pad", ((0, 10), (20, 40)))
MESSAGES = [
    messages.Hello(1, {"python": "3.11"}, 2**33, "ab" * 32, 0, 2, 3, 2**63 - 1, 4, 2),
    messages.Chunk(2**40, b"data"),
    SetPlan(7, PLAN),
    SetPlan(0, Plan(10, 1, 1, False, 0, 0)),
    messages.MakeFrame(2**63, Number(2**32 - 1, 2**40, 2**50)),
    messages.MakeFrame(1, Number(0, 0, 0), b"12345678" * 5),
    Forget(frozenset()),
    Forget(frozenset({1, 2**63})),
    messages.AskStacks(),
    messages.AskHere(),
    messages.Bye(),
    messages.AskStatus(),
    messages.Attach(3, "ab"),
    messages.Welcome(3, "ab", 8, True),
    Up(10**12, "Images", 8, 0.25),
    Up(None, ""),
    Refused(FAULT),
    messages.MadeFrame(5, 64, StageTimes(0.5, 0.25, 0.0), b"skeleton", (), b"batch"),
    messages.MadeFrame(
        5, 64, StageTimes(0, 0, 0), b"", (BadSample(3, "ValueError: x", True),), b""
    ),
    NotMade(9, None),
    NotMade(9, FAULT),
    Crashed("worker 1 was killed", None),
    Crashed("worker 1 was killed", 2, 33),
    messages.Stacks("File ..."),
    messages.Here(),
    messages.Ping(),
    messages.Closing("it ends"),
    messages.Status({"sessions": [{"workers": 1}]}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_message_arrives_as_it_was_sent(message: messages.Message) -> None:
    assert list(unpack_frames(pack_frames(message))) == [message]


def test_several_messages_travel_as_one() -> None:
    run = [frame for message in MESSAGES for frame in pack_frames(message)]
    assert list(unpack_frames(run)) == MESSAGES


@given(
    st.lists(
        st.one_of(
            st.sampled_from([m for m in MESSAGES if not isinstance(m, messages.Chunk)]),
            st.builds(
                lambda skeleton, data: messages.MadeFrame(
                    1,
                    2,
                    StageTimes(0, 0, 0),
                    bytes([skeleton % 251]) * skeleton,
                    (),
                    b"\x40" * data,
                ),
                st.sampled_from([0, 9, SHORT_BYTES - 100, SHORT_BYTES]),
                st.sampled_from([0, 1, 99, SHORT_BYTES - 99, SHORT_BYTES, SHORT_BYTES + 1, 10**6]),
            ),
        ),
        max_size=40,
    )
)
def test_short_frames_travel_in_bundles(sent: list[messages.Message]) -> None:
    run = [frame for message in sent for frame in pack_frames(message)]
    fewer = bundled(run)
    assert list(unpack_frames(fewer)) == sent
    pairs = [len(a) + len(b) for a, b in pairwise(fewer) if max(len(a), len(b)) <= SHORT_BYTES]
    assert all(together > SHORT_BYTES for together in pairs)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_message_cut_short_anywhere_is_refused_or_another_valid_one(
    message: messages.Message,
) -> None:
    first, *rest = pack_frames(message)
    for length in range(len(first)):
        _unpack_or_refuse([first[:length], *rest])


@settings(max_examples=300)
@given(
    st.sampled_from(MESSAGES),
    st.integers(0, 2**16),
    st.binary(min_size=1, max_size=8),
)
def test_mutated_message_is_refused_or_another_valid_one(
    message: messages.Message, at: int, patch: bytes
) -> None:
    first, *rest = pack_frames(message)
    changed = bytearray(first)
    at %= len(changed)
    changed[at : at + len(patch)] = patch
    _unpack_or_refuse([bytes(changed), *rest])


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(MESSAGES), min_size=2, max_size=4),
    st.integers(0, 2**16),
    st.binary(max_size=8),
)
def test_mutated_bundle_is_refused_or_another_valid_one(
    run: list[messages.Message], at: int, patch: bytes
) -> None:
    bundle = bytearray(bundled([pack_frames(message)[0] for message in run])[0])
    at %= len(bundle)
    bundle[at : at + len(patch)] = patch
    _unpack_or_refuse([bytes(bundle)])
    _unpack_or_refuse([bytes(bundle[:at])])


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_random_frames_are_refused_or_valid(random: list[bytes]) -> None:
    _unpack_or_refuse(random)


PING = pack_frames(messages.Ping())[0]


def body(kind: int, fields: Any) -> bytes:
    """A frame of the kind with this number, whatever its fields are."""
    return bytes([kind]) + msgspec.msgpack.encode(fields)


HELLO = msgspec.to_builtins(MESSAGES[0])
PLAN_FIELDS = msgspec.to_builtins(PLAN)
FAULT_FIELDS = msgspec.to_builtins(FAULT, builtin_types=[bytes])


@pytest.mark.parametrize(
    "run",
    [
        [b""],
        [b"\xff"],
        [b"\x01{"],
        [body(1, [])],
        [body(1, {})],
        [b"\x01" + b"\x91" * 100_000],
        [b"\x01\xdd\xff\xff\xff\xff"],
        [b"\x01\xdf\xff\xff\xff\xff\xa1a"],
        [b"\x27\x81\xa4text\xdb\xff\xff\xff\xff"],
        [b"\x27\x81\xa4text\xa1\xff"],
        [b"\x05\x81\xa7tickets\xdd\xff\xff\xff\xff\x01"],
        [b"\x2a\x81\xa5facts" + b"\x81\xa1a" * 100_000 + b"\xc0"],
        [b"\x28" + b"\x80" * (1 << 23)],
        [PING] * 5000,
        [body(7, {"more": 1})],
        [body(1, {**HELLO, "more": 1})],
        [body(1, {**HELLO, "consumer_index": -1})],
        [body(1, {**HELLO, "nb_consumer": 0})],
        [body(1, {**HELLO, "worker_step": 2**32})],
        [body(1, {**HELLO, "payload_sha256": "AB" * 32})],
        [body(1, {**HELLO, "seed": 1.5})],
        [body(1, {**HELLO, "seed": True})],
        [body(1, {**HELLO, "versions": {"python": 3}})],
        [body(1, {**HELLO, "versions": {str(i): "1" for i in range(100)}})],
        [body(9, {"session": 1, "token": "0" * 1000})],
        [body(33, {"session": 1, "token": "", "capacity": 0, "need_payload": True})],
        [b"\x02"],
        [pack_frames(messages.Chunk(0, b"x"))[0], b"x" * ((1 << 20) + 1)],
        [body(3, {"plan_id": 0, "plan": {"nb_samples": -1}})],
        [body(3, {"plan_id": 0, "plan": {**PLAN_FIELDS, "more": 1}})],
        [body(3, {"plan_id": 0, "plan": {**PLAN_FIELDS, "batch_size": 0}})],
        [body(3, {"plan_id": 0, "plan": {**PLAN_FIELDS, "tail": "no"}})],
        [body(3, {"plan_id": 0, "plan": {**PLAN_FIELDS, "spans": [[5, 4]]}})],
        [body(3, {"plan_id": -1, "plan": PLAN_FIELDS})],
        [body(3, {"plan_id": 2**32, "plan": PLAN_FIELDS})],
        [body(35, {"fault": None})],
        [body(35, {"fault": {**FAULT_FIELDS, "more": 1}})],
        [body(35, {"fault": {**FAULT_FIELDS, "exception": "text"}})],
        [body(37, {"ticket": 1, "fault": {}})],
        [b"\x40\x01\0\0"],
        [b"\x40\x04\0\0\0" + PING],
        [b"\x40" + (b"\x02\0\0\0" + PING) * 12_000],
        bundled(2 * bundled(2 * [PING])),
        [pack_frames(messages.MadeFrame(5, 64, StageTimes(0, 0, 0), b"", (), b"x" * 20_000))[0]],
    ],
    ids=range(44),
)
def test_what_can_not_be_is_refused(run: list[bytes]) -> None:
    with pytest.raises(FrameError):
        list(unpack_frames(run))


def _unpack_or_refuse(run: list[bytes]) -> None:
    try:
        told = list(unpack_frames(run))
    except FrameError:
        return
    for message in told:
        assert isinstance(message, messages.Message)


def test_text_that_is_no_unicode_arrives_legibly() -> None:
    name = "caf\udce9.png"  # as `os.fsdecode` gives a Latin-1 name
    fault = ErrorReport(b"N.", "OSError", f"no {name}", "Traceback", "fetching", (3,))
    (told,) = unpack_frames(pack_frames(NotMade(9, fault)))
    assert isinstance(told, NotMade)
    assert told.fault is not None
    assert (told.fault.message, told.fault.exception) == ("no caf\\udce9.png", b"N.")


@pytest.mark.parametrize(
    "secret", [messages.Attach(3, "s3cret"), messages.Welcome(3, "s3cret", 8, True)]
)
def test_token_is_in_no_repr(secret: messages.Message) -> None:
    assert "s3cret" not in repr(secret)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=4), st.data())
def test_flipped_bit_on_a_line_without_a_key_is_noticed(frames: list[bytes], data: Any) -> None:
    told = sealed(frames)
    assert checked(told) == frames
    which = data.draw(st.integers(0, len(told) - 1))
    bit = data.draw(st.integers(0, 8 * len(told[which]) - 1))
    changed = bytearray(told[which])
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedError):
        checked([*told[:which], bytes(changed), *told[which + 1 :]])


@pytest.mark.parametrize("run", [[], [b""], [b"123"], [b"1234", b"x"]])
def test_message_without_a_checksum_is_damaged(run: list[bytes]) -> None:
    with pytest.raises(DamagedError):
        checked(run)
