"""Where ``swift-loader top`` looks: each place gives tables, whenever it is asked."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from swift_loader.errors import ConfigError, LoaderError
from swift_loader.report.runs import RunReader
from swift_loader.top.tables import Table, of_endpoint, of_figures, of_runs

__all__ = ["Look", "latest_file", "looks_of"]

_TIMEOUT_S = 3.0

Look = Callable[[], list[Table]]


def looks_of(places: Sequence[str], key: str | None) -> list[Look]:
    """A function for each place (for all files together) that looks there now.

    `key`: the key file of endpoints. Raises `ConfigError` for a place that is none.
    """
    files: list[str] = []
    looks: list[Look] = []
    for place in places:
        scheme, found, rest = place.partition("://")
        if not found:
            if not Path(place).is_file():
                raise ConfigError(
                    f"{place!r} is no file: give a benchmark_file, 'prometheus://HOST:PORT' (where "
                    "metrics= or --metrics serves a page) or 'tcp://HOST:PORT' (an endpoint)"
                )
            files.append(place)
        elif scheme in ("prometheus", "http", "https"):
            kind = "http" if scheme == "prometheus" else scheme
            path = rest if "/" in rest else f"{rest}/metrics"
            looks.append(_page(f"{kind}://{path}"))
        elif scheme == "tcp":
            looks.append(_endpoint(place, key))
        else:
            raise ConfigError(f"{place!r}: give a file, prometheus://HOST:PORT or tcp://HOST:PORT")
    return [*([_files(files)] if files else []), *looks]


def latest_file(folder: Path) -> str:
    """The benchmark file of `folder` that was written last. Raises `ConfigError` without any."""
    found = [path for path in folder.glob("*.jsonl") if path.is_file() and _is_ours(path)]
    if not found:
        raise ConfigError(
            "no benchmark file is in this folder: give one, 'prometheus://HOST:PORT' (where "
            "metrics= or --metrics serves a page) or 'tcp://HOST:PORT' (an endpoint)"
        )
    return max(found, key=lambda path: path.stat().st_mtime).name


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(200)
    except OSError:
        return False
    return b'"kind"' in begin and b'"header"' in begin


def _files(paths: Sequence[str]) -> Look:
    readers = [RunReader(path) for path in paths]

    def look() -> list[Table]:
        runs = [run for reader in readers for run in reader.read()]
        return of_runs(runs, time.time())

    return look


def _page(url: str) -> Look:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise ConfigError(
            f"{url} needs a package: pip install 'swift-loader[prometheus]'"
        ) from error
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    at_s = time.monotonic()

    def look() -> list[Table]:
        nonlocal before, at_s
        try:
            # The scheme is http or https, see `looks_of`.
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # nosec B310
                text = answer.read().decode(errors="replace")
            now = {
                (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        except (OSError, urllib.error.URLError, ValueError) as error:
            return [Table(url, (), (), f"does not answer: {error}")]
        now_s = time.monotonic()
        tables = of_figures(now, before, now_s - at_s)
        before, at_s = now, now_s
        return tables

    return look


def _endpoint(address: str, key: str | None) -> Look:
    # ZeroMQ is an extra.
    from swift_loader.remote.address import check_address
    from swift_loader.remote.keys import load_keys
    from swift_loader.remote.status import ask_status

    check_address(address)
    keys = load_keys(key, "--key")

    def look() -> list[Table]:
        try:
            return of_endpoint(ask_status(address, keys, _TIMEOUT_S))
        except LoaderError as error:
            return [Table(address, (), (), str(error))]

    return look
