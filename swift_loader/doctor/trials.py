"""What can only be told by trying: workers, pinned memory, endpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from swift_loader.doctor.finding import Finding
from swift_loader.errors import ConfigError, LoaderError
from swift_loader.telemetry.units import format_seconds

__all__ = ["endpoints", "gpus", "workers"]

_SAMPLES, _BATCH = 8, 4


def workers() -> Iterator[Finding]:
    """A loader with one worker gives an epoch, by each start method that needs no script."""
    from swift_loader.loader.loader import SwiftLoader  # imports torch, which takes seconds

    for method in ("fresh", "fork"):
        name = f'start_method="{method}"'
        began_s = time.perf_counter()
        try:
            with SwiftLoader(
                list(range(_SAMPLES)), batch_size=_BATCH, start_method=method, timeout=60.0
            ) as loader:
                got = [i for batch in loader for i in batch.tolist()]
        except (LoaderError, OSError) as error:
            first = (str(error).splitlines() or [""])[0]
            advice = f"{type(error).__name__}: {first}"
            yield Finding("workers", name, "does not work", advice, broken=True)
            continue
        if got != list(range(_SAMPLES)):
            yield Finding("workers", name, f"gave {got}", "report this", broken=True)
            continue
        took = format_seconds(time.perf_counter() - began_s)
        yield Finding("workers", name, f"works; started and read in {took}")


def gpus() -> Iterator[Finding]:
    """Devices of CUDA, and whether memory can be page-locked for them."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or "none: this torch is made for the CPU"
        yield Finding("GPUs", "devices", f"none (CUDA of torch: {built})")
        return
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield Finding("GPUs", f"cuda:{index}", f"{about.name}, CUDA {torch.version.cuda}")
    try:
        torch.empty(1 << 20, pin_memory=True)
    except RuntimeError as error:
        advice = f"copies to the device will not overlap: {str(error).splitlines()[0]}"
        yield Finding("GPUs", "pinned memory", "can't be had", advice, broken=True)
    else:
        yield Finding("GPUs", "pinned memory", "works")


def endpoints(addresses: Sequence[str], key: str | None, timeout_s: float) -> Iterator[Finding]:
    """Whether each endpoint answers, and how its versions stand to ours."""
    if not addresses:
        return
    try:
        from swift_loader.remote.address import check_address
        from swift_loader.remote.keys import load_keys
        from swift_loader.remote.status import ask_status
    except ImportError as error:
        advice = f"{error}: pip install 'swift-loader[remote]'"
        yield Finding("endpoints", "remote", "not installed", advice, broken=True)
        return
    for address in addresses:
        try:
            check_address(address)
            facts = ask_status(address, load_keys(key, "--key"), timeout_s)
        except (LoaderError, ConfigError) as error:
            yield Finding("endpoints", address, "does not answer", str(error), broken=True)
        else:
            running = f"{facts['workers_running']} of {facts['workers']} workers"
            yield Finding("endpoints", address, f"answers; {running}")
