"""What a value of an option must be. Pure, but for the CPUs and the environment that are asked for.

Each check takes the option's name and the value that was given. It returns the value as the loader
uses it, or raises a `ConfigError` that names the option, the value and the fix.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_origin

import numpy as np
import torch
from torch.utils.data import DataLoader

from swift_loader.errors import ClosedError, ConfigError, refuse
from swift_loader.order.part import MAX_EPOCH
from swift_loader.ranks.agreement import known_rank, own_index
from swift_loader.sources.mixture import Mixing, Mixture
from swift_loader.worker.cpus import usable_cpus
from swift_loader.worker.script import StartMethod, chosen_method, how_to_import, state

__all__ = [
    "MAX_SEED",
    "anything",
    "check_adapted",
    "check_budget",
    "check_codec",
    "check_no_loader",
    "check_platform",
    "check_samplers",
    "check_told_of_ranks",
    "consumer_number",
    "cpu_lists",
    "device_name",
    "epoch_number",
    "error_policy",
    "factory_or_dataset",
    "flag",
    "function",
    "is_built",
    "iterable",
    "keyword_arguments",
    "mixing_of",
    "one_of",
    "one_of_numbers",
    "only_asks",
    "optional",
    "path",
    "seconds",
    "seconds_or_0",
    "seed_number",
    "start_method_of_script",
    "torch_generator",
    "whole",
    "whole_numbers",
]

MAX_SEED = 2**63 - 1
_MAX_WAIT_S = 1e6  # eleven days: what a system call takes is not much more

_TRAINER = ("lightning.pytorch", "pytorch_lightning")

Check = Callable[[str, Any], Any]


def start_method_of_script(name: str, value: Any) -> StartMethod:
    """How workers are started, ``"auto"`` decided for the script that runs."""
    one_of("auto", "main", "fresh", "fork", "thread")(name, value)
    state.check_not_importing()
    if value == "main" and how_to_import() is None:
        refuse(name, value, "there is no file of the script to import (a notebook, a prompt, "
               "`python -c`, `python -m package`): give 'fresh' or 'fork'")  # fmt: skip
    return chosen_method(value)


def anything(name: str, value: Any) -> Any:
    """Checked elsewhere."""
    return value


def optional(check: Check) -> Check:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


def whole(low: int, *words: str) -> Check:
    """A whole number of at least `low` (numpy's too), or one of `words`."""
    fix = f"give a whole number, {low} or more" + "".join(f", or {word!r}" for word in words)

    def check(name: str, value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        try:
            if isinstance(value, bool):
                raise TypeError
            number = int(value.__index__())
        except (AttributeError, TypeError):
            refuse(name, value, fix)
        if number < low:
            refuse(name, value, fix)
        return number

    return check


def seed_number(name: str, value: Any) -> int:
    """A whole number that every generator takes."""
    seed: int = whole(0)(name, value)
    if seed > MAX_SEED:
        refuse(name, seed, f"give a whole number in [0, {MAX_SEED}]")
    return seed


def epoch_number(name: str, value: Any) -> int:
    """The number of an epoch."""
    epoch: int = whole(0)(name, value)
    if epoch > MAX_EPOCH:
        refuse(name, value, f"give a whole number, at most {MAX_EPOCH}")
    return epoch


def whole_numbers(name: str, value: Any) -> Any:
    """An integer array of one dimension; a memory-mapped one stays one."""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        refuse(name, value, "give one whole number a sample: an integer array of one dimension")
    return array


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        refuse(name, value, "give True or False")
    return value


def one_of(*choices: str) -> Check:
    """One of some words."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            refuse(name, value, "give one of " + ", ".join(map(repr, choices)))
        return value

    return check


def one_of_numbers(*choices: int) -> Check:
    """One of some whole numbers."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool) or value not in choices:
            refuse(name, value, "give one of " + ", ".join(map(repr, choices)))
        return value

    return check


def seconds(name: str, value: Any) -> float | None:
    """Seconds above 0; None, for ever, where they are infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        refuse(name, value, "give seconds above 0, or None to wait for ever")
    if math.isinf(value):
        return None
    if value > _MAX_WAIT_S:
        refuse(name, value, f"give at most {_MAX_WAIT_S:.0f} seconds, or None to wait for ever")
    return float(value)


def seconds_or_0(name: str, value: Any) -> float | None:
    """The same, and 0 is for ever, as torch has it."""
    return None if value == 0 and value is not False else seconds(name, value)


def torch_generator(name: str, value: Any) -> Any:
    """A generator of torch."""
    if not isinstance(value, torch.Generator):
        refuse(name, value, "give a torch.Generator, or a seed instead")
    return value


def device_name(name: str, value: Any) -> str:
    """A device of CUDA, or the empty string for the current one."""
    if value == "":
        return ""
    if not isinstance(value, str) or not value.startswith("cuda"):
        refuse(name, value, "give the name of a CUDA device, such as 'cuda:0'; '' is the current")
    return value


def function(name: str, value: Any) -> Any:
    """What can be called."""
    if not callable(value):
        refuse(name, value, "give a callable, or None")
    return value


def factory_or_dataset(name: str, value: Any) -> Any:
    """A class or function that returns a data set, or a data set."""
    if isinstance(value, DataLoader):
        refuse(name, value, "it is a DataLoader: give it to SwiftLoader.from_dataloader(...)")
    if type(value).__module__ == "builtins" and hasattr(value, "__next__"):
        refuse(name, value, "it can be iterated once: give a list, or a function that returns the "
               "iterator, which each worker calls")  # fmt: skip
    if value is None or isinstance(value, (str, bytes)) or not (
        callable(value) or is_built(value, with_kwargs=False)
    ):  # fmt: skip
        refuse(name, value, "give a data set (an object with __getitem__ and __len__, or with "
               "__iter__), or its class with dataset_kwargs")  # fmt: skip
    return value


def is_built(value: Any, *, with_kwargs: bool) -> bool:
    """Whether `value` is a data set, and no function that returns one.

    A data set that can be called as well is a data set, unless it is given with `dataset_kwargs`.
    """
    if isinstance(value, type) or get_origin(value) is not None:
        return False
    read_by = ("__getitem__", "__getitems__", "__iter__")
    return any(hasattr(type(value), name) for name in read_by) and not (
        with_kwargs and callable(value)
    )


def mixing_of(options: Mapping[str, Any], mixture: Mixture, kwargs: Any) -> Mixing:
    """What the loader knows of a mixture. Raises `ConfigError` for what does not go with it."""
    if kwargs is not None:
        refuse("dataset_kwargs", kwargs, "a Mixture holds the arguments of its sources")
    for name in ("sampler", "batch_sampler"):
        if options[name] is not None:
            refuse(name, options[name], "a Mixture says which samples come; leave it out")
    mixing = mixture.mixing
    if mixing.by_batch and not options.get("auto_collation", True):
        refuse("batch_size", None, "mix='batch' makes batches; give mix='sample', or a batch size")
    return mixing


def iterable(name: str, value: Any) -> Any:
    """What can be iterated."""
    if isinstance(value, type):
        refuse(name, value, f"it is a class: give an object, such as {value.__name__}(dataset)")
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        refuse(name, value, "give an iterable, such as a torch.utils.data.Sampler")
    return value


def keyword_arguments(name: str, value: Any) -> dict[str, Any]:
    """Arguments by name; None: none."""
    if value is not None and not isinstance(value, Mapping):
        hint = f"; the batch size goes by name: batch_size={value}" if type(value) is int else ""
        refuse(name, value, f"give a dict of keyword arguments, or None{hint}")
    for key in value or ():
        if not isinstance(key, str):
            refuse(name, value, f"keyword arguments have names, and {key!r} is none")
    return dict(value or {})


def error_policy(name: str, value: Any) -> Any:
    """What is done with bad samples."""
    if value not in ("raise", "skip", "replace") and not callable(value):
        refuse(name, value, "give 'raise', 'skip', 'replace', or a callable (exception, index) -> "
               "sample")  # fmt: skip
    return value


def path(name: str, value: Any) -> str:
    """The path of a file."""
    if not isinstance(value, (str, os.PathLike)):
        refuse(name, value, "give the path of a file")
    return os.fsdecode(value)


def key_file(name: str, value: Any) -> str | Literal[False] | None:
    """The path of a file; None: what the environment names; False: none."""
    return value if value is None or value is False else path(name, value)


def cpu_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """CPUs that this process may use: a list for all workers, or a list of lists."""
    if value is None:
        return ()
    here = sorted(usable_cpus())
    try:
        listed = list(value)
        if all(isinstance(cpu, int) for cpu in listed):
            listed = [listed]
        sets = tuple(tuple(int(cpu) for cpu in cpus) for cpus in listed)
    except (TypeError, ValueError):
        sets = ()
    if not sets or not all(cpus and set(cpus) <= set(here) for cpus in sets):
        refuse(name, value, f"give CPU numbers out of {here}, or lists of these")
    return sets


# ---- what options say together


def check_platform() -> None:
    """Raises `ConfigError` where there are no Unix sockets to pass descriptors over."""
    if sys.platform == "win32":
        raise ConfigError(
            "swift_loader runs on Linux (and macOS): it passes shared memory between processes "
            "over Unix sockets. On Windows, use it inside WSL 2"
        )


def check_codec(encoder: object, decoder: object) -> None:
    """Both or neither: one alone can't be the other's inverse. Raises `ConfigError`."""
    if (encoder is None) != (decoder is None):
        given, missing = ("batch_encoder", "batch_decoder")
        if encoder is None:
            given, missing = missing, given
        raise ConfigError(
            f"{given} is given and {missing} is not: give both (a batch to bytes and back), or "
            "neither for the built-in codec"
        )


def check_samplers(
    sampler: object, batch_sampler: object, shuffle: bool, batch_size: int | None, tail: str
) -> None:
    """An order of the user's leaves nothing to shuffle. Raises `ConfigError`."""
    for option, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and shuffle:
            refuse("shuffle", shuffle, f"{option} says the order; leave shuffle out")
    if batch_sampler is not None and (sampler is not None or batch_size != 1 or tail == "drop"):
        refuse("batch_sampler", batch_sampler, "it says sampler, batch_size and drop_last (tail); "
               "leave them out")  # fmt: skip


def check_no_loader(given: Mapping[str, Any], kind: type) -> None:
    """A loader is no data set, though it can be iterated. Raises `ConfigError`."""
    for name in ("dataset_class", "dataset"):
        if isinstance(given.get(name), kind):
            refuse(name, given[name], "it is a loader already; give the data set")


def check_adapted(caller: str) -> None:
    """Refuse to be resumed by Lightning's Trainer as a plain loader. Raises `ClosedError`.

    `caller`: the module that loads the state. The Trainer goes on counting from its checkpoint and
    takes ``len(loader)`` for a whole epoch, which is what is left of it here: it would cut epochs.
    """
    if caller.startswith(_TRAINER):
        raise ClosedError(
            "Lightning's Trainer can resume a SwiftLoader only through its adapter: return "
            "swift_loader.integrations.lightning.for_trainer(loader, self.trainer) from "
            "train_dataloader()"
        )


def only_asks(caller: str) -> bool:
    """Whether the module that calls ``iter(loader)`` only asks whether that can be done.

    Lightning's Trainer does so before each run. Were it given an epoch, its own epochs would be one
    behind the loader's, and two of them alike.
    """
    return caller.startswith(_TRAINER) and caller.endswith(".connectors.data_connector")


def consumer_number(index: Any, count: int) -> int:
    """Which of `count` consumers this process is; None: what the surroundings say.

    Raises `ClosedError` where they say nothing, `ConfigError` for anything else.
    """
    if index is None:
        index = own_index(count)
    if index is None:
        raise ClosedError(
            f"call start(consumer_index, device) before iterating: there are {count} consumers "
            f"(nb_consumer), and this process must say which it is"
        )
    if isinstance(index, (str, torch.device)):
        refuse("consumer_index", index, "the rank comes first; give a device by its name, "
               f"start(device={str(index)!r})")  # fmt: skip
    number: int = -1
    if not isinstance(index, bool) and hasattr(index, "__index__"):  # numpy's too
        number = int(index.__index__())
    if not 0 <= number < count:
        refuse("consumer_index", index, f"give a whole number in [0, {count}): the rank, out "
               f"of the {count} that nb_consumer={count} says")  # fmt: skip
    return number


def check_budget(values: Mapping[str, Any]) -> None:
    """`batch_tokens` says what the others would say. Raises `ConfigError`."""
    tokens, lengths = values["batch_tokens"], values["lengths"]
    if tokens is None:
        if lengths is not None:
            refuse("lengths", "…", "they are for batch_tokens; give that too, or leave them out")
        return
    if isinstance(values["dataset_class"], Mixture):
        refuse("batch_tokens", tokens, "batches of a Mixture are counted in samples: make its "
               "sources Packed ones, of so many tokens each; or give mix='batch', and each source "
               "a batch_size that its lengths allow")  # fmt: skip
    if lengths is None:
        refuse("batch_tokens", tokens, "give lengths= too, the tokens of each sample")
    others = {"batch_size": 1, "sampler": None, "batch_sampler": None, "tail": "balanced"}
    for name, default in others.items():
        if values[name] is None or values[name] != default:
            if name in ("sampler", "batch_sampler") and values[name] is None:
                continue
            refuse(name, values[name], "batch_tokens says which samples make a batch, and deals "
                   f"all of them; leave {name} out")  # fmt: skip
    lengths = np.asarray(lengths)
    if lengths.size and int(lengths.max()) > tokens:
        refuse("batch_tokens", tokens, f"sample {lengths.argmax()} alone has {lengths.max()} "
               "tokens: give more, or cut or leave out such samples")  # fmt: skip
    if lengths.size and int(lengths.min()) < 0:
        refuse("lengths", "…", f"sample {lengths.argmin()} has the length {lengths.min()}")


def check_told_of_ranks(told: bool) -> None:
    """One of several ranks must say so, or each would get every sample. Raises `ConfigError`."""
    known = known_rank()
    if told or known is None or known[1] == 1:
        return
    rank, nb_ranks = known
    raise ConfigError(
        f"nb_consumer is not given, and this process is rank {rank} of {nb_ranks} (by "
        f"torch.distributed, or by RANK and WORLD_SIZE in the environment): each rank would get "
        f"every sample of its data set. Give nb_consumer={nb_ranks}, and each gets a part of them; "
        "or nb_consumer=1 where that is what you want, as with a data set that is split by rank"
    )
