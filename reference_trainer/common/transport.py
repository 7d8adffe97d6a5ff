"""The actual transport of a rank's bytes: the backend's own log, and the counters of the network cards."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Optional

from reference_trainer.common import counters, nccl_log
from reference_trainer.common.counters import CardCounters
from reference_trainer.common.nccl_log import Capture, NcclConnections


@dataclass(frozen=True)
class Transport:
    """How one rank was connected.

    Args:
        nccl: NCCL's own report; empty with another backend.
        carried: bytes that the node's cards carried while collectives were timed; empty if another rank counted.
        counted: whether this rank counted them, as one rank of each node does.
        crossing_bytes: the minimum that the node must have received from others meanwhile; 0 if all ranks share one
        node.
    """

    nccl: NcclConnections = field(default_factory=NcclConnections)
    carried: CardCounters = field(default_factory=CardCounters)
    counted: bool = False
    crossing_bytes: int = 0


class TransportWatcher:
    """Captures NCCL's log and reads the counters of the cards, for one rank."""

    def __init__(self) -> None:
        self._counts = False
        self._before: Optional[CardCounters] = None
        self._after: Optional[CardCounters] = None
        self._capture: Optional[Capture] = None

    def listen(self, backend: str) -> None:
        """Capture NCCL's log; call before the backend starts."""
        if backend == "nccl":
            self._capture = Capture(os.environ)

    def begin(self, *, counts: bool) -> None:
        """Start counting transfers, on one rank of each machine."""
        self._counts = counts
        if counts:
            self._before = counters.count()

    def end(self) -> None:
        """Stop counting transfers."""
        if self._counts:
            self._after = counters.count()

    def found(self, crossing_bytes: int) -> Transport:
        """Return the result."""
        connections = nccl_log.parse(self._capture.text()) if self._capture is not None else NcclConnections()
        if self._before is None or self._after is None:
            return Transport(connections, crossing_bytes=crossing_bytes)
        return Transport(connections, counters.between(self._before, self._after), True, crossing_bytes)

    def print_warnings(self) -> None:
        """Write NCCL's warnings from memory to standard error, where the last output of a failed rank is read."""
        if self._capture is None:
            return
        for line in nccl_log.parse(self._capture.text()).warnings:
            sys.stderr.write("NCCL WARN %s\n" % line)
