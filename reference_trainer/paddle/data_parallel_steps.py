"""The same task as `collective.steps`, in Paddle: a few DataParallel steps, and the same steps in one process."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Callable, List, Optional, Tuple

from reference_trainer.collective.steps import (
    BATCH,
    CLASSES,
    HIDDEN,
    INPUTS,
    LEARNING_RATE,
    MAX_COMPARED_RANKS,
    MAX_COMPARED_STEPS,
    TrainingResult,
)
from reference_trainer.common import oracle


def shard(paddle: Any, rank: int) -> Tuple[Any, Any]:
    """The samples of one rank: float32[BATCH, INPUTS] around one centre per class, and their classes int64[BATCH]."""
    import numpy

    centres = numpy.random.RandomState(20177).standard_normal((CLASSES, INPUTS))
    own_values = numpy.random.RandomState(1000 + rank)
    labels = own_values.randint(0, CLASSES, BATCH)
    samples = centres[labels] + 0.5 * own_values.standard_normal((BATCH, INPUTS))
    return paddle.to_tensor(samples.astype("float32")), paddle.to_tensor(labels.astype("int64"))


def build(paddle: Any) -> Any:
    """The model, the same on every rank."""
    paddle.seed(7)
    return paddle.nn.Sequential(paddle.nn.Linear(INPUTS, HIDDEN), paddle.nn.ReLU(), paddle.nn.Linear(HIDDEN, CLASSES))


def train(
    paddle: Any,
    model: Any,
    wrapped: Any,
    data: Tuple[Any, Any],
    steps: int,
    *,
    before: Callable[[int], Any],
    after: Callable[[int], Any],
) -> TrainingResult:
    """`steps` steps of SGD on `wrapped`, which is `model` in DataParallel; the two callables are called around each."""
    samples, labels = data
    optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=model.parameters())
    criterion = paddle.nn.CrossEntropyLoss()
    losses: List[float] = []
    took: List[float] = []
    for step in range(steps):
        began = time.perf_counter()
        before(step)
        loss = criterion(wrapped(samples), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss.item()))
        after(step)
        took.append(time.perf_counter() - began)
    return TrainingResult(losses, took)


def unmoved(paddle: Any, model: Any) -> List[str]:
    """The tensors of `model` that are unchanged since the start."""
    import numpy

    start = dict(build(paddle).named_parameters())
    return [name for name, now in model.named_parameters() if numpy.array_equal(start[name].numpy(), now.numpy())]


def digest(model: Any) -> str:
    """SHA-256 over the bytes of every parameter, in order."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.numpy().tobytes())
    return found.hexdigest()


def difference_to_one_process(
    paddle: Any, model: Any, world_size: int, steps: int, after: Callable[[], Any]
) -> Optional[float]:
    """Largest difference between `model` and that of one process that trained on all shards; None if not compared."""
    import numpy

    if steps > MAX_COMPARED_STEPS or world_size > MAX_COMPARED_RANKS:
        return None
    alone = build(paddle)
    criterion = paddle.nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=alone.parameters())
    shards = [shard(paddle, rank) for rank in range(world_size)]
    for _ in range(steps):
        for samples, labels in shards:
            (criterion(alone(samples), labels) / world_size).backward()
            after()
        optimizer.step()
        optimizer.clear_grad()
    pairs = zip(model.parameters(), alone.parameters())
    return float(numpy.max([numpy.abs(a.numpy() - b.numpy()).max() for a, b in pairs]))


class ExactModel:
    """A linear layer whose gradient does not depend on its weights, for the exact steps of the oracle."""

    def __init__(self, paddle: Any, start: Any) -> None:
        self._paddle = paddle
        self._layer = paddle.nn.Linear(len(start), 1, bias_attr=False)
        self._layer.weight.set_value(paddle.to_tensor(start.reshape(-1, 1)))
        self._optimizer = paddle.optimizer.SGD(oracle.LEARNING_RATE, parameters=self._layer.parameters())

    def gradient(self, inputs: Any) -> Any:
        """The gradient of the summed outputs, float32[features] of numpy, as autograd computes it."""
        self._optimizer.clear_grad()
        self._layer(self._paddle.to_tensor(inputs)).sum().backward()
        return self._layer.weight.grad.numpy().reshape(-1).copy()

    def step(self, gradient: Any) -> None:
        """One step of SGD along the gradient summed over all ranks."""
        weight = self._layer.weight
        weight.grad.set_value(self._paddle.to_tensor(gradient.reshape(-1, 1)))
        self._optimizer.step()

    def weights(self) -> Any:
        """float32[features] of numpy."""
        return self._layer.weight.numpy().reshape(-1)
