"""``swift-loader doctor``: what is there, what works, and what stands in the way."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from swift_loader.doctor import machine
from swift_loader.doctor.command import doctor
from swift_loader.doctor.finding import Finding, text_of
from swift_loader.version import __version__

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_doctor_tries_what_there_is_and_names_an_endpoint_that_is_silent(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("zmq", reason="needs the extra remote")
    monkeypatch.setenv("SWIFT_LOADER_KEY", str(tmp_path / "hidden"))
    silent = "tcp://127.0.0.1:9"
    assert doctor(["--json", "--endpoint", silent, "--timeout", "0.2"]) == 1
    printed = capfd.readouterr().out
    assert "SWIFT_LOADER_KEY" in printed
    found = {one["name"]: one for one in json.loads(printed)}
    assert found["swift_loader"]["value"] == __version__
    assert "works" in found['start_method="fresh"']["value"]
    assert "works" in found['start_method="fork"']["value"], found['start_method="fork"']
    assert found[silent]["broken"]
    assert {"CPUs", "descriptors", "/dev/shm", "limit of the group", "torch"} <= found.keys()


def test_few_descriptors_are_pointed_out() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        found = {one.name: one for one in machine.limits()}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "ulimit -n" in found["descriptors"].advice


def test_text_marks_what_wants_a_look() -> None:
    found = [
        Finding("one", "a", "1"),
        Finding("one", "b", "2", "raise it"),
        Finding("two", "c", "none", "install it", broken=True),
    ]
    assert text_of(found).splitlines() == [
        "one",
        f"  {'a':<26} 1",
        f"! {'b':<26} 2",
        f"{'':<29}raise it",
        "",
        "two",
        f"!!{'c':<26} none",
        f"{'':<29}install it",
    ]
