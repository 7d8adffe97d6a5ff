"""Over what the bytes of a rank really went: what the back end says of itself, and what the network cards counted."""

from __future__ import annotations

import os
import sys
from typing import Optional

from preflight.node.record import dataclass, field
from reference_trainer import counters, nccl_log
from reference_trainer.counters import Counted
from reference_trainer.nccl_log import Capture, NcclSaid


@dataclass(frozen=True)
class Transport:
    """How one rank was connected.

    Args:
        nccl: what NCCL said; empty with another back end.
        carried: bytes that the node's cards carried while collectives were timed; empty where another rank counted.
        counted: whether this rank counted them, as one of each node does.
        crossing_bytes: what the node must have got from others meanwhile, at least; 0 where all ranks share one.
    """

    nccl: NcclSaid = field(default_factory=NcclSaid)
    carried: Counted = field(default_factory=Counted)
    counted: bool = False
    crossing_bytes: int = 0


class Watcher:
    """Listens to NCCL and reads the counters of the cards, for one rank."""

    def __init__(self) -> None:
        self._counts = False
        self._before: Optional[Counted] = None
        self._after: Optional[Counted] = None
        self._capture: Optional[Capture] = None

    def listen(self, backend: str) -> None:
        """Before the back end starts: have NCCL write down what it does."""
        if backend == "nccl":
            self._capture = Capture(os.environ)

    def begin(self, *, counts: bool) -> None:
        """The bytes to be counted are about to be sent; one rank of each machine counts them."""
        self._counts = counts
        if counts:
            self._before = counters.count()

    def end(self) -> None:
        """They were."""
        if self._counts:
            self._after = counters.count()

    def found(self, crossing_bytes: int) -> Transport:
        """What came of it."""
        said = nccl_log.parse(self._capture.text()) if self._capture is not None else NcclSaid()
        if self._before is None or self._after is None:
            return Transport(said, crossing_bytes=crossing_bytes)
        return Transport(said, counters.between(self._before, self._after), True, crossing_bytes)

    def complain(self) -> None:
        """Put NCCL's warnings, which went to memory, where the last words of a rank that failed are looked for."""
        if self._capture is None:
            return
        for line in nccl_log.parse(self._capture.text()).warnings:
            sys.stderr.write("NCCL WARN %s\n" % line)
