"""What servers and workers say at the end of a parameter-server run."""

from __future__ import annotations

from typing import Dict, List, Optional

from preflight.node.record import dataclass, field
from reference_trainer.oracle import Mismatch


@dataclass(frozen=True)
class Stranger:
    """Somebody on a server's port who does not belong to this run, and what gave it away."""

    address: str
    why: str


@dataclass(frozen=True)
class Replacement:
    """A worker whose place a spare one took: at this clock, `after_s` after its connection was given up.

    `spare` is the number of the spare one among its like.
    """

    worker: int
    was_host: str
    host: str
    phase: int
    clock: int
    why: str
    after_s: float
    spare: int = 0


@dataclass(frozen=True)
class WorkerSeen:
    """One worker as a server saw it. `waited_s`: how long the server made it wait for other workers."""

    index: int
    host: str
    pid: int
    address: str
    pushes: int = 0
    pulls: int = 0
    lookups: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waited_s: float = 0.0
    congestion: str = ""


@dataclass(frozen=True)
class ServerReport:
    """What one server can say at the end. Times are seconds since this server started.

    Args:
        staleness: clock of a reader minus clock of the slowest worker when it read -> how often.
        overtaken: updates of others between a worker's read and its push -> how often.
        expected_pushes: what `pushes` of each worker must be: all exact steps and all training steps.
        violations: what broke the protocol's own rules, in sentences: pushes that never came or came twice.
        mismatches: pushes of the exact phase that were not what that worker pushes.
    """

    rank: int
    index: int
    servers: int
    workers: int
    host: str
    endpoint: str
    mode: str
    device: str
    framework: str
    phase_at_s: Dict[str, float] = field(default_factory=dict)
    dense_bytes: int = 0
    table_bytes: int = 0
    shards: int = 0
    imbalance: float = 1.0
    seen: List[WorkerSeen] = field(default_factory=list)
    staleness: Dict[str, int] = field(default_factory=dict)
    staleness_bound: int = 0
    overtaken: Dict[str, int] = field(default_factory=dict)
    expected_pushes: int = 0
    violations: List[str] = field(default_factory=list)
    mismatches: List[Mismatch] = field(default_factory=list)
    strangers: List[Stranger] = field(default_factory=list)
    stranger_count: int = 0
    replaced: List[Replacement] = field(default_factory=list)


@dataclass(frozen=True)
class ServerSeen:
    """One server as a worker saw it. `waited_s`: how long the worker waited for its replies."""

    index: int
    endpoint: str
    host: str = ""
    address: str = ""
    source: str = ""
    result: str = ""
    error: str = ""
    dial_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    round_trips: int = 0
    waited_s: float = 0.0
    congestion: str = ""


@dataclass(frozen=True)
class WorkerReport:
    """What one worker can say at the end. Times are seconds since this worker started.

    Of many steps, the lists hold the first and the last hundred; `steps` says how many there were.

    Args:
        index: the worker whose work it did; -1 for a spare one that was not needed.
        losses: of each step, with the weights it began with, whoever had pushed by then.
        first_loss, last_loss: on this worker's samples with the weights before all training, and after all of it.
        exact_digest, digest: SHA-256 over everything pulled at the end of the exact phase, and of the training.
        difference_to_one_process: largest difference to one process that trained on all shards (mode `sync` only).
        replaced: for a spare worker, whose place it took.
    """

    rank: int
    index: int
    servers: int
    workers: int
    host: str
    mode: str
    device: str
    framework: str
    phase_at_s: Dict[str, float] = field(default_factory=dict)
    seen: List[ServerSeen] = field(default_factory=list)
    plan: str = ""
    exact_steps: int = 0
    steps: int = 0
    mismatches: List[Mismatch] = field(default_factory=list)
    losses: List[float] = field(default_factory=list)
    first_loss: float = 0.0
    last_loss: float = 0.0
    pull_s: List[float] = field(default_factory=list)
    compute_s: List[float] = field(default_factory=list)
    push_s: List[float] = field(default_factory=list)
    unmoved: List[str] = field(default_factory=list)
    exact_digest: str = ""
    digest: str = ""
    difference_to_one_process: Optional[float] = None
    spare: bool = False
    replaced: Optional[int] = None
