"""Faults on request, inside this process and its own sockets, so that a site sees how they look and who is named.

`{"kind": "flip", "role": "worker", "index": 1, "phase": "exact", "step": 2, "server": 0, "shard": 0}`. Without `role`
or `index` it concerns whichever process was given it. Kinds: `delay` (`seconds` before each step, from `step` on),
`loss` (a push never sent), `double` (a push sent, or by a server applied, twice), `flip` (one bit of what is pushed, or
of a server's weights), `kill`, `stop` (SIGKILL, SIGSTOP on itself; `mid_push` for a worker in the middle of a push),
and `stall_before` or `stall` (this process does nothing any more and keeps its connections).
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, Optional

from reference_trainer.ps import settings

KINDS = ("delay", "loss", "double", "flip", "kill", "stop", "stall", "stall_before")
_PHASES = {"exact": settings.EXACT, "servers": settings.TRAINING}
_STALL_S = 3600.0


class Drill:
    """The fault that this process plays, if any."""

    def __init__(
        self, given: Dict[str, Any], *, role: str, index: int, tell: Optional[Callable[..., None]] = None
    ) -> None:
        self._tell = tell
        concerned = given.get("role", role) == role and int(given.get("index", index)) == index
        self.kind = str(given.get("kind", "")) if concerned else ""
        if self.kind and self.kind not in KINDS:
            raise ValueError("there is no drill %r; there are %s" % (self.kind, ", ".join(KINDS)))
        self.step = int(given.get("step", 0 if self.kind == "delay" else 1))
        self.server = int(given.get("server", 0))
        self.shard = int(given.get("shard", 0))
        self.element = int(given.get("element", 0))
        self.bit = int(given.get("bit", 20))
        self.seconds = float(given.get("seconds", 0.05))
        self.mid_push = bool(given.get("mid_push"))
        self._phase = _PHASES.get(str(given.get("phase", "exact")), settings.EXACT)

    def due(self, kind: str, phase: int, step: int) -> bool:
        """Whether this fault is to happen at this step of this phase."""
        due = self.kind == kind and phase == self._phase and step == self.step
        if due:
            self._told(step)
        return due

    def before_step(self, phase: int, step: int) -> None:
        """What happens to the process itself when it begins a step."""
        if not self.kind:
            return
        if self.kind == "delay" and phase == self._phase and step >= self.step:
            self._told(step)
            time.sleep(self.seconds)
        if not self.mid_push:
            self.strike(phase, step)

    def strike(self, phase: int, step: int) -> None:
        """Die, stop or stall here, if that is the drill and this the step."""
        if self.due("kill", phase, step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.due("stop", phase, step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.due("stall", phase, step) or self.due("stall_before", phase, step):
            time.sleep(_STALL_S)

    def _told(self, step: int) -> None:
        """Say that it happens now; once, however often it does."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(kind=self.kind, step=step)

    def flip(self, numbers: Any) -> None:
        """Flip the bit in flat float32 numbers."""
        import torch

        raw = numbers.view(torch.int32)
        place = self.element % max(1, raw.numel())
        raw[place] = raw[place] ^ (1 << self.bit if self.bit < 31 else -(1 << 31))
