"""Process-wide settings that a script makes and a worker must share, each with its two functions.

The training process reads them whenever it starts a worker; the worker applies them before
anything of the user's runs there. To add one: a line in `SETTINGS`; `docs/workers.md` has a table.

Settings of a module are read where the training process has imported that module: where it has
not, nobody has changed them. Nothing here imports torch: starting a worker does not wait for it.
"""

from __future__ import annotations

import locale
import os
import pickle
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from swift_loader.worker.carried import Carried, carried, name_of
from swift_loader.worker.left_out import warn_left_out
from swift_loader.worker.logging_settings import apply_logging, read_logging

__all__ = ["SETTINGS", "Setting", "apply_settings", "read_settings"]


@dataclass(frozen=True)
class Setting:
    """One setting, or several that go together.

    `of_machine`: it belongs to the process on its machine, and does not travel to another one.
    """

    name: str
    module: str
    read: Callable[[Any], Any]
    apply: Callable[[Any, Any], object]
    of_machine: bool = False


def read_settings(*, of_machine: bool = True) -> dict[str, bytes]:
    """The settings of this process, by name. One that can't be read or pickled is left out."""
    found = {}
    for one in SETTINGS:
        module = sys.modules.get(one.module)
        if module is None or (one.of_machine and not of_machine):
            continue
        with suppress(Exception):  # a loader does without it
            found[one.name] = pickle.dumps(one.read(module))
    return found


def apply_settings(found: Mapping[str, bytes]) -> None:
    """Make them those of this process. One that can't be applied is left out, with a warning."""
    for one in SETTINGS:
        if one.name in found:
            try:
                one.apply(import_module(one.module), pickle.loads(found[one.name]))
            except Exception as error:  # noqa: BLE001 - a worker does without it
                warn_left_out(one.name, error)


def _read_deterministic(torch: Any) -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _apply_deterministic(torch: Any, found: tuple[bool, bool]) -> None:
    if found != _read_deterministic(torch):
        torch.use_deterministic_algorithms(found[0], warn_only=found[1])


def _read_filters(module: Any) -> list[tuple[Any, ...]]:
    """Each category by its name too, by which a worker finds the filter that it has already."""
    return [
        (action, message, name_of(category), text, line, tuple(carried(category)))
        for action, message, category, text, line in warnings.filters
    ]


def _apply_filters(module: Any, found: list[tuple[Any, ...]]) -> None:
    here = {
        (action, message, name_of(category), text, line): category
        for action, message, category, text, line in warnings.filters
    }
    filters = []
    for *about, made in found:
        action, message, name, text, line = about
        try:
            category = here.get(tuple(about)) or Carried(*made).value()
        except Exception as error:  # noqa: BLE001 - a class that can't be had here
            warn_left_out(f"a filter of warnings, of the category {name}", error)
        else:
            filters.append((action, message, category, text, line))
    warnings.resetwarnings()  # forgets also which warnings were given
    warnings.filters[:] = filters  # type: ignore[index]


def _read_umask(module: Any) -> int | None:
    """From Linux, which tells it; elsewhere it can't be read without setting it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), None)


def _apply_umask(module: Any, mask: int | None) -> None:
    if mask is not None:
        os.umask(mask)


def _apply_nice(module: Any, priority: int) -> None:
    if priority > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, priority)


def _read_limits(module: Any) -> dict[str, tuple[int, int]]:
    return {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }


def _apply_limits(module: Any, limits: dict[str, tuple[int, int]]) -> None:
    for name, limit in limits.items():
        number = getattr(resource, name)
        if resource.getrlimit(number) != limit:
            with suppress(ValueError, PermissionError):  # one that may only be lowered
                resource.setrlimit(number, limit)


def _apply_locale(module: Any, name: str) -> None:
    with suppress(locale.Error):  # put together of parts, on a system that can't read that back
        locale.setlocale(locale.LC_ALL, name)


def _apply_start_method(multiprocessing: Any, method: str | None) -> None:
    if method is not None:
        multiprocessing.set_start_method(method, force=True)


def _apply_authkey(process: Any, key: bytes) -> None:
    process.current_process().authkey = key


# Parts of torch that have `fp32_precision`, in newer versions. One that is not set itself has the
# value of those that it belongs to. To set that of all mkldnn sets that of everything, in some
# versions of torch, so it stands first.
_PRECISIONS = (
    *("backends.mkldnn", "backends", "backends.cudnn", "backends.cuda.matmul"),
    *("backends.cudnn.conv", "backends.cudnn.rnn", "backends.mkldnn.matmul"),
    *("backends.mkldnn.conv", "backends.mkldnn.rnn"),
)


def _read_precision(torch: Any) -> tuple[str | None, dict[str, str]]:
    """By torch's older name, and by its newer ones where it has them.

    Torch refuses to tell the older one where the newer ones have set what it can't express.
    """
    older = None
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    newer = {}
    for name in _PRECISIONS:
        with suppress(AttributeError, RuntimeError):
            newer[name] = attrgetter(f"{name}.fp32_precision")(torch)
    return older, newer


def _apply_precision(torch: Any, found: tuple[str | None, dict[str, str]]) -> None:
    older, newer = found
    if older is not None and older != _read_precision(torch)[0]:
        torch.set_float32_matmul_precision(older)
    for name, precision in newer.items():
        part = attrgetter(name)(torch)
        if part.fp32_precision != precision:
            part.fp32_precision = precision


def _read_flushing(torch: Any) -> bool:
    """Nothing tells it but what becomes of a number that is too small to be a normal one."""
    return bool((torch.full((1,), 1e-308, dtype=torch.float64, device="cpu") / 4 == 0).item())


def _apply_flushing(torch: Any, flushes: bool) -> None:
    if flushes != _read_flushing(torch):
        torch.set_flush_denormal(flushes)


# Parts of `torch.backends` and of others with a value that can be read and set. Not all versions
# have all of them, and that of tensor cores is a precision, see above.
_FLAGS = (
    *("backends.cudnn.enabled", "backends.cudnn.benchmark", "backends.cudnn.benchmark_limit"),
    *("backends.cudnn.deterministic", "backends.mkldnn.enabled", "backends.mkldnn.deterministic"),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    *("backends.opt_einsum.enabled", "backends.opt_einsum.strategy"),
    *("backends.quantized.engine", "utils.deterministic.fill_uninitialized_memory"),
)


def _read_flags(torch: Any) -> dict[str, Any]:
    found = {}
    for name in _FLAGS:
        with suppress(AttributeError, RuntimeError):
            found[name] = attrgetter(name)(torch)
    return found


def _apply_flags(torch: Any, found: dict[str, Any]) -> None:
    here = _read_flags(torch)
    for name, value in found.items():
        if name in here and here[name] != value:
            part, _, flag = name.rpartition(".")
            setattr(attrgetter(part)(torch), flag, value)


def _read_anomalies(torch: Any) -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _apply_anomalies(torch: Any, found: tuple[bool, bool]) -> None:
    if found != _read_anomalies(torch):
        torch.autograd.set_detect_anomaly(*found)


def _read_torch_print(torch: Any) -> dict[str, Any]:
    options = torch._tensor_str.PRINT_OPTS  # `torch.set_printoptions` has no other half
    return {name: getattr(options, name) for name in _PRINTED}


_PRINTED = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


def _read_decimal(decimal: Any) -> tuple[int, str]:
    context = decimal.getcontext()
    return context.prec, context.rounding


def _apply_decimal(decimal: Any, found: tuple[int, str]) -> None:
    context = decimal.getcontext()
    context.prec, context.rounding = found


SETTINGS = (
    Setting(
        "torch's default dtype",
        "torch",
        lambda torch: torch.get_default_dtype(),
        lambda torch, dtype: torch.set_default_dtype(dtype),
    ),
    Setting("deterministic algorithms", "torch", _read_deterministic, _apply_deterministic),
    Setting("precision of float32 products", "torch", _read_precision, _apply_precision),
    Setting("flushing of denormal numbers", "torch", _read_flushing, _apply_flushing),
    Setting("flags of torch's backends", "torch", _read_flags, _apply_flags),
    Setting("detection of anomalies in gradients", "torch", _read_anomalies, _apply_anomalies),
    Setting(
        "torch's print options",
        "torch",
        _read_torch_print,
        lambda torch, found: torch.set_printoptions(**found),
    ),
    Setting(
        "`torch.multiprocessing`'s sharing strategy",
        "torch.multiprocessing",
        lambda multiprocessing: multiprocessing.get_sharing_strategy(),
        lambda multiprocessing, strategy: multiprocessing.set_sharing_strategy(strategy),
    ),
    Setting("precision and rounding of `decimal`", "decimal", _read_decimal, _apply_decimal),
    Setting(
        "digits of integers in texts",
        "sys",
        lambda sys: sys.get_int_max_str_digits(),
        lambda sys, most: sys.set_int_max_str_digits(most),
    ),
    Setting(
        "numpy's print options",
        "numpy",
        lambda numpy: numpy.get_printoptions(),
        lambda numpy, found: numpy.set_printoptions(**found),
    ),
    Setting(
        "numpy's `seterr`",
        "numpy",
        lambda numpy: numpy.geterr(),
        lambda numpy, found: numpy.seterr(**found),
    ),
    Setting(
        "default timeout of sockets",
        "socket",
        lambda socket: socket.getdefaulttimeout(),
        lambda socket, timeout_s: socket.setdefaulttimeout(timeout_s),
    ),
    Setting("filters of warnings", "warnings", _read_filters, _apply_filters),
    Setting("levels and handlers of loggers", "logging", read_logging, apply_logging),
    Setting(
        "recursion limit",
        "sys",
        lambda sys: sys.getrecursionlimit(),
        lambda sys, limit: sys.setrecursionlimit(limit),
    ),
    Setting(
        "key of `multiprocessing`'s managers",
        "multiprocessing.process",
        lambda process: bytes(process.current_process().authkey),
        _apply_authkey,
        of_machine=True,
    ),
    Setting(
        "start method of `multiprocessing`",
        "multiprocessing",
        lambda multiprocessing: multiprocessing.get_start_method(allow_none=True),
        _apply_start_method,
    ),
    Setting(
        "locale", "locale", lambda locale: locale.setlocale(locale.LC_ALL), _apply_locale, True
    ),
    Setting("umask", "os", _read_umask, _apply_umask, True),
    Setting("nice", "os", lambda os: os.getpriority(os.PRIO_PROCESS, 0), _apply_nice, True),
    Setting("resource limits", "resource", _read_limits, _apply_limits, True),
)
