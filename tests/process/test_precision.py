"""The precision of float32 products reaches workers, by torch's older and by its newer names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.process.scripts import printed_by

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(
        not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch"
    ),
]

SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader
from swift_loader import SwiftLoader

SETS = [
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    lambda: torch.set_float32_matmul_precision("highest"),
]


class Tells:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        b = torch.backends
        parts = (b, b.cuda.matmul, b.cudnn, b.cudnn.conv, b.cudnn.rnn, b.mkldnn, b.mkldnn.matmul)
        found = [part.fp32_precision for part in parts]
        try:
            return [*found, torch.get_float32_matmul_precision()]
        except RuntimeError as error:
            return [*found, type(error).__name__]


if __name__ == "__main__":
    options = {"batch_size": None, "num_workers": 1}
    results = []
    for set_it in SETS:
        set_it()
        with SwiftLoader(Tells(), start_method=sys.argv[1], validate=False, **options) as loader:
            ours = list(loader)
        results.append([ours, list(DataLoader(Tells(), multiprocessing_context="fork", **options))])
    print(json.dumps(results))
"""


@pytest.mark.timeout(170)
@pytest.mark.parametrize("method", ["main", pytest.param("fresh", marks=pytest.mark.soak)])
def test_precision_of_products_is_that_of_the_training_process(method: str, tmp_path: Path) -> None:
    printed, _ = printed_by(SCRIPT, tmp_path, method)
    results = json.loads(printed)
    assert len({str(ours) for ours, _ in results}) == 5
    for ours, torchs in results:
        assert ours == torchs
