"""One batch in the training process, before anything is launched: what goes wrong, goes wrong here.

The user's things are unpacked as a worker would unpack them, so a class that can't travel, a
dataset that can't be built, a sample that raises, a batch that can't be collated or encoded show
themselves with a plain traceback. The generators of the training process are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

from swift_loader.batch.arena import Arena, SlotTooSmall
from swift_loader.batch.codec import decode, decode_bytes, encode, encode_bytes
from swift_loader.batch.fetch import BadSampleError, Fetcher
from swift_loader.batch.seeding import generators_untouched
from swift_loader.worker.maker import collated
from swift_loader.worker.recipe import Recipe, build_dataset
from swift_loader.worker.told import set_epoch

__all__ = ["count_samples", "try_one_batch"]


def try_one_batch(
    recipe: Recipe, batch_size: int, decoder: Callable[[bytes], Any] | None
) -> int | None:
    """Build the dataset, make a batch of its first samples and take it apart; returns the length.

    Raises whatever the user's code raises, unchanged.
    """
    with generators_untouched():
        dataset, nb_samples = build_dataset(recipe)
        if nb_samples is None:
            samples = list(islice(dataset, batch_size))
        else:
            set_epoch(dataset, recipe, 0)
            samples = _first_samples(recipe, dataset, min(batch_size, nb_samples), nb_samples)
        if not samples:
            return nb_samples
        indices = range(len(samples))
        batch = collated(recipe, samples, None, indices)
        put: Callable[[Any, Arena], bytes] = encode
        if recipe.batch_encoder is not None:
            batch, put = recipe.batch_encoder(batch), encode_bytes
        region = np.empty(0, np.uint8)
        try:
            skeleton = put(batch, Arena(None))
        except SlotTooSmall as short:
            region = np.empty(short.needed_bytes, np.uint8)
            skeleton = put(batch, Arena(region))
        base = region
        if decoder is not None:
            decoder(bytes(decode_bytes(skeleton, base)))
        else:
            decode(skeleton, base)
    return nb_samples


def _first_samples(recipe: Recipe, dataset: Any, count: int, nb_samples: int) -> list[Any]:
    fetcher = Fetcher(dataset, nb_samples, recipe.on_error, 1, [-1])
    try:
        samples, _ = fetcher.fetch(range(count)) if count else ([], [])
    except BadSampleError as error:
        raise error.__cause__ or error from None
    return samples


def count_samples(recipe: Recipe) -> int | None:
    """The length of the dataset; None for a stream."""
    with generators_untouched():
        return build_dataset(recipe)[1]
