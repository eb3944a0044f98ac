"""Files that training writes: pipes without a reader, full disks; nothing waits, nothing raises."""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from swift_loader.errors import ConfigError
from swift_loader.telemetry.log import LogConfig, open_log
from swift_loader.telemetry.output import Output


def test_pipe_that_nobody_reads_is_warned_of_and_written_past(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match="benchmark_file: .* nobody reads the pipe"):
        output = Output("benchmark_file", str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output.write(b"line\n")
        output.close()


def test_pipe_whose_reader_is_late_or_goes_stops_the_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for late in (True, False):
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        output = Output("trace_file", str(path), anew=True)
        output.write(b"read\n")
        assert os.read(reader, 100) == b"read\n"
        if not late:
            os.close(reader)
        with pytest.warns(RuntimeWarning) as caught:
            output.write(bytes(1 << 20))
        output.write(bytes(1 << 20))
        assert len(caught) == 1
        assert ("keep up" if late else "BrokenPipe") in str(caught[0].message)
        assert not output.open
        output.close()
        if late:
            os.close(reader)


def test_file_is_appended_to_or_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for anew, text in ((False, b"a"), (False, b"b"), (True, b"c")):
        output = Output("logger", str(path), anew=anew)
        output.write(text)
        output.close()
        output.write(b"after the end")
    assert path.read_bytes() == b"c"


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trace_file="):
        Output("trace_file", str(tmp_path))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_log_on_a_full_disk_warns_once_and_closes_cleanly(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "consumer-0.log")
    with closing(open_log(LogConfig(path=f"{tmp_path}/"), "consumer-0")) as log:
        with pytest.warns(RuntimeWarning, match="logger: nothing more is written"):
            log.logger.info("lost")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log.logger.info("lost too")
