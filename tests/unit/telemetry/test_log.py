"""The `logger` option: what is written, where, and that the user's own sinks are left alone."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from contextlib import closing
from pathlib import Path
from types import CodeType

import loguru
import pytest

from swift_loader.errors import ConfigError
from swift_loader.telemetry.log import (
    LogConfig,
    LogHandle,
    consumer_role,
    log_config,
    open_log,
    worker_role,
)


@pytest.fixture
def users_sink():
    """A sink that the user added to his own loguru: the messages that came there."""
    messages: list[str] = []
    sink = loguru.logger.add(messages.append, level=0, format="{message}")
    yield messages
    loguru.logger.remove(sink)


def log_from_inside(handle: LogHandle, text: str) -> None:
    """As a module of the library would: loguru goes by the name of the module that calls."""
    code: CodeType = compile("logger.info(text)", "inside.py", "exec")
    exec(code, {"__name__": "swift_loader.inside", "logger": handle.logger, "text": text})


def test_prints_nothing_unless_asked_for(users_sink, capfd):
    with closing(open_log(log_config(None), consumer_role(0))) as handle:
        log_from_inside(handle, "quiet")
    assert capfd.readouterr() == ("", "")
    assert users_sink == []


def test_a_user_can_enable_the_library_in_his_own_sinks(users_sink):
    loguru.logger.enable("swift_loader")
    try:
        with closing(open_log(None, consumer_role(0))) as handle:
            log_from_inside(handle, "wanted")
    finally:
        loguru.logger.disable("swift_loader")
    assert users_sink == ["wanted\n"]


def test_one_file_a_role_and_only_our_messages_in_it(tmp_path, users_sink, capfd):
    config = log_config(str(tmp_path / "logs" / "run-"))
    with (
        closing(open_log(config, consumer_role(1))) as consumer,
        closing(open_log(config, worker_role(1, 3))) as worker,
    ):
        log_from_inside(consumer, "seed 5")
        log_from_inside(worker, "dataset built")
        loguru.logger.info("the user's own")
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert set(files) == {"run-consumer-1.log", "run-worker-1-3.log"}
    assert files["run-consumer-1.log"].count("\n") == 1
    assert files["run-consumer-1.log"].rstrip().endswith("| INFO     | consumer-1 | seed 5")
    assert files["run-worker-1-3.log"].rstrip().endswith("| worker-1-3 | dataset built")
    assert users_sink == ["the user's own\n"]
    assert capfd.readouterr().out == ""


def test_an_error_is_logged_with_its_traceback_once(tmp_path):
    with closing(open_log(LogConfig(path=f"{tmp_path}/"), "consumer-0")) as handle:
        try:
            raise KeyError("lost")
        except KeyError:
            handle.logger.exception("a sample failed")
    text = (tmp_path / "consumer-0.log").read_text()
    assert "a sample failed" in text
    assert text.count("KeyError: 'lost'") == 1


def test_stdout_is_written_to_when_asked_for(capfd):
    with closing(
        open_log(log_config({"stdout": True, "level": "warning"}), "consumer-0")
    ) as handle:
        handle.logger.info("too low")
        handle.logger.warning("shown")
    out, err = capfd.readouterr()
    assert out.count("\n") == 1
    assert "shown" in out
    assert err == ""


def test_closing_leaves_no_sink_and_no_descriptor(tmp_path):
    descriptors = len(os.listdir("/proc/self/fd"))
    users = dict(loguru.logger._core.handlers)
    for _ in range(50):
        handle = open_log(LogConfig(path=f"{tmp_path}/"), "consumer-0")
        handle.logger.info("one")
        handle.close()
        handle.close()
        handle.logger.info("after closing: nowhere")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert loguru.logger._core.handlers == users
    assert (tmp_path / "consumer-0.log").read_text().count("\n") == 50


def _worker(config: LogConfig) -> None:
    with closing(open_log(config, worker_role(0, 2))) as handle:
        handle.logger.info("from pid {}", os.getpid())


@pytest.mark.timeout(30)
def test_a_forked_worker_opens_its_own(tmp_path):
    config = LogConfig(path=f"{tmp_path}/")
    with closing(open_log(config, consumer_role(0))) as handle:
        handle.logger.info("before")
        process = multiprocessing.get_context("fork").Process(target=_worker, args=(config,))
        process.start()
        process.join()
        handle.logger.info("after")
        assert process.exitcode == 0
    assert f"from pid {process.pid}" in (tmp_path / "worker-0-2.log").read_text()
    assert (tmp_path / "consumer-0.log").read_text().count("\n") == 2


def test_the_config_travels():
    config = LogConfig(path="x-", stdout=True, level=15)
    assert pickle.loads(pickle.dumps(config)) == config


def test_what_can_be_given():
    assert log_config(None) is None
    assert log_config(Path("logs/run-")) == LogConfig(path="logs/run-")
    assert log_config({"path": "a", "stdout": True, "level": "debug"}) == LogConfig(
        "a", True, "DEBUG"
    )
    assert log_config({"stdout": True, "level": 7}) == LogConfig(None, True, 7)
    assert log_config(LogConfig(path="a")) == LogConfig(path="a")


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (True, "logger=True"),
        (3, "logger=3"),
        ("", "logger=''"),
        (b"logs/", "logger=b'logs/'"),
        ({"file": "x"}, "'file'"),
        ({}, "logger={}"),
        ({"path": None}, "'path'"),
        ({"path": 5}, "logger['path']=5"),
        ({"stdout": 1}, "logger['stdout']=1"),
        ({"path": "x", "level": "LOUD"}, "logger['level']='LOUD'"),
        ({"path": "x", "level": True}, "logger['level']=True"),
        ({"path": "x", "level": -1}, "logger['level']=-1"),
    ],
)
def test_a_bad_value_is_named(option, named):
    with pytest.raises(ConfigError) as caught:
        log_config(option)
    assert named in str(caught.value)
    assert "give" in str(caught.value) or "takes" in str(caught.value)


def test_a_file_that_can_not_be_opened_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"logger: can't write .*file/run-consumer-0\.log"):
        open_log(log_config(f"{tmp_path}/file/run-"), "consumer-0")
    with pytest.raises(ValueError, match="file name"):
        open_log(LogConfig(path=f"{tmp_path}/"), "a/b")
