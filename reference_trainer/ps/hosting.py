"""What the threads of one server share: its memory, the clocks, who is connected, and how the run ends."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional

from preflight.node.record import replace
from reference_trainer import oracle
from reference_trainer.oracle import LEARNING_RATE, Mismatch
from reference_trainer.ps import clocks, settings, store, tasks
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.clocks import Clocks, Ended
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.exact import Exact
from reference_trainer.ps.report import Replacement, Stranger, WorkerSeen
from reference_trainer.ps.settings import Settings
from reference_trainer.ps.turns import Turn

_MOST_STRANGERS = 50
_MOST_MISMATCHES = 50
#: Pushes of the exact phase are compared where they arrive, as long as what to compare with takes no more than this.
_MOST_CHECKED_BYTES = 256 * 1024 * 1024


class Guest:
    """One connected worker, or a spare one (`index` -1 until it takes a place)."""

    def __init__(self, channel: Channel, said: Dict[str, Any]) -> None:
        self.channel = channel
        self.index = -1 if said.get("spare") else int(said["index"])
        self.spare = bool(said.get("spare"))
        #: Its number among the spare ones.
        self.spare_index = int(said.get("index", 0)) if self.spare else 0
        self.host = str(said.get("host", ""))[:255]
        self.pid = int(said["pid"]) if isinstance(said.get("pid"), int) else 0
        self.pushes = self.pulls = self.lookups = 0
        self.waited_s = 0.0
        self.gone = threading.Event()
        self.left = False
        #: Since when a request of it has been under way; 0.0 between requests.
        self.busy_since = 0.0

    def busy(self, least_s: float) -> bool:
        """Whether one request of it has taken longer than `least_s` already."""
        since = self.busy_since
        return since > 0.0 and time.monotonic() - since >= least_s

    def name(self) -> str:
        """`worker 1 (node-b, process 4711)`."""
        who = "worker %d" % self.index if self.index >= 0 else "a spare worker"
        return "%s (%s, process %d)" % (who, self.host, self.pid)

    def confused(self, did: str) -> PeerError:
        """What it did is against the protocol."""
        return PeerError("confused", self.channel.peer, "%s %s" % (self.name(), did))

    def seen(self) -> WorkerSeen:
        """For the report."""
        channel = self.channel
        return WorkerSeen(
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


class Hosting:
    """One server while it runs."""

    def __init__(self, told: Settings, drill: Drill) -> None:
        self.told = told
        self.drill = drill
        self.clocks = Clocks(told.workers, told.mode, bound=told.staleness, apply_round=self._apply_round)
        self.patience = settings.Patience(told.least_limit_s)
        self.lock = threading.Lock()
        self.turn = Turn()
        self.guests: Dict[int, Guest] = {}
        self.spares: List[Guest] = []
        #: Workers whose connection was given up and whose place nobody has taken yet: why, and when.
        self.vacant: Dict[int, str] = {}
        self.vacant_at: Dict[int, float] = {}
        self.left: Dict[int, WorkerSeen] = {}
        self.strangers: List[Stranger] = []
        self.stranger_count = 0
        self.replaced: List[Replacement] = []
        self.mismatches: List[Mismatch] = []
        self.ready = threading.Event()
        self.over = threading.Event()
        self.moved: Callable[[], None] = lambda: None

    def prepare(self, device: Any) -> None:
        """Allocate everything and begin to serve; torch is there by now."""
        import torch

        told = self.told
        # Each worker has a thread of its own here; with torch's threads below each of them cores would be spun away.
        torch.set_num_threads(1)
        self.store = store.Store(told.plan, told.index, device)
        self.exact = Exact(told.plan, told.workers, device)
        self.on_host = self.exact if self.store.on_host else Exact(told.plan, told.workers, _cpu())
        self.slots = [
            store.Slot(
                self.store,
                told.plan,
                capacity=lambda table: told.capacity(told.index, table),
                keeps=told.mode == clocks.SYNC,
            )
            for _ in range(told.workers)
        ]
        self.store.fill(self.exact.start, self.exact.start_rows)
        self.checked = self.store.dense_bytes * told.workers <= _MOST_CHECKED_BYTES
        self.ready.set()

    @property
    def factor(self) -> float:
        """What a push is multiplied with when it is added to the weights."""
        told = self.told
        if self.clocks.phase <= settings.EXACT_READ:
            return 1.0 if told.mode == clocks.GEO else -LEARNING_RATE
        base = 1.0 if told.mode == clocks.GEO else -told.task.base_rate
        return tasks.rate(base, told.workers)

    @property
    def steps(self) -> int:
        """Steps of each worker in the present phase."""
        return self.told.exact_steps if self.clocks.phase <= settings.EXACT_READ else self.told.steps

    def advance(self, phase: int) -> None:
        """All workers came to a barrier: what is between two phases. Called under the lock of the clocks."""
        if phase == settings.EXACT:
            self.clocks.begin_phase()
        elif phase == settings.TRAINING and not self.told.only_exact:
            self.clocks.begin_phase()
            self.fill_for_training()
        if self.told.only_exact and phase == settings.TRAINING:
            self.over.set()
        if phase == settings.OVER:
            self.over.set()
        self.moved()

    def fill_for_training(self) -> None:
        """The task's own first values."""
        whole = {p.name: self.told.task.initial(p.name) for p in self.told.plan.dense}

        def dense(shard: Any) -> Any:
            import torch

            blocks = [piece.block for piece in shard.pieces]
            return torch.cat([whole[b.parameter][b.begin : b.begin + b.elements] for b in blocks])

        self.store.fill(dense, lambda table, rows: self.told.task.initial_rows(table, rows.cpu()))

    def stranger(self, address: str, why: str) -> None:
        """Keep who knocked and was refused."""
        with self.lock:
            self.stranger_count += 1
            if len(self.strangers) < _MOST_STRANGERS:
                self.strangers.append(Stranger(address, why[:300]))

    def mismatch(self, found: Optional[Mismatch]) -> None:
        """Keep what was not what it must be."""
        if found is not None:
            with self.lock:
                if len(self.mismatches) < _MOST_MISMATCHES:
                    self.mismatches.append(found)

    def check_push(self, worker: int, clock: int, shard: Any) -> None:
        """Whether a worker pushed for a shard what it must in the exact phase."""
        if not self.checked or self.clocks.phase != settings.EXACT:
            return
        got = self.slots[worker].part(shard)
        expected = self.on_host.gradient(shard, worker)
        if self.told.mode == clocks.GEO:
            steps = min(self.told.geo_steps, self.told.exact_steps - clock * self.told.geo_steps)
            expected = expected * (-LEARNING_RATE * steps)
        what = "push %d of worker %d to server %d, shard %d" % (clock, worker, self.told.index, shard.number)
        found = oracle.compare(what, self.told.rank, got, expected)
        if found is not None:
            parameter, index = shard.place_of(found.index)
            self.mismatch(replace(found, explanation="element %d of %s: %s" % (index, parameter, found.explanation)))

    def lose(self, guest: Guest, why: str, at_s: Optional[float] = None) -> None:
        """A worker's connection is over before the run is: a spare one may take its place, else the run ends."""
        with self.lock:
            if guest.index < 0:
                if guest in self.spares:
                    self.spares.remove(guest)
                return
            if self.guests.get(guest.index) is not guest:
                return
            del self.guests[guest.index]
            self.left[guest.index] = guest.seen()
            replaceable = self.told.spares > len(self.replaced) + len(self.vacant)
            if replaceable:
                self.vacant[guest.index] = why
                self.vacant_at[guest.index] = time.monotonic() if at_s is None else at_s
        if replaceable:
            with self.clocks.changed:
                self.clocks.changed.notify_all()
        else:
            self.clocks.end(Ended(why, worker=guest.index))
        self.moved()

    def _apply_round(self) -> None:
        """The pushes of one round, in the order of the workers' indices (mode `sync`)."""
        store.sum_slots(self.store, self.slots, self.factor)
        for slot in self.slots:
            slot.held = [0] * len(slot.held)


def _cpu() -> Any:
    import torch

    return torch.device("cpu")
