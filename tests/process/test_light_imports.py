"""What needs no torch does not wait for it: its import takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.process.scripts import ROOT, environment


@pytest.mark.parametrize(
    "module",
    [
        "swift_loader",
        "swift_loader.cli",
        "swift_loader.remote.commands",
        "swift_loader.report.command",
        "swift_loader.worker.launch",
    ],
)
def test_module_imports_without_torch(module: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; sys.exit('torch' in sys.modules)"],
        cwd=ROOT,
        env=environment(),
        check=True,
        timeout=60,
    )


def test_package_hands_out_all_its_names_and_no_others() -> None:
    import swift_loader

    for name in swift_loader.__all__:
        assert getattr(swift_loader, name).__module__.startswith("swift_loader."), name
        assert name in dir(swift_loader)
    with pytest.raises(AttributeError, match="has no attribute 'Swiftloader'"):
        swift_loader.Swiftloader  # noqa: B018
