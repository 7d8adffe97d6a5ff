"""The models that are trained over parameter servers: a small network with an embedding, or a job's parameters."""

from __future__ import annotations

from typing import Any, Sequence

from reference_trainer.ps.partition import Parameter, Table

#: The learning rate of the network for one worker; for more it is divided by the next power of two (see `rate`).
LEARNING_RATE = 0.25
#: The factor of rows relative to the features: old rows must change gradients far more than rounding does.
ROW_FACTOR = 4.0
#: A job's own parameters move towards fixed targets: half of the distance in one step of one worker.
QUADRATIC_RATE = 0.5


def rate(base: float, workers: int) -> float:
    """Return the learning rate for summed pushes of this many workers: divided by a power of two, which is exact."""
    return base / (1 << max(0, workers - 1).bit_length())


class Network:
    """A network of an embedding (`slots` rows per sample) and a hidden layer, which learns its own fixed batch."""

    def __init__(
        self,
        *,
        inputs: int = 64,
        hidden: int = 128,
        classes: int = 10,
        batch: int = 64,
        rows: int = 10000,
        width: int = 16,
        slots: int = 8,
    ) -> None:
        self.base_rate = LEARNING_RATE
        self._inputs, self._hidden, self._classes, self._batch = inputs, hidden, classes, batch
        self._rows, self._width, self._slots = rows, width, slots
        joined = inputs + (width if slots else 0)
        self.dense = (
            Parameter("hidden.weight", (hidden, joined)),
            Parameter("hidden.bias", (hidden,)),
            Parameter("output.weight", (classes, hidden)),
            Parameter("output.bias", (classes,)),
        )
        self.tables: tuple[Table, ...] = (Table("embedding", rows, width),) if slots else ()
        self._samples: dict[int, tuple[Any, Any, Any]] = {}
        self._copies: dict[tuple[int, Any], tuple[Any, Any]] = {}

    def initial(self, name: str) -> Any:
        """Return the initial value of a dense parameter, flat: float32[elements], the same in every process."""
        import torch

        number = [p.name for p in self.dense].index(name)
        parameter = self.dense[number]
        fixed = torch.Generator().manual_seed(7 + number)
        scale = parameter.shape[-1] ** -0.5 if len(parameter.shape) > 1 else 0.1
        return (torch.rand(parameter.elements, generator=fixed) * 2 - 1) * scale

    def initial_rows(self, table: int, rows: Any) -> Any:
        """Return the initial values of some rows: float32[n, width]."""
        import torch

        index = rows.unsqueeze(1) * self._width + torch.arange(self._width)
        return ((index * 40503 & 0xFFFF).to(torch.float32) / 32768.0 - 1.0) * 0.1

    def ids(self, table: int, worker: int, step: int) -> Any:
        """Return the rows that a worker's batch looks up, with repetitions: int64[n]."""
        return self.samples(worker)[1].flatten()

    def step(self, worker: int, step: int, weights: Sequence[Any], rows: Sequence[Any]) -> Any:
        """Return the loss of one step, from parameters in the order of `dense` and one row for each of `ids`."""
        import torch

        features, labels = self._samples_on(worker, weights[0].device)
        joined = features
        if self._slots:
            sums = rows[0].view(self._batch, self._slots, self._width).sum(1) * ROW_FACTOR
            joined = torch.cat([joined, sums], 1)
        hidden = torch.tanh(torch.nn.functional.linear(joined, weights[0], weights[1]))
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, weights[2], weights[3]), labels)

    def _samples_on(self, worker: int, device: Any) -> tuple[Any, Any]:
        """Return a worker's features and labels on a device, copied once."""
        if (worker, device) not in self._copies:
            features, _, labels = self.samples(worker)
            self._copies[worker, device] = (features.to(device), labels.to(device))
        return self._copies[worker, device]

    def samples(self, worker: int) -> tuple[Any, Any, Any]:
        """Return a worker's features float32[batch, inputs], rows int64[batch, slots], and labels int64[batch]."""
        import torch

        if worker not in self._samples:
            fixed = torch.Generator().manual_seed(20177)
            centres = torch.randn(self._classes, self._inputs, generator=fixed)
            own = torch.Generator().manual_seed(1000 + worker)
            labels = torch.randint(0, self._classes, (self._batch,), generator=own)
            features = centres[labels] + 0.5 * torch.randn(self._batch, self._inputs, generator=own)
            found = torch.randint(0, max(1, self._rows), (self._batch, max(1, self._slots)), generator=own)
            self._samples[worker] = (features, found, labels)
        return self._samples[worker]


class Quadratic:
    """A job's own parameters, pulled to a target that differs a little between workers. Any shape can be trained."""

    def __init__(self, dense: Sequence[Parameter], tables: Sequence[Table]) -> None:
        self.base_rate = QUADRATIC_RATE
        self.dense = tuple(dense)
        self.tables = tuple(tables)

    def initial(self, name: str) -> Any:
        import torch

        return torch.zeros(next(p.elements for p in self.dense if p.name == name))

    def initial_rows(self, table: int, rows: Any) -> Any:
        import torch

        return torch.zeros(rows.numel(), self.tables[table].width)

    def ids(self, table: int, worker: int, step: int) -> Any:
        """Return some rows that repeat every third step."""
        import torch

        size = self.tables[table].rows
        found = ((step % 3) * 31 + worker * 17 + torch.arange(min(64, size), dtype=torch.int64)) % size
        return torch.cat([found, found[::4]])

    def step(self, worker: int, step: int, weights: Sequence[Any], rows: Sequence[Any]) -> Any:
        """Return half the squared distance to the target, over all parameters and rows looked up."""
        losses = [0.5 * (tensor - self._target(worker, tensor)).square().sum() for tensor in (*weights, *rows)]
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    @staticmethod
    def _target(worker: int, tensor: Any) -> Any:
        return 1.0 + 0.01 * (worker % 7)


def from_params(model: Any) -> Any:
    """Return the task: a job's `dense` ([[name, shape], ...]) and `tables`, or the built-in. Raises ValueError."""
    if not model:
        return Network()
    if "network" in model:
        return Network(**{str(key): int(value) for key, value in model["network"].items()})
    try:
        dense = [Parameter(str(name), tuple(int(size) for size in shape)) for name, shape in model.get("dense", [])]
        tables = [Table(str(name), int(rows), int(width)) for name, rows, width in model.get("tables", [])]
    except (TypeError, ValueError) as error:
        raise ValueError(f"the list of parameters cannot be read: {error}") from error
    _check(dense, tables)
    return Quadratic(dense, tables)


def _check(dense: list[Parameter], tables: list[Table]) -> None:
    names = [p.name for p in dense] + [t.name for t in tables]
    if not names:
        raise ValueError("the list of parameters is empty")
    if len(set(names)) < len(names):
        raise ValueError(f"two parameters are named {next(n for n in names if names.count(n) > 1)}")
    if any(p.elements <= 0 for p in dense) or any(t.rows <= 0 or t.width <= 0 for t in tables):
        raise ValueError("a parameter without elements cannot be trained")
