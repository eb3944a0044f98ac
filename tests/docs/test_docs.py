"""Every block of code in the documents runs, and the site builds. See `blocks` for how."""

from __future__ import annotations

import importlib
import json
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import RandomSampler

from swift_loader import Mixture, Shards, SwiftLoader
from swift_loader.order.state import Saved
from swift_loader.plan import Plan
from swift_loader.telemetry.metrics import BatchTimes, Meter
from swift_loader.telemetry.monitor import open_benchmark
from tests.docs.blocks import LIMIT_S, PAGES, ROOT, blocks_of, give_command, run, write_scripts
from tests.docs.test_docstrings import PUBLIC, names_of

# Of all loaders of a page: else each would import torch anew, one after the other.
ONE_ZYGOTE = "from swift_loader.worker.launch import Zygote\nzygote = Zygote.acquire()\n"
SCRIPT = "page.py"  # of the blocks without a title
_IN_TURN = ("README.md", "index.md", "moving.md", "from/", "guides/")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT)).removeprefix("docs/")


def _is_short(page: Path) -> bool:
    """Nothing but a script that takes no time worth mentioning."""
    if not name_of(page).startswith(_IN_TURN):
        return False
    return not any(block.language == "sh" and block.runs for block in blocks_of(page))


SHORT_PAGES = [page for page in PAGES if _is_short(page)]
LONG_PAGES = [page for page in PAGES if not _is_short(page)]
#: with commands or whole trainings of their own; all pages run in the long form
PAGES_OF_EVERY_RUN = ("cache.md", "commands.md", "packing.md")
NOT_IN_REFERENCE = {
    "SKIP",  # a value, told in words
    "refuse",  # for other modules
    "PrototypeMultiProcessingReadingService",  # another name of a class that is there
    "HAND_OVER", "STAGES", "Totals", "compare", "format_bytes", "format_seconds", "is_measured",
    "shares",
    "WorkerInfo",  # torch's
}  # fmt: skip


def test_every_fence_is_understood() -> None:
    for page in PAGES:
        assert page.read_text().count("\n```") == 2 * len(blocks_of(page)), page.name
        known = {"python", "sh", "text"}
        assert {block.language for block in blocks_of(page)} <= known, page.name


def test_lines_of_code_fit_a_page() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            longest = max(block.code.splitlines(), key=len)
            assert len(longest) <= 88, f"{page.name}, line {block.line}: {longest}"


def _as_long_form(page: Path) -> Any:
    marks = [] if name_of(page) in PAGES_OF_EVERY_RUN else [pytest.mark.soak]
    return pytest.param(page, id=name_of(page), marks=marks)


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("page", [_as_long_form(page) for page in LONG_PAGES])
def test_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for needed in re.findall(r"(?:import|from) (lightning|accelerate|pandas)\b", page.read_text()):
        pytest.importorskip(needed, reason=f"the page shows {needed}")
    if write_scripts(page, tmp_path):
        with_zygote = f"{ONE_ZYGOTE}\n{(tmp_path / SCRIPT).read_text()}"
        (tmp_path / SCRIPT).write_text(with_zygote)
        run([sys.executable, SCRIPT], tmp_path, page.name)
    give_command(tmp_path)
    for block in blocks_of(page):
        if block.language == "sh" and block.runs:
            run(["sh", "-e", "-c", block.code], tmp_path, f"{page.name}, line {block.line}")


@pytest.mark.timeout(4 * LIMIT_S)
def test_code_of_short_pages_runs(tmp_path: Path) -> None:
    """All in one process, one after the other: each by itself would import torch anew."""
    folders = []
    for page in SHORT_PAGES:
        if "import webdataset" in page.read_text() and find_spec("webdataset") is None:
            continue
        folder = tmp_path / name_of(page).replace("/", "-")
        folder.mkdir()
        if write_scripts(page, folder):
            folders.append(str(folder))
    (tmp_path / "all.py").write_text(
        f"import os, runpy, sys\n{ONE_ZYGOTE}"
        f"for folder in {folders!r}:\n"
        "    print(folder, flush=True)\n"
        "    os.chdir(folder)\n"
        "    sys.path.insert(0, folder)\n"
        f"    runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    run([sys.executable, "all.py"], tmp_path, "the short pages")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. Broken links, anchors and references to code are errors (``--strict``)."""
    for needed in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(needed, reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder),
         "--config-file", str(ROOT / "mkdocs.yml")],
        ROOT,
        "mkdocs build",
    )  # fmt: skip
    return folder


def test_site_builds_without_a_warning(site: Path) -> None:
    assert "A first example" in (site / "index.html").read_text()
    assert "nearby_shuffle" in (site / "options" / "index.html").read_text()
    assert "which worker makes it" in (site / "how" / "index.html").read_text()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]* (?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert not [url for url in fetched if "canonical" not in url], page.name


def test_reference_has_every_public_name(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "reference").rglob("index.html"))
    told = set(re.findall(r'id="swift_loader\.[\w.]*?(\w+)"', text))
    methods = {name.removeprefix("SwiftLoader.") for name, _ in names_of("swift_loader")
               if name.startswith("SwiftLoader.")}  # fmt: skip
    assert methods <= told, sorted(methods - told)
    for module in PUBLIC:
        if module.endswith((".iter", ".map")):
            continue  # torchdata's pipes, each with a docstring
        names = set(importlib.import_module(module).__all__) - NOT_IN_REFERENCE
        assert names <= told, f"{module}: {sorted(names - told)}"


def _fields_told() -> dict[str, set[str]]:
    """By the name of a table on the page of formats: what stands in its first column."""
    text = (ROOT / "docs" / "reference" / "formats.md").read_text()
    tables = re.findall(
        r"<!-- (\w+) fields: begin -->\n(.*?)<!-- \1 fields: end -->", text, re.DOTALL
    )
    rows = {name: re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name, table in tables}
    return {name: set(re.findall(r"`(\w+)`", " ".join(cells))) for name, cells in rows.items()}


def test_formats_page_has_every_field_of_a_state() -> None:
    told = _fields_told()
    plan = Plan(8, 2, nb_consumer=1, shuffle=False, nearby_shuffle=0, seed=0)
    written = Saved("plan", plan, 0, 0, 1).written()
    assert told["state"] == set(written)
    assert told["plan"] == set(written["plan"])


def _rows() -> Iterator[int]:
    yield from range(8)


def test_formats_page_has_every_field_of_the_other_states() -> None:
    told, rows = _fields_told(), list(range(8))

    def state_of(dataset: Any, **options: Any) -> dict[str, Any]:
        with SwiftLoader(dataset, num_workers=0, **options) as loader:
            next(iter(loader))
            return loader.state_dict()

    sampled = state_of(rows, sampler=RandomSampler(rows))
    assert told["sampler"] == set(sampled["sampler"])
    mixed = state_of(Mixture({"a": rows, "b": rows}, weights={"a": 1.0, "b": 2.0}))
    assert told["mixture"] == set(mixed["plan"]["mixture"])
    bounded = state_of(rows, batch_tokens=4, lengths=[1] * 8)
    assert told["budget"] == set(bounded["budget"])
    streams = [state_of(_rows), state_of(Shards(["a", "b"], lambda shard: iter(rows)))]
    fields = [set(state) - told["state"] for state in streams]
    assert fields[0] <= fields[1] == told["stream"] - {"count", "digest", "buffer"}
    assert {"count", "digest", "buffer"} == set(streams[1]["shards"])


def test_formats_page_has_every_field_of_a_benchmark_file(tmp_path: Path) -> None:
    told, file = _fields_told(), tmp_path / "run.jsonl"
    meter = Meter(0)
    writer = open_benchmark(meter, path=file, logger=None, plan={}, options={})
    meter.epoch_begins(0, time.perf_counter())
    meter.add(BatchTimes(0, 0, 0, 1, 1, *[0.0] * 5, 0.001, 2, time.perf_counter()))
    meter.epoch_ends(time.perf_counter())
    writer.close()
    for line in map(json.loads, file.read_text().splitlines()):
        if line["kind"] in ("header", "interval"):
            fields = set(line) - told["every"]
            assert fields <= told[line["kind"]]
            assert told[line["kind"]] - fields <= {"slowest"}


def test_the_architecture_page_names_what_there_is_and_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "swift_loader"
    to_come = {"cache/"}
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", text)) - to_come
    for name in named:
        found = (package / name).exists() or (ROOT / name).exists()
        assert found or any(package.rglob(name)), name
    folders = {path.name for path in package.iterdir() if any(path.glob("*.py"))}
    assert folders <= {name.split("/")[0] for name in named}
