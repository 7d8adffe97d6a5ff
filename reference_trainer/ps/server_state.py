"""The state that the threads of one server share: its memory, the clocks, the connections, and how the run ends."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Callable

from reference_trainer.common import oracle
from reference_trainer.common.oracle import LEARNING_RATE, Mismatch
from reference_trainer.ps import clocks, exact, settings, tasks
from reference_trainer.ps.clocks import Clocks, RunEnded
from reference_trainer.ps.frames import Channel, FairLock, PeerError
from reference_trainer.ps.run_report import RejectedClient, Replacement, WorkerStats
from reference_trainer.ps.settings import ProcessFault, Settings

_MAX_STRANGERS = 50
_MAX_MISMATCHES = 50
#: Pushes of the exact phase are compared on arrival, as long as the expected values take no more memory than this.
_MAX_CHECKED_BYTES = 256 * 1024 * 1024


class ConnectedWorker:
    """One connected worker, or a backup worker (`index` -1 until it replaces one)."""

    def __init__(self, channel: Channel, peer_values: dict[str, Any]) -> None:
        self.channel = channel
        self.index = -1 if peer_values.get("spare") else int(peer_values["index"])
        self.spare = bool(peer_values.get("spare"))
        #: Tells its pushes from those of the worker that it replaced.
        self.generation = 1 if self.spare else 0
        #: Its number among the backup workers.
        self.spare_index = int(peer_values.get("index", 0)) if self.spare else 0
        self.host = str(peer_values.get("host", ""))[:255]
        self.pid = int(peer_values["pid"]) if isinstance(peer_values.get("pid"), int) else 0
        self.pushes = self.pulls = self.lookups = 0
        self.waited_s = 0.0
        self.gone = threading.Event()
        self.left = False
        #: The start of its current request; 0.0 between requests.
        self.busy_since = 0.0

    def busy(self, min_s: float) -> bool:
        """Return whether one of its requests has already taken longer than `min_s`."""
        since = self.busy_since
        return since > 0.0 and time.monotonic() - since >= min_s

    def name(self) -> str:
        """Return `worker 1 (node-b, process 4711)`."""
        who = f"worker {self.index}" if self.index >= 0 else "a backup worker"
        return "%s (%s, process %d)" % (who, self.host, self.pid)

    def protocol_error(self, did: str) -> PeerError:
        """Return the error for a worker that violated the protocol."""
        return PeerError("protocol_error", self.channel.peer, f"{self.name()} {did}")

    def seen(self) -> WorkerStats:
        channel = self.channel
        return WorkerStats(
            self.index,
            self.host,
            self.pid,
            channel.address,
            self.pushes,
            self.pulls,
            self.lookups,
            channel.bytes_in,
            channel.bytes_out,
            round(self.waited_s, 6),
            channel.congestion,
        )


class ServerState:
    """One running server."""

    def __init__(self, config: Settings, fault: ProcessFault) -> None:
        self.config = config
        self.fault = fault
        self.clocks = Clocks(config.workers, config.mode, bound=config.staleness, apply_round=self._apply_round)
        self.reply_timeout = settings.AdaptiveTimeout(config.least_limit_s)
        self.lock = threading.Lock()
        self.turn = FairLock()
        self.peers: dict[int, ConnectedWorker] = {}
        self.spares: list[ConnectedWorker] = []
        #: Workers whose connection was dropped and that are not replaced yet: why, and when.
        self.vacant: dict[int, str] = {}
        self.vacant_at: dict[int, float] = {}
        #: Workers whose place is vacant because the others waited for them.
        self.lagged: set[int] = set()
        self.left: dict[int, WorkerStats] = {}
        self.strangers: list[RejectedClient] = []
        self.stranger_count = 0
        self.replaced: list[Replacement] = []
        self.mismatches: list[Mismatch] = []
        #: The order of the training's pushes and reads, after its end.
        self.history = b""
        self.ready = threading.Event()
        self.over = threading.Event()
        self.on_progress: Callable[[], None] = lambda: None

    def prepare(self, device: Any) -> None:
        """Allocate everything and start serving; torch must be imported."""
        import torch

        config = self.config
        # Each worker has its own thread here; additional torch threads in each of them would waste cores.
        torch.set_num_threads(1)
        self.store = exact.Store(
            config.plan,
            config.index,
            device,
            workers=config.workers,
            stream_bytes=config.stream_bytes,
            in_rounds=config.mode == clocks.SYNC,
        )
        self.exact = config.exact_values(device)
        self.on_host = self.exact if self.store.on_host else config.exact_values(_cpu())
        self.slots = [
            exact.Slot(self.store, config.plan, capacity=lambda table: config.capacity(config.index, table))
            for _ in range(config.workers)
        ]
        self.store.fill(self.exact.start, self.exact.start_rows)
        self.checked = self.store.dense_bytes * config.workers <= _MAX_CHECKED_BYTES
        self.ready.set()

    @property
    def factor(self) -> float:
        """Return the factor of a push when it is added to the weights."""
        config = self.config
        if self.clocks.phase <= settings.EXACT_READ:
            return 1.0 if config.mode == clocks.GEO else -LEARNING_RATE
        base = 1.0 if config.mode == clocks.GEO else -config.task.base_rate
        return tasks.rate(base, config.workers)

    @property
    def steps(self) -> int:
        """Return the number of steps of each worker in the current phase."""
        return self.config.exact_steps if self.clocks.phase <= settings.EXACT_READ else self.config.steps

    def advance(self, phase: int) -> None:
        """Do the work between phases, after all workers reached a barrier. Called under the lock of the clocks."""
        if phase == settings.EXACT:
            self.clocks.begin_phase()
        elif phase == settings.TRAINING and not self.config.ends_after_exact:
            self.clocks.begin_phase()
            self.fill_for_training()
            if self.config.is_replayed:
                self.store.begin_history()
        elif phase == settings.READ:
            self.history = self.store.history.data() if self.store.history is not None else b""
            self.store.history = None
        if self.config.ends_after_exact and phase == settings.TRAINING:
            self.over.set()
        if phase == settings.OVER:
            self.over.set()
        self.on_progress()

    def fill_for_training(self) -> None:
        whole = {p.name: self.config.task.initial(p.name) for p in self.config.plan.dense}

        def dense(shard: Any) -> Any:
            import torch

            blocks = [piece.block for piece in shard.pieces]
            return torch.cat([whole[b.parameter][b.begin : b.begin + b.elements] for b in blocks])

        self.store.fill(dense, lambda table, rows: self.config.task.initial_rows(table, rows.cpu()))

    def refuse(self, address: str, why: str) -> None:
        with self.lock:
            self.stranger_count += 1
            if len(self.strangers) < _MAX_STRANGERS:
                self.strangers.append(RejectedClient(address, why[:300]))

    def mismatch(self, mismatch: Mismatch | None) -> None:
        if mismatch is not None:
            with self.lock:
                if len(self.mismatches) < _MAX_MISMATCHES:
                    self.mismatches.append(mismatch)

    def check_push(self, worker: int, clock: int, shard: Any) -> None:
        """Check the value of a worker's push for a shard in the exact phase."""
        if self.checked and self.clocks.phase == settings.EXACT:
            self.check_received(worker, clock, shard, self.slots[worker].part(shard))

    def check_received(self, worker: int, clock: int, shard: Any, got: Any) -> None:
        """Check numbers that are no longer, or not yet, in the slot, as `check_push` does."""
        expected = self.on_host.push(shard, worker, clock)
        if self.config.mode == clocks.GEO:
            expected = expected * -LEARNING_RATE
        what = "push %d of worker %d to server %d, shard %d" % (clock, worker, self.config.index, shard.number)
        found = oracle.compare(what, self.config.rank, got, expected)
        if found is not None:
            parameter, index = shard.place_of(found.index)
            why = "element %d of %s: %s" % (index, parameter, found.explanation)
            self.mismatch(replace(found, explanation=why, sender=f"worker {worker}"))

    def lose(self, peer: ConnectedWorker, why: str, *, lagged: bool = False) -> None:
        """Handle a lost worker connection: a backup may replace it, else the run ends. `lagged`: it delayed others."""
        with self.lock:
            if peer.index < 0:
                if peer in self.spares:
                    self.spares.remove(peer)
                return
            if self.peers.get(peer.index) is not peer:
                return
            del self.peers[peer.index]
            self.left[peer.index] = peer.seen()
            replaceable = self.config.spares > len(self.replaced) + len(self.vacant)
            if replaceable:
                self.vacant[peer.index] = why
                if lagged:
                    self.lagged.add(peer.index)
                self.vacant_at[peer.index] = time.monotonic()
        if replaceable:
            with self.clocks.changed:
                self.clocks.changed.notify_all()
        else:
            self.clocks.end(RunEnded(why, worker=peer.index))
        self.on_progress()

    def _apply_round(self) -> None:
        """Add the pushes of one round (mode `sync`)."""
        self.store.add_round(self.clocks.applied)
        exact.add_rows_of_round(self.store, self.slots, self.factor, self.clocks.applied)


def _cpu() -> Any:
    import torch

    return torch.device("cpu")
