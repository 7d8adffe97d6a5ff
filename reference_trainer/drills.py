"""Faults on request, inside one rank of a collective, so that a site sees how they look and who is named.

`{"kind": "kill", "step": 5}`: `kill` and `stop` (SIGKILL, SIGSTOP on itself) before collective `step`, `delay`
(`seconds` before each of so many collectives from there on), `loss` (its contribution to the first sum from there on is
left out) and `flip` (one bit of it is another). Servers and workers have theirs in `ps/drills.py`.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict

KINDS = ("delay", "flip", "kill", "loss", "stop")
#: So many collectives are delayed: enough to be no accident, few enough that the run ends in time.
DELAYED = 6
_BIT = 20


class RankDrill:
    """The fault that this rank plays, if any. `tell` is called with what it does, just before it does it."""

    def __init__(self, given: Dict[str, Any], tell: Callable[..., None]) -> None:
        self._kind = str(given.get("kind", ""))
        if self._kind and self._kind not in KINDS:
            raise ValueError("there is no drill %r for a rank; there are %s" % (self._kind, ", ".join(KINDS)))
        self._step = int(given.get("step", 0))
        self._seconds = float(given.get("seconds", 0.5))
        self._tell = tell
        self._left = DELAYED

    def before(self, collective: int) -> None:
        """What happens to the process itself before it enters this collective."""
        if self._kind not in ("delay", "kill", "stop") or collective < self._step or not self._left:
            return
        if self._left == DELAYED:
            self._tell(kind=self._kind, step=collective)
        if self._kind == "delay":
            self._left -= 1
            time.sleep(self._seconds)
            return
        self._left = 0
        os.kill(os.getpid(), signal.SIGKILL if self._kind == "kill" else signal.SIGSTOP)

    def spoil(self, tensor: Any, collective: int) -> None:
        """What happens to this rank's float32 contribution to a sum: a tensor of torch or an array of numpy."""
        if self._kind not in ("loss", "flip") or collective < self._step or not self._left:
            return
        self._left = 0
        self._tell(kind=self._kind, step=collective)
        if self._kind == "loss":
            tensor[...] = 0.0
        else:
            raw = tensor.reshape(-1).view(_int32(tensor))
            raw[0] = raw[0] ^ (1 << _BIT)


def _int32(tensor: Any) -> Any:
    """The name of 32-bit integers in the library that the tensor is of."""
    if type(tensor).__module__ == "numpy":
        return "int32"
    import torch

    return torch.int32
