"""Messages of any size whose every bit is known on every rank before they are sent, one kind for each collective.

They follow the same code as the small ones of the oracle: whole numbers times powers of two, each rank's contribution a
digit of its own, each element with a unit of its own, so that a wrong sum tells whose contribution is missing and a
part that lands in the wrong place is seen.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from reference_trainer import oracle
from reference_trainer.oracle import Mismatch

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
BROADCAST = "broadcast"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST)

#: What the root of a broadcast sends, in units.
_ROOTS = 3
#: Units repeat in blocks of so many elements, each turned by so many more, an odd number: no two blocks are alike.
_BLOCK, _TURN = 1 << 16, 977
_SALT = 20000


def elements_of(message_bytes: int, world_size: int) -> int:
    """How many 32-bit elements a message of about so many bytes has: all ranks' parts are equal, and whole windows."""
    step = world_size * oracle.windows(world_size)
    return max(1, round(message_bytes / 4 / step)) * step


class Known:
    """What one rank sends and must get in each collective over `elements` elements in all.

    As nccl-tests counts: `elements` are what every rank has at the end of an all-gather, or at the start of the others.
    `after` is called after each piece of the work of making them, which takes long on a busy node.
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

    def sent(self, operation: str) -> Any:
        """What this rank puts in: float32 of all elements, of an all-gather its own part."""
        import torch

        if operation == BROADCAST:
            return self._unit * _ROOTS if self.rank == 0 else torch.zeros_like(self._unit)
        if operation == ALL_GATHER:
            return self._own(self._unit) * (self.rank + 1)
        if operation == ALL_TO_ALL:
            return self._unit * (self.rank + 1)
        return self._of_windows(lambda window: oracle.digit(self.rank) if window == self.rank // oracle.WINDOW else 0)

    def room(self, operation: str) -> Any:
        """Where what this rank gets goes to, empty; None where it takes the place of what was sent."""
        import torch

        if operation in (ALL_REDUCE, BROADCAST):
            return None
        return torch.zeros(self._part if operation == REDUCE_SCATTER else self.elements, device=self._device)

    def check(self, operation: str, got: Any, what: str) -> Optional[Mismatch]:
        """None when every bit is right."""
        import torch

        right = self._right(operation)
        if torch.equal(got.view(torch.int32), right.view(torch.int32)):
            return None
        unit = None
        if operation == ALL_REDUCE:
            unit = self._unit
        elif operation == REDUCE_SCATTER:
            unit = self._own(self._unit)
        return oracle.compare(what, self.rank, got, right, unit=unit, world_size=self.world_size)

    def _right(self, operation: str) -> Any:
        import torch

        if operation == BROADCAST:
            return self._unit * _ROOTS
        if operation == ALL_GATHER:
            numbers = torch.arange(1, self.world_size + 1, dtype=torch.float32, device=self._device)
            return (self._unit.view(self.world_size, -1) * numbers.view(-1, 1)).flatten()
        if operation == ALL_TO_ALL:
            numbers = torch.arange(1, self.world_size + 1, dtype=torch.float32, device=self._device)
            return (self._own(self._unit).view(1, -1) * numbers.view(-1, 1)).flatten()
        total = self._of_windows(lambda window: oracle.total(window, self.world_size))
        return self._own(total) if operation == REDUCE_SCATTER else total

    def _of_windows(self, quanta: Callable[[int], int]) -> Any:
        """Each element's unit times the quanta of the window of ranks that it belongs to."""
        import torch

        count = oracle.windows(self.world_size)
        factors = torch.tensor([quanta(w) for w in range(count)], dtype=torch.float32, device=self._device)
        return (self._unit.view(-1, count) * factors).flatten()

    def _own(self, tensor: Any) -> Any:
        return tensor[self.rank * self._part : (self.rank + 1) * self._part]


def _units(elements: int, device: Any, after: Callable[[], Any]) -> Any:
    """The unit of each element: one block of the oracle's, turned by another angle for each block of the message.

    Making them all by the oracle's rule would take several times as long as sending the message.
    """
    import torch

    block = oracle.units(min(_BLOCK, elements), _SALT, device)
    found = torch.empty(elements, device=device)
    for number, start in enumerate(range(0, elements, _BLOCK)):
        size = min(_BLOCK, elements - start)
        found[start : start + size] = torch.roll(block, -number * _TURN)[:size]
        after()
    return found
