"""Fault injection inside this process and its own sockets, to show what a fault looks like and whether it is found.

`{"kind": "flip", "role": "worker", "index": 1, "phase": "exact", "step": 2, "server": 0, "shard": 0}`. Without `role`
or `index` it applies to the process that receives it. Kinds: `delay` (`seconds` before each step, from `step` on),
`loss` (a push never sent), `double` (a push sent twice, or applied twice by a server), `flip` (one bit of a push, or of
a server's weights), `kill`, `stop` (SIGKILL, SIGSTOP on itself; `mid_push` for a worker in the middle of a push), and
`stall_before` or `stall` (this process hangs and keeps its connections).
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


class ProcessFault:
    """The fault that this process injects, if any."""

    def __init__(
        self, config: Dict[str, Any], *, role: str, index: int, on_fault: Optional[Callable[..., None]] = None
    ) -> None:
        self._on_fault = on_fault
        concerned = config.get("role", role) == role and int(config.get("index", index)) == index
        self.kind = str(config.get("kind", "")) if concerned else ""
        if self.kind and self.kind not in KINDS:
            raise ValueError("unknown fault %r; expected one of %s" % (self.kind, ", ".join(KINDS)))
        self.step = int(config.get("step", 0 if self.kind == "delay" else 1))
        self.server = int(config.get("server", 0))
        self.shard = int(config.get("shard", 0))
        self.element = int(config.get("element", 0))
        self.bit = int(config.get("bit", 20))
        self.seconds = float(config.get("seconds", 0.05))
        self.mid_push = bool(config.get("mid_push"))
        self._phase = _PHASES.get(str(config.get("phase", "exact")), settings.EXACT)

    def due(self, kind: str, phase: int, step: int) -> bool:
        """Whether this fault is due at this step of this phase."""
        due = self.kind == kind and phase == self._phase and step == self.step
        if due:
            self._report(step)
        return due

    def before_step(self, phase: int, step: int) -> None:
        """Apply faults of the process itself at the beginning of a step."""
        if not self.kind:
            return
        if self.kind == "delay" and phase == self._phase and step >= self.step:
            self._report(step)
            time.sleep(self.seconds)
        if not self.mid_push:
            self.trigger(phase, step)

    def trigger(self, phase: int, step: int) -> None:
        """Die, stop or stall here, if that is the fault and this is the step."""
        if self.due("kill", phase, step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.due("stop", phase, step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.due("stall", phase, step) or self.due("stall_before", phase, step):
            time.sleep(_STALL_S)

    def _report(self, step: int) -> None:
        """Report the injection once, however often it happens."""
        on_fault, self._on_fault = self._on_fault, None
        if on_fault is not None:
            on_fault(kind=self.kind, step=step)

    def flip(self, numbers: Any) -> None:
        """Flip the bit in flat float32 numbers."""
        import torch

        raw = numbers.view(torch.int32)
        place = self.element % max(1, raw.numel())
        raw[place] = raw[place] ^ (1 << self.bit if self.bit < 31 else -(1 << 31))
