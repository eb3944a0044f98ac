"""What is released: a wheel and an sdist that are whole, install, and work without the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path

import pytest

import swift_loader

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).parents[2]
NEEDED = ("build", "twine", "check_wheel_contents")
needs_tools = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason="needs build, twine and check-wheel-contents"
)
SCRIPT = """
import warnings
from pathlib import Path
import swift_loader
from swift_loader import SwiftLoader

class Squares:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return index * index

if __name__ == "__main__":
    assert "checkout" not in swift_loader.__file__, swift_loader.__file__
    with SwiftLoader(Squares, batch_size=4, num_workers=2, shuffle=True) as loader:
        for epoch in range(2):
            assert sorted(i for batch in loader for i in batch.tolist()) == [
                i * i for i in range(10)
            ]
        str(loader.stats())
"""


def _run(command: list[str | Path], folder: Path, **environment: str) -> str:
    clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy without anything else."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    folder = copy.parent / "dist"
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, "."], copy)
    return folder


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@needs_tools
def test_wheel_and_sdist_pass_the_usual_checks(built: Path) -> None:
    both = sorted(built.iterdir())
    assert [path.name for path in both] == [
        f"swift_loader-{swift_loader.__version__}-py3-none-any.whl",
        f"swift_loader-{swift_loader.__version__}.tar.gz",
    ]
    _run([sys.executable, "-m", "twine", "check", "--strict", *both], built)
    _run([sys.executable, "-m", "check_wheel_contents", both[0]], built)


@needs_tools
def test_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(_only(built, "*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        about = message_from_bytes(wheel.read(metadata))
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "swift_loader").rglob("*.py")}
    assert names == files | {"swift_loader/py.typed"}
    core = {"torch", "numpy", "dill", "loguru", "psutil"}
    needed = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert {re.split("[><=]", text)[0] for text in needed} == core
    assert about["Version"] == swift_loader.__version__
    assert "MacOS" not in str(about.get_all("Classifier"))


@needs_tools
def test_sdist_has_the_tests_and_the_change_log(built: Path) -> None:
    with tarfile.open(_only(built, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("CHANGELOG.md", "LICENSE", "constraints.txt", "tests/conftest.py", "docs/how.md"):
        assert name in names


def _installed(built: Path, folder: Path) -> Path:
    """The interpreter of an environment that holds the wheel; its requirements are this one's."""
    _run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    site = _only(folder / "venv", "lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    _run([*pip, _only(built, "*.whl")], folder)
    # Ours are found after what is installed there, and their own ``.pth`` files don't count.
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    (site / "requirements.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    return python


@needs_tools
def test_installed_wheel_works_without_a_warning(built: Path, tmp_path: Path) -> None:
    python = _installed(built, tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    # pip's own packages on the path: what they warn of at import is theirs
    assert not _run([python, "-W", "error", "script.py"], tmp_path)
    version = _run([python.parent / "swift-loader", "--version"], tmp_path)
    assert version == f"swift-loader {swift_loader.__version__}\n"


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_tools
@pytest.mark.parametrize("example", ["fabric_digits.py", "ddp_torchrun.py", "jpeg_folder.py"])
def test_examples_run_from_the_installed_wheel(built: Path, tmp_path: Path, example: str) -> None:
    python = _installed(built, tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    run: list[str | Path] = [python]
    if "torchrun" in example:
        run += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    _run([*run, f"examples/{example}", "--short"], tmp_path)


def test_extras_that_are_named_exist() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("needs tomllib")
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ])  # fmt: skip
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(ROOT / "swift_loader").rglob("*.py")]
    named = {
        name
        for path in texts
        for found in re.findall(r"(?:swift-loader|'\.)\[([a-z,]+)\]", path.read_text())
        for name in found.split(",")
    }
    assert {"remote", "ray"} <= named <= extras


def test_change_log_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "keepachangelog.com" in text
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    for version in versions[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", version)
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_every_module_exports_what_it_says() -> None:
    import importlib
    import pkgutil

    for found in pkgutil.walk_packages(swift_loader.__path__, "swift_loader."):
        if found.name.startswith("swift_loader.remote.ray"):
            continue  # imports Ray
        module = importlib.import_module(found.name)
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert not missing, f"{found.name} has no {missing}"


def test_every_public_name_has_a_docstring() -> None:
    for name in swift_loader.__all__:
        assert name == "SKIP" or getattr(swift_loader, name).__doc__, name
