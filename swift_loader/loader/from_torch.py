"""The arguments of torch's `DataLoader` in the words of `SwiftLoader`. Pure.

====================  ==========================================================================
torch                 here
====================  ==========================================================================
dataset               travels to the workers by pickle, arrays out of band
batch_size            batch_size
shuffle               shuffle, over the whole dataset (nearby_shuffle=0)
sampler,              taken over where the user brought one: the order is theirs
batch_sampler
num_workers           worker_per_consumer
prefetch_factor       data_queue_size, times the workers
collate_fn            collate_fn; torch's default becomes ours, which gives the same
drop_last             tail="drop"
timeout               timeout; torch's 0 (none) becomes our default
worker_init_fn        worker_init_fn
generator             its initial seed: seed
in_order              in_order
pin_memory,           the same
pin_memory_device
multiprocessing_      start_method: "fork" for fork, "main" for spawn and forkserver
context
persistent_workers    nothing: workers stay for all epochs
====================  ==========================================================================
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate, default_convert

from swift_loader.errors import refuse
from swift_loader.loader.names import start_method_like

__all__ = ["dataset_and_options"]

# Where a subclass may have its own way; not all versions of torch have all of them.
_HOOKS = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation", "_get_shared_seed")
_LIKE = "torchdata.stateful_dataloader"  # it yields what torch's does


def dataset_and_options(dataloader: object) -> tuple[Any, dict[str, Any]]:
    """The dataset of a torch `DataLoader`, and the options of a loader that does as it does.

    Raises `ConfigError` for anything that is no `DataLoader`.
    """
    if not isinstance(dataloader, DataLoader):
        refuse(
            "torch_dataloader",
            dataloader,
            "give a torch.utils.data.DataLoader" + _unwrap(dataloader),
        )
    _check_iterates_plainly(dataloader)
    in_batches = dataloader.batch_size is not None or dataloader.batch_sampler is not None
    default = default_collate if in_batches else default_convert  # which give the same here
    options: dict[str, Any] = {
        "worker_per_consumer": dataloader.num_workers,
        "worker_init_fn": dataloader.worker_init_fn,
        "pin_memory": dataloader.pin_memory,
        "pin_memory_device": dataloader.pin_memory_device,
        "persistent_workers": None if dataloader.persistent_workers else False,
        "in_order": getattr(dataloader, "in_order", True),  # torch has it since 2.6
        "collate_fn": None if dataloader.collate_fn is default else dataloader.collate_fn,
        **_order(dataloader),
    }
    if dataloader.num_workers and dataloader.prefetch_factor:
        options["data_queue_size"] = dataloader.num_workers * dataloader.prefetch_factor
    context = dataloader.multiprocessing_context
    if context is not None:
        options["start_method"] = start_method_like("multiprocessing_context", context)
    if dataloader.timeout:
        options["timeout"] = dataloader.timeout
    # torch wraps data pipes for its own pickling.
    return getattr(dataloader.dataset, "_datapipe", dataloader.dataset), options


def _unwrap(dataloader: object) -> str:
    """What to do with a loader that a framework has wrapped, or with what is none."""
    if hasattr(type(dataloader), "call_dataset"):
        return "; it is a SwiftLoader already"
    if hasattr(type(dataloader), "__getitem__"):
        return "; a data set goes to SwiftLoader(dataset, ...)"
    if not type(dataloader).__module__.startswith("lightning"):
        return ""
    return (
        ". It is wrapped by Fabric: give the loader that was given to fabric.setup_dataloaders, "
        "with nb_consumer=fabric.world_size, to swift_loader.integrations.fabric.for_fabric"
    )


def _check_iterates_plainly(dataloader: DataLoader[Any]) -> None:
    """A subclass that draws, makes or changes batches in ways of its own would lose them here."""
    kind: Any = type(dataloader)
    base = next(
        one for one in kind.__mro__ if one is DataLoader or one.__module__.startswith(_LIKE)
    )
    for name in _HOOKS:
        inherited = getattr(kind, name, None) is getattr(base, name, None)
        if not inherited or name in vars(dataloader):
            refuse("torch_dataloader", dataloader, f"{kind.__qualname__} iterates in its own way "
                   f"({name}), which would be lost: give the plain DataLoader inside it, or build "
                   "SwiftLoader(dataset, ...) and do in its sampler, in collate_fn or in the loop "
                   "what it does")  # fmt: skip
    if kind.__len__ is not base.__len__:
        warnings.warn(
            f"from_dataloader: {kind.__qualname__} has a __len__ of its own, and the loader does "
            "not take it over: len(loader) is that of its data set or sampler",
            RuntimeWarning,
            stacklevel=4,  # of the line that calls `from_dataloader`
        )


def _order(dataloader: DataLoader[Any]) -> dict[str, Any]:
    sampler, batches = dataloader.sampler, dataloader.batch_sampler
    if dataloader.batch_size is None and batches is not None:
        return {"batch_sampler": batches}
    options: dict[str, Any] = {"batch_size": dataloader.batch_size}
    if dataloader.drop_last:
        options["tail"] = "drop"
    if isinstance(dataloader.dataset, IterableDataset):
        return options
    if type(sampler) is SequentialSampler and _is_of_all(sampler, dataloader.dataset):
        return options
    if (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
        and _is_of_all(sampler, dataloader.dataset)
    ):
        options.update(shuffle=True, nearby_shuffle=0)
        if sampler.generator is not None:
            options["seed"] = sampler.generator.initial_seed() % 2**63
        return options
    return {**options, "sampler": sampler}


def _is_of_all(sampler: Any, dataset: Any) -> bool:
    """Whether it counts the samples of the data set: it may have been given something shorter."""
    source = sampler.data_source
    return source is dataset or (hasattr(dataset, "__len__") and len(source) == len(dataset))
