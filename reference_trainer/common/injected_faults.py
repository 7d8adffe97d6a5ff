"""Fault injection inside one rank of a collective, to show what a fault looks like and whether it is found.

`{"kind": "kill", "step": 5}`: `kill` and `stop` (SIGKILL, SIGSTOP on itself) before collective `step`, `delay`
(`seconds` before each of several collectives from there on), `loss` (its contribution to the first sum from there on is
omitted) and `flip` (one bit of it is changed). Those of servers and workers are in `ps/settings.py`.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

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
    """The 32-bit integer type of the tensor's library."""
    if type(tensor).__module__ == "numpy":
        return "int32"
    import torch

    return torch.int32
