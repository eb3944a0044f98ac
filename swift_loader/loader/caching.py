"""Which store the option `cache` means."""

from __future__ import annotations

import os

from swift_loader.cache.fingerprint import fingerprint
from swift_loader.cache.naming import StoreName, run_of
from swift_loader.errors import refuse
from swift_loader.loader.options import Config
from swift_loader.worker.recipe import given

__all__ = ["store_name"]


def store_name(config: Config) -> StoreName | None:
    """The name of the store, None without `cache`.

    Raises `ConfigError` where files are wanted and nobody can tell the data set's arguments.
    """
    cache, kind = config.cache, config.dataset_class
    if cache is None or kind is None:
        return None
    kwargs = config.dataset_kwargs
    named = type(kwargs["dataset"]) if kind is given else kind
    try:
        found = fingerprint(kind, kwargs)
    except (TypeError, RecursionError) as error:
        if cache.disk is not None:
            refuse("cache", cache, f"files need to know the data set again, and {error}: give a "
                   "class and plain arguments")  # fmt: skip
        found = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', named)}"
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
