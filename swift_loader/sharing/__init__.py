"""One loader for several trainings on a machine: each batch is made once and read by all.

>>> from swift_loader.sharing import TensorProducer, TensorConsumer
"""

from swift_loader.errors import DroppedError, ProducerEndedError, ProducerGoneError, SharingError
from swift_loader.sharing.consumer import TensorConsumer
from swift_loader.sharing.producer import ConsumerView, TensorProducer

__all__ = [
    "ConsumerView",
    "DroppedError",
    "ProducerEndedError",
    "ProducerGoneError",
    "SharingError",
    "TensorConsumer",
    "TensorProducer",
]
