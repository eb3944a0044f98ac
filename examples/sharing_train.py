"""A training on batches that another process makes; see `sharing_producer.py`.

    python examples/sharing_train.py --learning-rate 0.1
    python examples/sharing_train.py --learning-rate 0.03 --batch-size 32

Start as many as wanted, at any time. Each cuts the stream into batches of its own size, and goes on
until the producer ends.
"""

from __future__ import annotations

import argparse

from torch import nn, optim

from swift_loader.sharing import ProducerEndedError, TensorConsumer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", default="5556")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--goal", type=float, default=0.7, help="share of the loss to reach")
    options = parser.parse_args()

    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optim.SGD(network.parameters(), lr=options.learning_rate, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    name = f"learning rate {options.learning_rate:g}"
    losses: list[float] = []
    with TensorConsumer(port=options.port, batch_size=options.batch_size, name=name) as batches:
        try:
            while True:
                total, nb_steps = 0.0, len(batches)
                for images, labels in batches:
                    loss = criterion(network(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += float(loss.detach())
                losses.append(total / nb_steps)
                print(f"{name}, epoch {len(losses) - 1}: loss {losses[-1]:.3f}", flush=True)
        except ProducerEndedError:
            print(f"{name}: the producer has ended after {len(losses)} epochs")
    if losses[-1] > options.goal * losses[0]:
        raise SystemExit(f"{name}: the loss fell from {losses[0]:.3f} to {losses[-1]:.3f} only")


if __name__ == "__main__":
    main()
