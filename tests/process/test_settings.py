"""What the training process has set for the whole process reaches its workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.scripts import printed_by

SCRIPT = """
import decimal, json, locale, logging, multiprocessing, os, resource, sys, warnings
import numpy
import torch
from swift_loader import SwiftLoader


def settings():
    return {
        "umask": os.umask(umask) and umask,
        "nice": os.nice(0),
        "locale": locale.setlocale(locale.LC_CTYPE),
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        "cores": resource.getrlimit(resource.RLIMIT_CORE),
        "recursion": sys.getrecursionlimit(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "level": logging.getLogger().level,
        "denormal": (torch.tensor(1e-308) / 4).item(),
        "decimal": str(decimal.Decimal(1) / 3),
        "rounding": decimal.getcontext().rounding,
        "digits": getattr(sys, "get_int_max_str_digits", int)(),
        "printed": str(numpy.array([1 / 3])),
        "torch printed": str(torch.tensor([1 / 3], dtype=torch.float64)),
        "cudnn": torch.backends.cudnn.benchmark,
        "mkldnn": torch.backends.mkldnn.deterministic,
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "anomalies": [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "loggers": [
            [one.level, one.disabled, one.propagate, [handler.level for handler in one.handlers]]
            for one in map(logging.getLogger, ("training", "off", "dill"))
        ],
    }


class Tells:
    def __init__(self, shared):
        self.shared = shared

    def __len__(self):
        return 2

    def __getitem__(self, i):
        logging.debug("sample %s", i)
        logging.getLogger("training").info("training got %s", i)
        logging.getLogger("dill").error("dill got %s", i)
        self.shared[i] = os.getpid()  # a manager's proxy: needs the key of the training process
        return settings()


umask = 0o027
if __name__ == "__main__":
    os.umask(umask)
    os.nice(3)
    locale.setlocale(locale.LC_CTYPE, "C")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(1234)
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    torch.set_flush_denormal(True)
    decimal.getcontext().prec = 5
    decimal.getcontext().rounding = decimal.ROUND_UP
    getattr(sys, "set_int_max_str_digits", int)(5000)
    numpy.set_printoptions(precision=2)
    logging.basicConfig(filename="log.txt", level=logging.DEBUG)
    torch.set_printoptions(precision=2)
    torch.backends.cudnn.benchmark = torch.backends.mkldnn.deterministic = True
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.multiprocessing.set_sharing_strategy("file_system")
    own = logging.FileHandler("own.txt")
    own.setFormatter(logging.Formatter("own: %(message)s"))
    for name in ("training", "dill"):
        logging.getLogger(name).addHandler(own)
        logging.getLogger(name).propagate = False
    logging.getLogger("training").setLevel(logging.INFO)
    logging.getLogger("off").disabled = True
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        options = {"collate_fn": list, "validate": False, "start_method": sys.argv[1]}
        with SwiftLoader(Tells, {"shared": shared}, **options) as loader:
            batches = [batch[0] for batch in loader]
        print(json.dumps([settings(), batches, sorted(shared.keys())]))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fresh", marks=pytest.mark.soak),
        "main",
        pytest.param("fork", marks=pytest.mark.soak),
    ],
)
def test_settings_of_the_process_reach_its_workers(method: str, tmp_path: Path) -> None:
    printed, _ = printed_by(SCRIPT, tmp_path, method)
    own, batches, keys = json.loads(printed)
    assert batches == [own, own]
    assert keys == [0, 1]
    log = (tmp_path / "log.txt").read_text()
    assert "sample 0" in log
    assert "sample 1" in log
    assert "got" not in log
    own_log = set((tmp_path / "own.txt").read_text().splitlines())
    assert own_log == {f"own: {name} got {i}" for name in ("dill", "training") for i in (0, 1)}
