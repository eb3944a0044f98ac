"""Which order the options ask for: the plan's, the sampler's, or a stream's."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from swift_loader.errors import StateError, refuse
from swift_loader.loader.mixtures import plan_of_mixture
from swift_loader.loader.options import Config
from swift_loader.order.budgeted import BudgetedOrder
from swift_loader.order.order import Order
from swift_loader.order.planned import PlannedOrder
from swift_loader.order.sampled import SampledOrder
from swift_loader.order.sampling import Sampling
from swift_loader.order.sharded import ShardedOrder
from swift_loader.order.stream import StreamOrder
from swift_loader.order.told import inner_of
from swift_loader.plan import Plan
from swift_loader.plan.budget import BudgetTable
from swift_loader.plan.shards import ShardDeal
from swift_loader.ranks.agreement import EPOCH, FIRST_BATCH
from swift_loader.ranks.equal_steps import check_equal_steps
from swift_loader.sources.shards import ShardList
from swift_loader.worker.rank_signs import kind_that_splits, names_of_ranks, that_count
from swift_loader.worker.recipe import Size, length_of_stream
from swift_loader.worker.script import names_in_workers

__all__ = ["check_one_stands", "facts_of", "order_of", "sampling_of", "size_of_stream"]

_KEEPS_ONE = "torch.distributed.checkpoint"  # state for all ranks


def sampling_of(config: Config) -> Sampling | None:
    """The user's sampler, if there is one."""
    if not config.by_sampler:
        return None
    drop_last = config.tail == "drop"
    ahead = 0 if config.in_process else config.data_queue_size
    if config.queue_grows:  # the script has said nothing
        ahead = 2 * config.worker_per_consumer
    of_main = None  # workers that are forked, or threads, have what is here
    if config.start_method in ("main", "fresh"):
        of_main = () if config.sources else names_in_workers(config.start_method)
    return Sampling(
        config.sampler, config.batch_sampler, config.batch_size, drop_last, ahead, of_main
    )


def order_of(
    config: Config, size: Size, sampling: Sampling | None, seed: int, consumer: int
) -> Order:
    """The order of one consumer of a data set of this size. Raises `ConfigError`."""
    consumers, nb_samples = config.nb_consumer, size.nb_samples
    if config.equal_steps:
        check_equal_steps(nb_samples)
    if nb_samples is None:
        _check_stream(config)
        if config.shards is not None:
            return _sharded(config, config.shards, seed, consumer)
        seeds = Plan(2**62, config.batch_size, consumers, False, 0, seed, config.tail)
        return StreamOrder(seeds, consumer, max(1, config.worker_per_consumer))
    if sampling is not None:
        # Good for any batch number, and asked for seeds only.
        return SampledOrder(sampling, Plan(2**62, 1, consumers, False, 0, seed), consumer)
    if config.batch_tokens is not None:
        return _budgeted(config, nb_samples, seed, consumer)
    if config.mixing is not None:
        plan = plan_of_mixture(config, config.mixing, size.of_sources, seed)
        nb_samples = plan.nb_samples
    else:
        plan = Plan(
            nb_samples,
            config.batch_size,
            consumers,
            config.shuffle,
            config.nearby_shuffle,
            seed,
            config.tail,
        )
    if plan.nb_batches(0) != plan.nb_batches(consumers - 1):
        warnings.warn(
            f"{nb_samples} samples can't be dealt to {consumers} consumers in equally many batches "
            "of 1: some make a step less, and a training that averages gradients in each step "
            "would hang. Give tail='drop' or tail='pad', or samples that divide evenly",
            stacklevel=4,
        )
    if nb_samples and not plan.nb_batches(consumer):
        warnings.warn(
            f"{nb_samples} samples for {consumers} consumers make no full batch of "
            f"{config.batch_size}, and tail='drop' (drop_last) drops the rest: epochs are empty",
            stacklevel=4,
        )
    return PlannedOrder(plan, consumer)


def _sharded(config: Config, shards: ShardList, seed: int, consumer: int) -> ShardedOrder:
    workers = max(1, config.worker_per_consumer)
    if shards.count < config.nb_consumer * workers:
        warnings.warn(
            f"there are {shards.count} shards for {config.nb_consumer} consumers with {workers} "
            "workers each, so some have none to read: give more shards, or fewer workers",
            stacklevel=5,
        )
    deal = ShardDeal(shards.count, config.nb_consumer, workers, config.shuffle, seed, shards.buffer)
    return ShardedOrder.of(deal, shards.digest, consumer, config.batch_size, config.tail)


def _budgeted(config: Config, nb_samples: int, seed: int, consumer: int) -> BudgetedOrder:
    assert config.batch_tokens is not None
    if len(config.lengths) != nb_samples:
        refuse("lengths", f"{len(config.lengths)} numbers", f"the data set has {nb_samples} "
               "samples: give the length of each")  # fmt: skip
    table = BudgetTable(config.lengths, config.batch_tokens, config.token_cost)
    order = BudgetedOrder.of(table, config.nb_consumer, consumer, config.shuffle, seed)
    most, fewest = order.steps_of_all()
    if most != fewest:
        warnings.warn(
            f"batch_tokens: consumers make {fewest} to {most} steps, as single "
            "samples can't be split: a training that averages gradients in each step would hang. "
            "Give more batch_tokens, or samples that divide evenly",
            stacklevel=5,
        )
    return order


def check_one_stands(caller: str, order: Order, config: Config) -> None:
    """Raises `StateError` where the module `caller` would keep one state, and there are several."""
    alike = order.one_stands_for_all and config.in_order
    if caller.startswith(_KEEPS_ONE) and config.nb_consumer > 1 and not alike:
        raise StateError(
            "torch.distributed.checkpoint keeps one state for all ranks, and here each consumer "
            "has its own (that of a stream, of a sampler, or of in_order=False): save and load "
            "swift_loader.integrations.checkpoint.for_checkpoint(loader) in place of the loader"
        )


def facts_of(order: Order, config: Config, epoch: int, by_one: bool) -> dict[str, Any]:
    """What all consumers must agree on as they begin with `epoch`.

    `by_one`: they hold no states, or one each, so they begin at the same batch in most trainings.
    """
    plan, *_ = order.plans().values()
    facts: dict[str, Any] = plan.fingerprint()
    if plan.mixture is not None:  # each of its facts by itself, so that an error names what differs
        mixture = facts.pop("mixture")
        facts.update((f"mixture: {name}", value) for name, value in mixture.items())
    inner = inner_of(order)
    return {
        **facts,
        **{f"the data set: {name}": value for name, value in config.alike.items()},
        **(inner.facts if isinstance(inner, (BudgetedOrder, ShardedOrder)) else {}),
        "sampler": isinstance(order, SampledOrder),
        "equal_steps": config.equal_steps,
        **(_place(order, epoch, config) if by_one and order.one_stands_for_all else {}),
    }


def _place(order: Order, epoch: int, config: Config) -> dict[str, Any]:
    """Where a consumer begins. One that has fewer batches than the others may have ended."""
    inner: Any = inner_of(order)
    part, last = inner.part(epoch), replace(inner, consumer=config.nb_consumer - 1).part(epoch)
    return {
        EPOCH: epoch,
        FIRST_BATCH: min(part.first, last.count),
        "what is left of the epoch": inner.plans()[part.plan_id].spans,
    }


def size_of_stream(stream: Any, config: Config, consumer: int, split: str) -> int:
    """Batches of a consumer's epoch, by the stream's ``__len__``. `TypeError` if it has none.

    As torch counts them: as if one worker made them all. `split`: who splits it, as was decided.
    """
    length = length_of_stream(stream)
    if split == "auto":
        splits = kind_that_splits(stream) or that_count(names_of_ranks(stream, {}))
        split = "workers" if splits else "ranks"
    if split == "ranks":  # one that splits itself counts its own part
        consumers = range(config.nb_consumer) if config.equal_steps else (consumer,)
        length = min(_nb_dealt(length, config, one) for one in consumers)
    full, rest = divmod(length, config.batch_size)
    return full + bool(rest and config.tail != "drop")


def _nb_dealt(length: int, config: Config, consumer: int) -> int:
    """Items of a consumer, where the workers of all ranks take turns."""
    workers = max(1, config.worker_per_consumer)
    step = config.nb_consumer * workers
    return sum(len(range(consumer * workers + worker, length, step)) for worker in range(workers))


def _check_stream(config: Config) -> None:
    """A stream has no positions: refuse what needs them. Raises `ConfigError`."""
    if config.shuffle and config.shards is None:
        refuse(
            "shuffle",
            True,
            "a stream can't be shuffled here, unless it is Shards or a data pipe that is built; "
            "shuffle in the dataset",
        )
    if config.sampler is not None or config.batch_sampler is not None:
        refuse("sampler", "…", "a stream has no indices; leave it out")
    if config.batch_tokens is not None:
        refuse("batch_tokens", config.batch_tokens, "a stream has no lengths; batch in the dataset")
    if config.sources or config.auto_workers:
        refuse(
            "worker_per_consumer",
            "auto" if config.auto_workers else config.worker_per_consumer,
            "the shards of a stream belong to local workers: give their number, and no "
            "remote_workers",
        )
