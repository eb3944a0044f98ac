"""Every option of a loader, defined once: its name, type, default, check, text and group.

A field of `Config` is the definition. README's table is made of it (``scripts/options_table.py``),
and so are the parameters in ``help(SwiftLoader)``. ``signature.Options`` repeats names and types
for type checkers and editors, which read source; a test compares.

To add an option: a field here, a key there, and ``scripts/options_table.py --write``.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import torch

from swift_loader.batch.fetch import OnError
from swift_loader.cache.options import Cache, as_cache
from swift_loader.errors import refuse
from swift_loader.loader.bar import bar_wanted
from swift_loader.loader.checks import (
    Check,
    anything,
    check_budget,
    check_codec,
    check_platform,
    check_samplers,
    cpu_lists,
    device_name,
    error_policy,
    factory_or_dataset,
    flag,
    function,
    is_built,
    iterable,
    key_file,
    keyword_arguments,
    mixing_of,
    one_of,
    one_of_numbers,
    optional,
    path,
    seconds,
    seconds_or_0,
    seed_number,
    start_method_of_script,
    torch_generator,
    whole,
    whole_numbers,
)
from swift_loader.loader.data_pipes import with_shuffle
from swift_loader.loader.names import by_own_names
from swift_loader.loader.seeds import seed_of
from swift_loader.pipeline.elsewhere import RemoteWorkers, remote_workers_of
from swift_loader.sources.alike import to_be_alike
from swift_loader.sources.mixture import Mixing, Mixture
from swift_loader.sources.shards import ShardList, shard_list_of
from swift_loader.telemetry.log import LogConfig, log_config
from swift_loader.telemetry.sinks.addresses import sinks_of
from swift_loader.telemetry.sinks.sink import SinkSpec
from swift_loader.worker.cpus import available_cpus
from swift_loader.worker.recipe import given as given_dataset
from swift_loader.worker.script import StartMethod

__all__ = ["Config", "Definition", "definitions", "parameters_text"]

T = TypeVar("T")
_A_DAY_S = 86400.0
_LEAST_QUEUE = 10
_MOST_WORKERS = 4096  # far beyond any machine: it is another number that was meant
DATA = "data"
WHO = "who"
ORDER = "order"
BOUNDS = "bounds"
FAULTS = "when things go wrong"
SEEING = "seeing"
TORCH = "as torch's `DataLoader` has them"


@dataclass(frozen=True)
class Definition:
    """One option, for whoever documents it. `shown` is its default in words."""

    name: str
    type: str
    default: Any
    group: str
    text: str
    shown: str


def option(
    default: Any, check: Check, group: str, text: str, *, given: str = "", shown: str = ""
) -> Any:
    """A field of `Config`; see the module's text.

    `given`: the type of what the user gives, where the checked value has another. `shown`: the
    default in words, where its `repr` doesn't tell. A default of MISSING: the option is required.
    """
    about = {"check": check, "group": group, "text": text, "given": given, "shown": shown}
    return field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a loader as it uses them: checked, and with defaults that depend on others."""

    # fmt: off
    # ---- data
    dataset_class: Callable[..., Any] | None = option(
        None, factory_or_dataset, DATA,
        "a class, or any callable, that returns a data set with `__getitem__` and `__len__` "
        "(`__getitems__` is used where there is one), or a stream (with `__iter__`), each item of "
        "which comes once over all consumers and workers. Every worker calls it. Or a data set "
        "that is built already: it travels to the workers by pickle, as it is when the loader is "
        "started (what you change in it later does not reach them; `docs/limits.md` names the "
        "exceptions). Or a `Mixture` of several data sets",
        given="Callable[..., Any] | Any", shown="required",
    )
    dataset_kwargs: dict[str, Any] = option(
        None, keyword_arguments, DATA,
        "the keyword arguments of `dataset_class`; large arrays and `bytes` among them are shared "
        "by the workers, not copied. The loader keeps no reference to them",
        given="Mapping[str, Any] | None",
    )
    batch_size: int = option(
        1, optional(whole(1)), DATA,
        "samples in a batch, per consumer. `None`: no batches; each sample comes by itself, and "
        "`collate_fn` (by default torch's `default_convert`) gets the single sample",
        given="int | None",
    )
    transform: Callable[[Any], Any] | None = option(
        None, optional(function), DATA,
        "the worker calls it with each sample, each time that the sample is used, and collates "
        "what it returns. Its random draws are seeded for each batch",
    )
    collate_fn: Callable[[list[Any]], Any] | None = option(
        None, optional(function), DATA,
        "makes a batch of a list of samples. The default takes all types that torch's takes, and "
        "also dataclasses and `None`, and writes straight into shared memory. A function of your "
        "own costs one copy of the batch",
        shown="torch's semantics",
    )
    cache: Cache | None = option(
        None, as_cache, DATA,
        "keeps samples once they are made, for all ranks and workers of a host and for the epochs "
        'to come: `"32GB"` of memory, or `swift_loader.Cache(memory=, disk=, key=)`, also in files '
        "that outlive the run. Make random draws in `transform` then. See `docs/cache.md`",
        given="Cache | int | str | None",
    )
    batch_encoder: Callable[[Any], bytes] | None = option(
        None, optional(function), DATA,
        "turns a batch into bytes; needs `batch_decoder`",
        shown="pickle 5, buffers in place",
    )
    batch_decoder: Callable[[bytes], Any] | None = option(
        None, optional(function), DATA,
        "turns bytes into a batch; needs `batch_encoder`",
        shown="pickle 5, buffers in place",
    )
    # ---- who
    nb_consumer: int = option(
        1, whole(1), WHO, "number of training processes, each with its own device"
    )
    worker_per_consumer: int = option(
        1, whole(0, "auto"), WHO,
        "worker processes of each consumer. `0`: the training process makes each batch itself "
        "when it needs one, with the same random draws: for breakpoints and profilers. "
        '`"auto"`: the loader begins with one worker, adds more while the '
        "training loop waits for data, as long as there are CPUs, and takes away those that are "
        "not needed. The batches are the same",
        given='int | Literal["auto"]',
    )
    worker_affinity: tuple[tuple[int, ...], ...] = option(
        None, cpu_lists, WHO,
        "CPUs that the workers may run on: one list for all, or a list of lists, which "
        "the workers get in turn",
        given="Sequence[int] | Sequence[Sequence[int]] | None",
    )
    remote_workers: str | RemoteWorkers | Sequence[str | RemoteWorkers] | None = option(
        None, anything, WHO,  # `remote_workers_of` says what is wrong, with what a source needs
        "workers elsewhere, beside the local ones or (`worker_per_consumer=0`) in their place: "
        "addresses of endpoints that `swift-loader serve` runs, such as "
        '`["tcp://node01:6543"]`, or an object such as `swift_loader.remote.RayWorkers`',
    )
    remote_key: str | Literal[False] | None = option(
        None, key_file, WHO,
        "the key file of those endpoints, made by `swift-loader keygen`; default: the "
        "file that the environment variable `SWIFT_LOADER_KEY` names. `False`: no key, even "
        "toward other machines",
        given="str | os.PathLike[str] | Literal[False] | None",
    )
    remote_timeout: float = option(
        30.0, lambda name, value: seconds(name, value) or _A_DAY_S, WHO,
        "seconds for which the loader retries an endpoint that it can't reach, before it gives "
        "that endpoint up. If an endpoint in use shows no life for a third of that, other "
        "workers take its work",
    )
    equal_steps: bool = option(
        False, flag, WHO,
        "for streams: all consumers end the epoch at the same step, when the first has no batch "
        "left. Needs `torch.distributed` with one rank for each consumer, or a mesh. All must "
        "begin every epoch, and leave it after the same step, within `timeout` of each other",
    )
    stream_split: Literal["auto", "workers", "ranks"] = option(
        "auto", one_of("auto", "workers", "ranks"), WHO,
        'for streams, who splits them by rank. `"workers"`: the stream itself; worker info counts '
        'the workers of this rank, as in torch. `"ranks"`: the loader; worker info counts the '
        'workers of all ranks. `"auto"`: the stream if it does, else the loader',
    )
    threads_per_worker: int = option(
        1, whole(1), WHO,
        "threads that fetch samples in each worker: for data sets that wait for I/O. Draws from "
        "the global random generators then depend on the threads' timing",
    )
    worker_init_fn: Callable[[int], None] | None = option(
        None, optional(function), WHO,
        "called once in each worker with the worker's number, after the worker has built its data "
        "set, which is `get_worker_info().dataset`",
    )
    start_method: StartMethod = option(
        "auto", start_method_of_script, WHO,
        'how workers get what the script has set. `"main"`: they import the script once, for '
        'all workers, without what stands below `if __name__ == "__main__"`. `"fresh"`: they never '
        'see it. `"fork"`: their common parent is forked from this process in `start()`, before '
        'CUDA is in use. `"thread"`: workers are threads of this process, for data sets that '
        'release the GIL. `"auto"`: `"main"` where the script has such a guard, else `"fresh"`. '
        "`docs/workers.md` has a table. Without workers it has no effect",
        given='Literal["auto", "main", "fresh", "fork", "thread"]',
    )
    # ---- order
    shuffle: bool = option(
        False, lambda name, value: flag(name, value or False), ORDER,
        "another order in every epoch. Of a graph of data pipes, as torch's loader does: switches "
        "its shufflers on or off",
    )
    nearby_shuffle: int = option(
        None, optional(whole(0)), ORDER,
        "how many samples a shuffle mixes at a time: runs of neighbours (16 samples each with "
        "8192) from all over the data set, so that reads stay near one another and batches are as "
        "mixed as in a full shuffle. `0`: a full shuffle",
        given="int | None", shown="`max(8192, 64 * batch_size)`",
    )
    seed: int | None = option(
        None, optional(seed_number), ORDER,
        "seed of the order and of the random draws in the workers; all consumers must agree. "
        "Default: `PL_GLOBAL_SEED`, else rank 0's `torch.initial_seed()` where "
        "`torch.distributed` is initialised, else, with one consumer and no ranks, what the script "
        "gave `torch.manual_seed` (below 2**32), else 0; never the clock. Also accepted: "
        "`seed_number`, `seed_numer`",
        shown="the run's, else 0",
    )
    sampler: Iterable[Any] | None = option(
        None, optional(iterable), ORDER,
        "an order of yours, such as a torch `Sampler`. It gives the indices for this consumer only "
        "(torch's `DistributedSampler` does so; most others give the same indices on every "
        "consumer). The loader calls its `set_epoch` if it has one",
    )
    batch_sampler: Iterable[Sequence[Any]] | None = option(
        None, optional(iterable), ORDER,
        "like `sampler`, but it gives lists of indices, one for each batch",
    )
    batch_tokens: int | None = option(
        None, optional(whole(1)), ORDER,
        "bounds batches by tokens and not by samples: samples of similar `lengths` come together, "
        "as many as there is room for. In place of `batch_size`. All consumers make equally many "
        "steps. `docs/packing.md` tells more",
    )
    lengths: Any = option(
        None, optional(whole_numbers), ORDER,
        "for `batch_tokens`, the tokens of each sample: an integer array, which may be "
        "memory-mapped",
    )
    token_cost: Literal["padded", "sum"] = option(
        "padded", one_of("padded", "sum"), ORDER,
        'what a batch costs toward `batch_tokens`. `"padded"`: its longest sample times its number '
        'of samples. `"sum"`: the tokens of all its samples',
    )
    tail: Literal["balanced", "drop", "pad"] = option(
        "balanced", one_of("balanced", "drop", "pad"), ORDER,
        'what happens where the samples don\'t divide. `"balanced"`: every sample once, and equal '
        'steps; consumers differ by a sample at most (with `batch_size=1` some make a step '
        'less). `"drop"`: full batches only. `"pad"`: repeats samples from the beginning, up to '
        'equal counts',
    )
    in_order: bool = option(
        True, flag, ORDER,
        "batches come in the plan's order. `False`: the first batch that is ready comes first, "
        "within the epoch",
    )
    # ---- bounds
    data_queue_size: int = option(
        None, optional(whole(1)), BOUNDS,
        "batches made and not yet consumed, per consumer, over all its workers. Default: 10, or "
        "twice the number of workers if that is more; up to 40 if the batches take less than 64 "
        "MB, and up to 160 where workers make them in less than a millisecond",
        given="int | None", shown="10, or more",
    )
    prefetch_epochs: int = option(
        1, one_of_numbers(0, 1), BOUNDS,
        "`1`: workers begin the next epoch while the current one runs. `0`: they begin an epoch "
        "only when the loop does",
    )
    message_queue_size: int | None = option(
        None, optional(whole(1)), BOUNDS,
        "how many batch numbers wait at one worker, at most. It gets as many as it makes in 4 ms, "
        "and at least two. Default: 64 at a worker on this machine, 10 at one elsewhere",
        given="int | None", shown="64 or 10",
    )
    max_buffer_size: int = option(
        None, optional(whole(1)), BOUNDS,
        "batches that a reader thread decodes ahead",
        given="int | None", shown="`max(2, data_queue_size // worker_per_consumer)`",
    )
    max_nb_batch_on_device: int = option(
        1, whole(1), BOUNDS, "batches that wait on the device ahead of the loop"
    )
    device_buffers: Literal["fresh", "static"] = option(
        "fresh", one_of("fresh", "static"), BOUNDS,
        '`"static"`: every batch lies in the tensors of the first one, for CUDA graphs, until the '
        "next is asked for; all batches have one shape then",
    )
    multithread: bool = option(
        True, flag, BOUNDS,
        "for batches that need work on arrival (a device, a decoder of yours): one reader thread "
        "for each worker. `False`: one for all workers. Other batches need no thread: the training "
        "thread reads them itself",
    )
    # ---- when things go wrong
    validate: bool = option(
        True, flag, FAULTS,
        "make one batch when the loader is built, and raise any error at once. Turn it off if the "
        "data set is expensive to build",
    )
    timeout: float | None = option(
        600.0, optional(seconds_or_0), FAULTS,
        "seconds without a batch, after which an error names the hung worker, its sample and its "
        "stack; `None` or `0` waits for ever. It does not bound `start()`, which waits as long as "
        "the data set's constructor takes, and warns each minute with the line where that is",
    )
    on_timeout: Literal["raise", "restart"] = option(
        "raise", one_of("raise", "restart"), FAULTS,
        '`"raise"`: the run ends with the error of `timeout`. `"restart"`: the loader replaces the '
        'hung worker and has its batches made again',
    )
    on_error: OnError = option(
        "raise", error_policy, FAULTS,
        'for a sample that raises: `"skip"`, `"replace"`, or a callable `(exception, index) -> '
        "sample`, which may return `swift_loader.SKIP`. Steps stay equal over consumers",
    )
    max_bad_samples: int | None = option(
        None, optional(whole(0)), FAULTS,
        "how many samples the loader may skip or replace in an epoch before it raises an error; "
        "`None`: no bound",
    )
    max_worker_restarts: int = option(
        10, whole(0), FAULTS,
        "how many dead workers the loader replaces in an epoch before it raises an error",
    )
    max_deaths_per_batch: int = option(
        2, whole(1), FAULTS,
        "how many workers may die while making the same batch before the run ends with an error. "
        "Until then, another worker makes the batch again; after the second death, it does so "
        "while it has no other batch. If the last of them was killed from outside (`SIGKILL`), "
        "the batch is tried once more",
    )
    # ---- seeing
    logger: LogConfig | None = option(
        None, lambda name, value: log_config(value), SEEING,
        "a path prefix, or a dict of `path`, `stdout`, `level`: one log file for each kind of "
        "process",
        given="str | os.PathLike[str] | Mapping[str, Any] | None",
    )
    benchmark: bool = option(
        True, flag, SEEING,
        "writes figures of every stage into the log (see `logger`), a line a second: cheap enough "
        "to leave on",
    )
    benchmark_file: str | None = option(
        None, optional(path), SEEING,
        "writes the same figures into this file, one JSON object a line",
        given="str | os.PathLike[str] | None",
    )
    metrics: tuple[SinkSpec, ...] = option(
        None, sinks_of, SEEING,
        "where figures go while the loader runs, one place or a list: "
        "`\"prometheus://127.0.0.1:9400\"`, `\"otlp://127.0.0.1:4318\"`, "
        "`\"tensorboard:runs/loader\"`, `\"wandb\"`, `\"mlflow\"`, a `SummaryWriter`, a W&B run, a "
        "`MeterProvider`, or a callable that gets a `dict[str, float]` every 5 seconds. "
        "`docs/metrics.md` has the names. A place that fails or hangs holds up no batch",
        given="Any",
    )
    progress: bool = option(
        False, bar_wanted, SEEING,
        "shows a bar for each epoch, on consumer 0, in a terminal or a notebook; "
        "`loader.progress()` does it for one epoch",
    )
    trace_file: str | None = option(
        None, optional(path), SEEING,
        "writes a trace of the stages into this file, for https://ui.perfetto.dev",
        given="str | os.PathLike[str] | None",
    )
    # ---- as torch's `DataLoader` has them
    generator: torch.Generator | None = option(
        None, optional(torch_generator), TORCH, "its initial seed at the start becomes the `seed`"
    )
    pin_memory: bool = option(
        False, flag, TORCH,
        "where CUDA is, batches that stay on the CPU lie in page-locked memory (with a CUDA "
        "device in `start()` this changes nothing)",
    )
    pin_memory_device: str = option(
        "", device_name, TORCH, "the device for which `pin_memory` locks pages"
    )
    persistent_workers: bool | None = option(
        None, optional(flag), TORCH, "has no effect: workers always stay for all epochs"
    )
    # fmt: on
    # ---- what follows from these
    mixing: Mixing | None = None  # the data set is a mixture
    sources: tuple[RemoteWorkers, ...] = ()  # of workers elsewhere
    by_sampler: bool = False  # the order is the user's
    shards: ShardList | None = None  # of a stream that tells them
    by_shards: bool = False
    alike: Mapping[str, Any] = field(default_factory=dict)  # of the data set, on all ranks
    auto_collation: bool = True  # as torch calls it: samples are collated to batches
    in_process: bool = False  # there are no workers
    auto_workers: bool = False
    queue_grows: bool = False  # with the workers that an endpoint turns out to have

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """Check what was given, by name. Raises `ConfigError`."""
        check_platform()
        named = by_own_names(given)
        values = {}
        for about in _defined():
            name, value = named.get(about.name, (about.name, about.default))
            values[about.name] = about.metadata["check"](name, value)
        check_codec(values["batch_encoder"], values["batch_decoder"])
        check_samplers(
            values["sampler"],
            values["batch_sampler"],
            values["shuffle"],
            values["batch_size"],
            values["tail"],
        )
        check_budget(values)
        values["by_sampler"] = values["sampler"] is not None or values["batch_sampler"] is not None
        if values["batch_size"] is None:
            if values["tail"] == "drop":
                refuse("batch_size", None, "without batches, leave drop_last (tail='drop') out")
            values["batch_size"], values["auto_collation"] = 1, False
        if values["generator"] is not None:
            if values["seed"] is not None:
                refuse("generator", "…", "seed is given too: give one of them")
            values["seed"] = seed_of(values["generator"])
        kwargs = named.get("dataset_kwargs", ("", None))[1]
        if isinstance(values["dataset_class"], Mixture):
            values["mixing"] = mixing_of(values, values["dataset_class"], kwargs)
        if values["nb_consumer"] > 1:  # of 10^8 lengths the checksum takes a quarter of a second
            values["alike"] = to_be_alike(values["dataset_class"])
        if is_built(values["dataset_class"], with_kwargs=kwargs is not None):
            if kwargs is not None:
                refuse("dataset_kwargs", kwargs, "the data set is built already; leave them out")
            wanted = named.get("shuffle", ("shuffle", None))[1]
            dataset, values["shuffle"] = with_shuffle(values["dataset_class"], wanted)
            values["dataset_kwargs"] = {"dataset": dataset}
            values["dataset_class"] = given_dataset
        values["shards"] = shard_list_of(values["dataset_class"], values["dataset_kwargs"])
        values["by_shards"] = values["shards"] is not None
        sources = remote_workers_of(values["remote_workers"], values["remote_key"])
        if sources and values["start_method"] == "fork":
            refuse("start_method", "fork", "remote_workers are not forked from this process: give "
                   "'main' or 'fresh'")  # fmt: skip
        if sources and values["by_shards"]:
            refuse("remote_workers", values["remote_workers"], "the shards of a stream belong to "
                   "local workers: leave them out")  # fmt: skip
        if values["start_method"] == "thread":
            _check_threads(values)
        values["sources"] = tuple(sources)
        nb_remote = sum(source.nb_links for source in sources)
        workers = values["worker_per_consumer"]
        values["auto_workers"] = workers == "auto"
        if values["auto_workers"]:
            values["worker_per_consumer"] = workers = available_cpus()
        elif not workers and not nb_remote:
            values["in_process"] = True
            name, value = named.get("data_queue_size", ("", None))
            if name == "prefetch_factor":
                refuse(name, value, "without workers nothing is made ahead; leave it out")
            if values["persistent_workers"]:
                refuse("persistent_workers", True, "there are no workers (num_workers=0)")
        if workers > _MOST_WORKERS:
            refuse("worker_per_consumer", workers, f"each is a process; give at most "
                   f"{_MOST_WORKERS}, or 'auto' for as many as help")  # fmt: skip
        workers = max(1, workers + nb_remote)
        if values["nearby_shuffle"] is None:
            values["nearby_shuffle"] = max(8192, 64 * values["batch_size"])
        values["queue_grows"] = values["data_queue_size"] is None
        if values["queue_grows"]:  # a batch to make and one to go on with, for each worker
            values["data_queue_size"] = max(_LEAST_QUEUE, 2 * workers)
        elif named["data_queue_size"][0] == "prefetch_factor":
            values["data_queue_size"] *= workers
        if values["max_buffer_size"] is None:
            values["max_buffer_size"] = max(2, values["data_queue_size"] // workers)
        return cls(**values)

    def without_dataset(self) -> Config:
        """The same, and what may be large is not held."""
        return replace(self, dataset_class=None, dataset_kwargs={})

    def with_dataset(self, dataset: Any) -> Config:
        """The same, of a data set that is built."""
        return replace(self, dataset_class=given_dataset, dataset_kwargs={"dataset": dataset})

    def part(self, kind: Callable[..., T], **others: Any) -> T:
        """A dataclass of some of these options, by their names, and of `others`."""
        names = {about.name for about in fields(kind)}  # type: ignore[arg-type]
        mine = {about.name for about in fields(self)} & names - others.keys()
        return kind(**{name: getattr(self, name) for name in mine}, **others)

    def plain(self) -> dict[str, Any]:
        """Those that are plain values, for a file of figures."""
        values = {about.name: getattr(self, about.name) for about in fields(self)}
        del values["remote_key"]
        return {
            name: value
            for name, value in values.items()
            if value is None or isinstance(value, (bool, int, float, str))
        }


def _check_threads(values: dict[str, Any]) -> None:
    """Raises `ConfigError` where what is wanted of a thread needs a process."""
    if values["worker_affinity"]:
        refuse("worker_affinity", values["worker_affinity"], "with start_method='thread' workers "
               "run on the CPUs of this process: leave it out")  # fmt: skip
    if values["threads_per_worker"] > 1:
        refuse("threads_per_worker", values["threads_per_worker"], "with start_method='thread' "
               "each worker is a thread: give a larger worker_per_consumer")  # fmt: skip
    if values["cache"] is not None:
        refuse("cache", "…", "start_method='thread' keeps no samples: they are in this process, so "
               "the data set may keep them itself; or give another start_method")  # fmt: skip


def definitions() -> list[Definition]:
    """All options, in the order in which the documentation has them."""
    return [
        Definition(
            about.name,
            about.metadata["given"] or str(about.type),
            inspect.Parameter.empty if about.default is MISSING else about.default,
            about.metadata["group"],
            about.metadata["text"],
            about.metadata["shown"] or _code(about.default),
        )
        for about in _defined()
    ]


def parameters_text() -> str:
    """The options as the section "Parameters" of a docstring."""
    lines = []
    for one in definitions():
        words = f"{one.text[0].upper()}{one.text[1:]}. Default: {one.shown}."
        lines += [f"{one.name}: {one.type}", textwrap.indent(textwrap.fill(words, 92), "    ")]
    return "Parameters\n----------\n" + "\n".join(lines)


def _code(value: Any) -> str:
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def _defined() -> list[Field[Any]]:
    return [about for about in fields(Config) if "check" in about.metadata]
