"""The page of `report`: what it says, that it needs nothing else, and that a browser draws it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_loader.report.groups import compared, trainings
from swift_loader.report.page import html_page
from swift_loader.report.runs import read_runs
from swift_loader.report.svg import (
    HEIGHT,
    WIDTH,
    Plot,
    Series,
    Step,
    nice_top,
    plot,
    ticks,
    value_text,
)
from swift_loader.report.terminal import terminal_text
from swift_loader.telemetry.cache_stats import CacheStats

VOID = {"meta", "br", "hr", "img", "link", "input"}
SELF_CLOSED = {"line", "path", "rect"}
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)


class Page(HTMLParser):
    """Checks that tags nest, and collects them and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def runs(tmp_path, write_run):
    paths = [
        write_run(tmp_path / "one.jsonl", wait_s=0.004),
        write_run(tmp_path / "two.jsonl", killed=True),
    ]
    return read_runs(paths)[0]


def test_the_page_answers_the_questions(runs):
    page = Page(html_page(runs[:1]))
    for text in (
        "Was training waiting for data?",
        "Training waited for data",
        "Throughput",
        "Queue depth",
        "What workers did",
        "CPUs used",
        "Memory",
        "Each stage's share",
        "worker 1 restarted",
        "killed by \\x1b[31msignal 9",
        "sample 17 skipped: OSError: truncated",
        "batch_size",
    ):
        assert text in page.text
    assert page.tags["svg"] == 6


def test_runs_stand_beside_each_other(runs):
    page = Page(html_page(runs, passed_over=3))
    # Two questions have a plot a run; in the other four the runs lie over one another.
    assert page.tags["svg"] == 2 * 2 + 4
    assert "Side by side" in page.text
    assert "the process was killed" in page.text
    assert "3 lines were cut short" in page.text


def test_the_page_needs_nothing_else_and_runs_nothing(runs):
    text = html_page(runs)
    page = Page(text)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "srcset", "xlink:href", "onclick", "onload"}
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert not any(value and "\x1b" in value for _, value in page.attributes)
    assert "\x1b" not in page.text
    assert "url(" not in text
    assert "@import" not in text
    assert "<script>alert(1)</script>" in page.text  # an option's value: shown, not obeyed


def test_each_plot_has_a_title_and_a_description_of_its_own(runs):
    text = html_page(runs)
    identities = re.findall(r' id="([^"]+)"', text)
    assert len(identities) == len(set(identities)) == 2 * (2 * 2 + 4) + 3  # and the zoom
    for labelled in re.findall(r'<svg [^>]*role="img" aria-labelledby="([^"]+)"', text):
        assert set(labelled.split()) <= set(identities)
    assert text.count("<svg ") == text.count('role="img"')


def test_light_and_dark_know_the_same_colours(runs):
    text = html_page(runs)
    light, dark = re.findall(r":root\{(.*?)\}", text, re.DOTALL)[:2]
    defined = set(re.findall(r"(--[a-z0-9-]+):", light))
    assert defined == set(re.findall(r"(--[a-z0-9-]+):", dark))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= defined


CACHE = CacheStats(
    hits=2048, misses=1024, disk_hits=7, hit_bytes=3 * 10**8, saved_s=75.0, kept=1024, evicted=3,
    refused=9, memory_used=10**9, memory_size=4 * 10**9, disk_used=5 * 10**9,
)  # fmt: skip


def test_what_a_cache_did_is_told_where_there_was_one(tmp_path, write_run):
    write_run(tmp_path / "one.jsonl", batches=3, cache=CACHE)
    write_run(tmp_path / "two.jsonl", batches=3, cache=replace(CACHE, disk_used=0, disk_hits=0))
    write_run(tmp_path / "three.jsonl", batches=3)
    paths = [tmp_path / f"{name}.jsonl" for name in ("one", "two", "three")]
    runs, _ = read_runs(paths)
    for told in (Page(html_page(runs[:1])).text, terminal_text(runs[:1])):
        for text in ("66.7% of 3,072 samples", "300 MB", "1 GB of 4 GB (25%)", "5 GB",
                     "found no room", "evicted", "work saved"):  # fmt: skip
            assert text in told
    for told in (html_page(runs[2:]), terminal_text(runs[2:])):
        assert "the cache did" not in told
        assert "   Cache" not in told
    page = Page(html_page(runs))
    assert "What the cache did" in page.text
    assert page.text.count("66.7% of 3,072 samples") == 2


@pytest.mark.parametrize("cache", [7, [1], {"hits": "<script>"}, {"memory_size": 1e999}, {"x": 1}])
def test_a_cache_that_no_loader_wrote_is_shown_as_text_or_not_at_all(tmp_path, write_run, cache):
    path = write_run(tmp_path / "run.jsonl", batches=3)
    *lines, summary = path.read_text().splitlines()
    told = json.loads(summary)
    told["stats"]["cache"] = cache
    path.write_text("\n".join([*lines, json.dumps(told)]))
    runs, _ = read_runs([path])
    page = Page(html_page(runs))
    assert page.tags["script"] == 0
    assert "inf" not in terminal_text(runs)


def test_a_run_without_a_batch_still_makes_a_page(tmp_path, write_run):
    path = tmp_path / "run.jsonl"
    path.write_text(write_run(tmp_path / "other.jsonl").read_text().splitlines()[0] + "\n")
    page = Page(html_page(read_runs([path])[0]))
    assert "No batch was delivered." in page.text


def test_numbers_on_an_axis_are_written_out():
    assert [value_text(value, "") for value in (0.25, 150, 1000, 2500, 20_000)] == [
        *("0.25", "150", "1,000", "2,500", "20 k")
    ]


@given(st.floats(1e-9, 1e15), st.integers(1, 10))
def test_ticks_are_few_round_and_within(top, about):
    marks = ticks(top, about)
    assert marks[0] == 0
    assert 1 <= len(marks) <= about + 2
    assert marks[-1] <= top * 1.001
    assert nice_top([top]) >= top * 0.999


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12)), min_size=1, max_size=20), st.booleans())
def test_nothing_is_drawn_outside_of_its_plot(values, stacked):
    steps = [Step(i, i + 1.0, "a step") for i in range(len(values))]
    picture = Plot(
        title="<t>",
        description="d & d",
        steps=steps,
        series=[Series("a", "--c-loop", values), Series("b", "--c-wait", values)],
        end_s=float(len(values)),
        top=nice_top([v for v in values if v is not None]),
        stacked=stacked,
    )
    drawing = plot(picture, "p")
    Page(drawing)
    for path in re.findall(r' d="([^"]*)"', drawing):
        for x in re.findall(r"[MH](-?[\d.]+)", path):
            assert 0 <= float(x) <= WIDTH
        for y in re.findall(r"V(-?[\d.]+)", path):
            assert 0 <= float(y) <= HEIGHT


def browse(tmp_path: Path, page: Path, *what: str, width: int = 1200) -> bytes:
    """The browser's standard output, run without a window; it and its children end here.

    Nothing may be said on its console.
    """
    process = subprocess.Popen(
        [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--hide-scrollbars", f"--window-size={width},3000"),
            *("--enable-logging=stderr", "--log-level=0"),
            f"--user-data-dir={tmp_path / 'profile'}",
            *what,
            page.as_uri(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, told = process.communicate(timeout=60)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            assert process.poll() is not None  # all have ended by themselves
        process.wait()
    assert process.returncode == 0
    assert b"CONSOLE" not in told, told.decode(errors="replace")
    return out


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")


@needs_browser
@pytest.mark.timeout(90)
def test_a_browser_understands_the_page(tmp_path, runs):
    page = tmp_path / "report.html"
    page.write_text(html_page(runs), encoding="utf-8")
    dom = browse(tmp_path, page, "--dump-dom").decode()
    seen, written = Page(dom), Page(html_page(runs))
    # The browser mended nothing: it has the very elements that were written.
    assert seen.tags == written.tags
    assert re.sub(r"\s+", " ", seen.text).strip() == re.sub(r"\s+", " ", written.text).strip()


@needs_browser
@pytest.mark.timeout(90)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_the_plots(tmp_path, runs, scheme):
    image_module = pytest.importorskip("PIL.Image", reason="needs Pillow to look at the picture")
    page = tmp_path / "report.html"
    page.write_text(html_page(runs), encoding="utf-8")
    shot = tmp_path / "page.png"
    number = {"dark": 0, "light": 1}[scheme]
    browse(
        tmp_path, page, f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={number}"
    )
    with image_module.open(shot) as image:
        colors = Counter(
            {color: count for count, color in image.convert("RGB").getcolors(10_000_000)}
        )
    variables = re.findall(r":root\{(.*?)\}", page.read_text(), re.DOTALL)
    css = dict(re.findall(r"(--[a-z0-9-]+):(#[0-9a-f]{3,6})", variables[scheme == "dark"]))

    def area(name: str) -> int:
        digits = css[name][1:]
        if len(digits) == 3:
            digits = "".join(2 * digit for digit in digits)
        return colors[tuple(bytes.fromhex(digits))]

    assert area("--page") > 1_000_000  # the page is that wide and tall, in this scheme's colour
    assert area("--c-loop") > 10_000  # what training did
    assert area("--c-wait") > 3_000  # how it waited


def test_ranks_of_one_training_have_a_card(tmp_path, write_run):
    paths = [
        write_run(tmp_path / "0.jsonl", consumer=0),
        write_run(tmp_path / "1.jsonl", consumer=1, wait_s=0.006),
    ]
    ranks = read_runs(paths)[0]
    (group,) = trainings(ranks)
    assert [run.header["consumer"] for run in group] == [0, 1]
    sentence, table = compared(group)
    assert sentence.startswith("Rank 1 makes the others wait")
    assert [row[0] for row in table[1:]] == ["0", "1 (slow)"]
    page = Page(html_page(ranks))
    assert "All 2 ranks" in page.text
    assert sentence in page.text
    assert sentence in terminal_text(ranks)
    assert trainings(ranks[:1]) == []


def test_a_long_run_makes_a_page_of_less_than_two_megabytes(runs):
    interval = runs[0].intervals[1]
    many = [replace(interval, from_s=float(i), t_s=i + 1.0) for i in range(20_000)]
    event = runs[0].events[0]
    events = [
        replace(event, t_s=float(i), kind="epoch_begin", facts={"epoch": i}) for i in range(9000)
    ]
    long = replace(runs[0], intervals=tuple(many), events=tuple(events))
    assert len(html_page([long, *[long] * 7])) < 2_000_000


@needs_browser
@pytest.mark.timeout(90)
def test_nothing_sticks_out_on_a_phone(tmp_path, runs):
    image_module = pytest.importorskip("PIL.Image", reason="needs Pillow to look at the picture")
    page = tmp_path / "report.html"
    page.write_text(html_page(runs), encoding="utf-8")
    shot = tmp_path / "page.png"
    browse(
        tmp_path,
        page,
        f"--screenshot={shot}",
        "--blink-settings=preferredColorScheme=1",
        width=390,
    )
    with image_module.open(shot) as image:
        assert image.width == 390
        margins = [image.convert("RGB").crop((x, 0, x + 6, image.height)) for x in (0, 384)]
        for margin in margins:
            ((_, color),) = margin.getcolors()
            assert color == (0xFB, 0xFB, 0xFA)  # nothing but the page


@needs_browser
@pytest.mark.timeout(90)
def test_how_two_runs_differ_is_seen_on_a_phone(tmp_path, write_run):
    names = [tmp_path / f"{name}.jsonl" for name in ("with-two-workers", "with-four-workers")]
    page = tmp_path / "report.html"
    text = html_page(read_runs([write_run(path, batches=5) for path in names])[0])
    assert "change" in text
    # The page runs no script, and lets none run; this one asks the browser what it laid out.
    text, nb_policies = re.subn(r"<meta http-equiv=.?Content-Security-Policy[^>]*>", "", text)
    assert nb_policies == 1
    wide = "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
    ask = f"<script>document.title = {wide} ? 'cut off' : 'all seen'</script>"
    page.write_text(text.replace("</body>", f"{ask}</body>"), encoding="utf-8")
    assert ask in page.read_text()
    dom = browse(tmp_path, page, "--dump-dom", width=390).decode()
    assert "<title>all seen</title>" in dom
