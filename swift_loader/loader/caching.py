"""Which store the option `cache` means."""

from __future__ import annotations

import os
import secrets

from swift_loader.cache.fingerprint import fingerprint
from swift_loader.cache.naming import StoreName, run_of
from swift_loader.errors import refuse
from swift_loader.loader.options import Config
from swift_loader.worker.recipe import given

__all__ = ["store_name"]


def store_name(config: Config) -> StoreName | None:
    """The name of the store, None without `cache`.

    Where nobody can tell what the data set's arguments are, the store is this loader's alone: two
    data sets of one class never mix. Raises `ConfigError` then where others are to find it.
    """
    cache, kind = config.cache, config.dataset_class
    if cache is None or kind is None:
        return None
    kwargs = config.dataset_kwargs
    named = type(kwargs["dataset"]) if kind is given else kind
    try:
        found = fingerprint(kind, kwargs)
    except (TypeError, RecursionError) as error:
        if cache.disk is not None or cache.key is not None or config.nb_consumer > 1:
            refuse("cache", cache, f"others can't know the data set again, as {error}: give a "
                   "class and plain arguments")  # fmt: skip
        found = f"one of {secrets.token_hex(16)}"
    run = run_of(os.environ, config.nb_consumer)
    if cache.key is not None or cache.disk is not None:
        run = f"key {cache.key}"
    assert isinstance(cache.memory, int)
    return StoreName(
        cache.memory,
        None if cache.disk is None else os.fspath(cache.disk),
        cache.disk_size,  # type: ignore[arg-type]
        cache.key,
        run,
        found,
        getattr(named, "__qualname__", repr(named)),
        cache.samples,
    )
