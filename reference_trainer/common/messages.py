"""Messages of any size whose every bit is known in advance on every rank, one kind for each collective.

They use the same code as the small messages of the oracle: whole numbers times powers of two, each rank's contribution
a separate digit, each element with its own unit, so that a wrong sum shows whose contribution is missing and a
misplaced part is noticed. Every call of a series also has its own values: those of the first call times a power of two.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Sequence

from reference_trainer.common import arrays, oracle
from reference_trainer.common.oracle import Mismatch

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
BROADCAST = "broadcast"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST)

#: Units repeat in blocks of this many elements, each rotated by this many more, an odd number: no two blocks are equal.
_BLOCK, _TURN = 1 << 16, 977
_SALT = 20000
#: The most bits of a message's numbers: more than half-precision formats keep.
_MANTISSA_BITS = 13


def elements_of(message_bytes: int, world_size: int) -> int:
    """Return the elements of a message of about this size: all ranks' parts are equal, in whole windows."""
    step = world_size * oracle.windows(world_size) * oracle.MANTISSA_EVERY
    return max(1, round(message_bytes / 4 / step)) * step


class KnownMessage:
    """The input and the expected result of one rank in each collective, over `elements` elements in total.

    As nccl-tests counts: `elements` is the size on every rank at the end of an all-gather, or at the start of the
    others. `after` is called after each piece of the work of creating them, which takes a long time on a busy node.
    """

    def __init__(
        self, rank: int, world_size: int, elements: int, device: Any, after: Callable[[], Any] = lambda: None
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.elements = elements
        self._device = device
        self._part = elements // world_size
        self._unit = _units(elements, device, after)
        limit = max(1, min((1 << _MANTISSA_BITS) - 1, (1 << 23) // oracle.total_weight(world_size)))
        #: Numbers of many bits, in units.
        self._numbers = self._unit * _mantissas(elements, limit, device, after)

    def sent(self, operation: str, call: int = 0) -> Any:
        """Return this rank's input of one call of a series: float32 of all elements, for an all-gather its own part."""
        return self._sent(operation) * 2.0**call

    def _sent(self, operation: str) -> Any:
        import torch

        if operation == BROADCAST:
            return self._numbers if self.rank == 0 else torch.zeros_like(self._unit)
        if operation == ALL_GATHER:
            return self._own(self._numbers) * (self.rank + 1)
        if operation == ALL_TO_ALL:
            return self._numbers * (self.rank + 1)
        own = self.rank // oracle.WINDOW
        digits = self._window_values(lambda window: oracle.digit(self.rank) if window == own else 0)
        return self._with_many_bits(digits, oracle.weight(self.rank))

    def room(self, operation: str) -> Any:
        """Return a new buffer for this rank's result; None if the operation overwrites its input."""
        import torch

        if operation in (ALL_REDUCE, BROADCAST):
            return None
        return torch.zeros(self._part if operation == REDUCE_SCATTER else self.elements, device=self._device)

    def check(self, operation: str, got: Any, label: str, call: int = 0) -> Mismatch | None:
        """Return None if every bit of the result of one call of a series is right."""
        (found,) = self.check_series(operation, [got], label, first=call)
        return found

    def check_series(
        self, operation: str, results: Sequence[Any], label: str, *, first: int = 0
    ) -> list[Mismatch | None]:
        """Return the mismatches of the results of consecutive calls, compared as `check` does for one call."""
        import torch

        right, scale = self._right(operation) * 2.0**first, 2.0**first
        mismatches: list[Mismatch | None] = []
        for got in results:
            if torch.equal(got.view(torch.int32), right.view(torch.int32)):
                mismatches.append(None)
            else:
                unit = None
                if operation in (ALL_REDUCE, REDUCE_SCATTER):
                    unit = self._with_many_bits(self._unit * scale, 0)
                    unit = self._own(unit) if operation == REDUCE_SCATTER else unit
                mismatches.append(oracle.compare(label, self.rank, got, right, unit=unit, world_size=self.world_size))
            right, scale = right * 2.0, scale * 2.0
        return mismatches

    def _right(self, operation: str) -> Any:
        import torch

        if operation == BROADCAST:
            return self._numbers
        if operation == ALL_GATHER:
            numbers = torch.arange(1, self.world_size + 1, dtype=torch.float32, device=self._device)
            return (self._numbers.view(self.world_size, -1) * numbers.view(-1, 1)).flatten()
        if operation == ALL_TO_ALL:
            numbers = torch.arange(1, self.world_size + 1, dtype=torch.float32, device=self._device)
            return (self._own(self._numbers).view(1, -1) * numbers.view(-1, 1)).flatten()
        digits = self._window_values(lambda window: oracle.total(window, self.world_size))
        total = self._with_many_bits(digits, oracle.total_weight(self.world_size))
        return self._own(total) if operation == REDUCE_SCATTER else total

    def _with_many_bits(self, tensor: Any, weight: int) -> Any:
        """Fill every fourth group of elements with numbers of many bits; `tensor` is changed and returned."""
        grouped = (-1, oracle.MANTISSA_EVERY, oracle.windows(self.world_size))
        tensor.view(grouped)[:, -1] = self._numbers.view(grouped)[:, -1] * weight
        return tensor

    def _window_values(self, quanta: Callable[[int], int]) -> Any:
        """Return each element's unit times the quanta of its rank window."""
        import torch

        count = oracle.windows(self.world_size)
        factors = torch.tensor([quanta(w) for w in range(count)], dtype=torch.float32, device=self._device)
        return (self._unit.view(-1, count) * factors).flatten()

    def _own(self, tensor: Any) -> Any:
        return tensor[self.rank * self._part : (self.rank + 1) * self._part]


def _units(elements: int, device: Any, after: Callable[[], Any]) -> Any:
    """Return the unit of each element, by the oracle's rule within a block."""
    return _repeat_rotated(oracle.units(min(_BLOCK, elements), _SALT, device), elements, after)


def _mantissas(elements: int, limit: int, device: Any, after: Callable[[], Any]) -> Any:
    """Return a whole number of many bits for each element, by the oracle's rule within a block."""
    index = arrays.numbers(min(_BLOCK, elements), device)
    return _repeat_rotated(oracle.mantissas_at(index, _SALT, limit), elements, after)


def _repeat_rotated(block: Any, elements: int, after: Callable[[], Any]) -> Any:
    """Return the block repeatedly with rotations, which is faster than computing each one by the oracle's rule."""
    import torch

    found = torch.empty(elements, device=block.device)
    for number, start in enumerate(range(0, elements, _BLOCK)):
        size = min(_BLOCK, elements - start)
        found[start : start + size] = torch.roll(block, -number * _TURN)[:size]
        after()
    return found


# Fault injection inside one rank of a collective, to show what a fault looks like and whether it is found.
# `{"kind": "kill", "step": 5}`: `kill` and `stop` (SIGKILL, SIGSTOP on itself) before collective `step`, `delay`
# (`seconds` before each of several collectives from there on), `loss` (its contribution to the first sum from there
# on is omitted) and `flip` (one bit of it is changed). Those of servers and workers are in `ps/settings.py`.


KINDS = ("delay", "flip", "kill", "loss", "stop")
#: The number of delayed collectives: enough to be significant, few enough that the run ends in time.
DELAYED = 6
_BIT = 20


class RankFault:
    """The fault that this rank injects, if any. `on_fault` is called with a description just before it happens."""

    def __init__(self, config: dict[str, Any], on_fault: Callable[..., None]) -> None:
        self._kind = str(config.get("kind", ""))
        if self._kind and self._kind not in KINDS:
            raise ValueError("unknown fault {!r} for a rank; expected one of {}".format(self._kind, ", ".join(KINDS)))
        self._step = int(config.get("step", 0))
        self._seconds = float(config.get("seconds", 0.5))
        self._on_fault = on_fault
        self._left = DELAYED

    def before(self, collective: int) -> None:
        """Apply faults of the process itself before it enters this collective."""
        if self._kind not in ("delay", "kill", "stop") or collective < self._step or not self._left:
            return
        if self._left == DELAYED:
            self._on_fault(kind=self._kind, step=collective)
        if self._kind == "delay":
            self._left -= 1
            time.sleep(self._seconds)
            return
        self._left = 0
        os.kill(os.getpid(), signal.SIGKILL if self._kind == "kill" else signal.SIGSTOP)

    def corrupt(self, tensor: Any, collective: int) -> None:
        """Affect this rank's float32 contribution to a sum: a torch tensor or a numpy array."""
        if self._kind not in ("loss", "flip") or collective < self._step or not self._left:
            return
        self._left = 0
        self._on_fault(kind=self._kind, step=collective)
        if self._kind == "loss":
            tensor[...] = 0.0
        else:
            raw = tensor.reshape(-1).view(_int32(tensor))
            raw[0] = raw[0] ^ (1 << _BIT)


def _int32(tensor: Any) -> Any:
    """Return the 32-bit integer type of the tensor's library."""
    if type(tensor).__module__ == "numpy":
        return "int32"
    import torch

    return torch.int32
