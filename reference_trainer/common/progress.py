"""A rank's progress reports: events, heartbeats from another thread, and the time its threads waited for a CPU.

Events and heartbeats are separate on purpose. A heartbeat shows that the process is alive; the progress counter, which
only the main thread advances, shows that training makes progress. A rank with heartbeats but without progress is stuck.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, Sequence

from preflight.agent import rank_events


def waited_s(path: str = "/proc/thread-self/schedstat") -> float | None:
    """Return the seconds in which this thread was ready to run but did not run; None if the kernel does not count them.

    The second number of `schedstat` (Documentation/scheduler/sched-stats.rst), nanoseconds.
    """
    try:
        with open(path) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def waits_of_threads(root: str = "/proc/self/task") -> dict[str, float] | None:
    """Return `waited_s` of each thread of this process, by thread id; None if the kernel does not count it."""
    wait_by_thread: dict[str, float] = {}
    try:
        for thread in os.listdir(root):
            waited = waited_s(f"{root}/{thread}/schedstat")
            if waited is not None:
                wait_by_thread[thread] = waited
            elif os.path.isdir(f"{root}/{thread}"):
                return None  # not merely a thread that has just ended
    except OSError:
        return None
    return wait_by_thread


def threads_waited_s(root: str = "/proc/self/task") -> float | None:
    """Return the sum of `waited_s` over the threads of this process; None if the kernel does not count it."""
    waits = waits_of_threads(root)
    return None if waits is None else sum(waits.values())


def throttled_s(root: str = "/sys/fs/cgroup", own_group: str = "/proc/self/cgroup") -> float | None:
    """Return the seconds in which the quota throttled the control groups of this process; None if unknown.

    `throttled_usec` of cgroup v2, `throttled_time` (nanoseconds) of v1.
    """
    for path in _stat_files(root, own_group):
        try:
            with open(path) as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "throttled_usec":
                        return int(value) / 1e6
                    if name == "throttled_time":
                        return int(value) / 1e9
        except (OSError, ValueError):
            continue
    return None


def stolen_s(path: str = "/proc/stat") -> float:
    """Return the seconds in which the hypervisor ran other machines instead of this one, as the mean over its CPUs; 0
    if unknown.

    The eighth number of the line `cpu` (proc_stat(5)), in clock ticks.
    """
    try:
        with open(path) as file:
            fields = file.readline().split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return 0.0


class StarvationClock:
    """Adds up the time in which a thread of this process was ready but got no CPU.

    Several threads may wait at once, and a waiting thread can hold up all others (they meet at barriers): an interval
    between two readings counts as much as its longest waiting thread, or as long as the control group was throttled,
    and never more than the interval itself.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._read_at_s = time.monotonic()
        self._waits = waits_of_threads()
        self._throttled = throttled_s() or 0.0
        self._stolen = stolen_s()

    def read(self) -> float | None:
        """Return the total so far in seconds; None if the kernel does not count it."""
        waits, now_s = waits_of_threads(), time.monotonic()
        if waits is None or self._waits is None:
            return None
        throttled, stolen = throttled_s() or 0.0, stolen_s()
        waits.pop(str(threading.get_native_id()), None)  # the reading thread does no work
        longest = max((waited - self._waits.get(thread, 0.0) for thread, waited in waits.items()), default=0.0)
        lost = max(longest, throttled - self._throttled) + stolen - self._stolen
        self._total_s += min(max(lost, 0.0), now_s - self._read_at_s)
        self._read_at_s, self._waits, self._throttled, self._stolen = now_s, waits, throttled, stolen
        return self._total_s


def _stat_files(root: str, own_group: str) -> list[str]:
    """Return possible paths of cpu.stat: of this process's own group, else of the visible root."""
    paths: list[str] = []
    try:
        with open(own_group) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            paths += [root + "/" + controllers + path + "/cpu.stat", root + "/cpu" + path + "/cpu.stat"]
        elif not controllers:
            paths.append(root + path + "/cpu.stat")
    return [*paths, root + "/cpu.stat", root + "/cpu/cpu.stat", root + "/cpu,cpuacct/cpu.stat"]


Emit = Callable[[Dict[str, Any]], Any]

#: Shortest interval between reports of single short steps; heartbeats carry the counter in between.
BRIEF_S = 0.1


class Progress:
    """The rank's own progress; `emit` sends an event to the head, and two threads call it under a lock."""

    def __init__(self, emit: Emit, *, rank: int) -> None:
        self.rank = rank
        self.phase = ""
        #: Number of the last collective that was entered.
        self.collective = 0
        self.phase_at_s: dict[str, float] = {}
        self._emit = emit
        self._lock = threading.Lock()
        #: A heartbeat must not see a half-entered step.
        self._state = threading.Lock()
        self._began = time.monotonic()
        self._counter = 0
        self._what = ""
        self._waiting_for: list[int] = []
        self._loading = False
        self._inside = False
        self._idle = False
        self._root: int | None = None
        self._announced = False
        self._announced_at = 0.0
        self._since = self._began
        self._quit = threading.Event()
        #: Called before each collective with its number, for fault injection.
        self.before_collective: Callable[[int], None] = _no_fault
        self._heart: threading.Thread | None = None

    @property
    def began_s(self) -> float:
        """Return the start of this rank, by `time.monotonic`."""
        return self._began

    def start(self) -> None:
        self._heart = threading.Thread(target=self._beat, name="preflight-heart", daemon=True)
        self._heart.start()

    def stop(self) -> None:
        """Stop the heartbeats; none is sent after this returns."""
        self._quit.set()
        if self._heart is not None:
            self._heart.join(2.0)

    def send(self, event: str, **data: Any) -> None:
        data["event"] = event
        with self._lock:
            self._emit(data)

    def on_fault_injected(self, **what: Any) -> None:
        """Report that a requested fault is being injected."""
        self.send(rank_events.FAULT_INJECTED, phase=self.phase, **what)

    def report_loss(self, text: str, because: list[int]) -> None:
        """Report that this rank ends because the ranks `because` are gone."""
        self.send(
            rank_events.PROBLEM,
            problem="failed",
            phase=self.phase,
            error=text,
            consequence=True,
            rank=self.rank,
            because=because,
        )

    def reached(self, phase: str, **details: Any) -> None:
        """Report that a phase is complete."""
        self.phase = phase
        self.phase_at_s[phase] = time.monotonic() - self._began
        self._moved()
        self.send(rank_events.PHASE, phase=phase, progress=self._counter, details=details)

    def entering(
        self,
        what: str,
        *,
        waiting_for: Sequence[int] = (),
        collective: bool = False,
        loading: bool = False,
        brief: bool = False,
        idle: bool = False,
        root: int | None = None,
        details: dict[str, Any] | None = None,
    ) -> int:
        """Report that a call that may block is about to begin.

        Args:
            waiting_for: ranks without which it cannot continue; empty when it depends on no other rank.
            collective: whether it needs every rank; then it gets the next number, the same on all ranks.
            loading: whether heartbeats may pause meanwhile, because libraries are loaded under the interpreter's lock.
            brief: whether it is one of many mostly short calls, such as steps, which are reported only every `BRIEF_S`.
            idle: whether there is nothing to do until one of `waiting_for` sends a request.
            root: the rank that may leave this collective before the others, since it only sends; `ANY_RANK`: each may.

        Returns the number of the collective (of the last one if this is not a collective).
        """
        if collective:
            self.before_collective(self.collective + 1)
        with self._state:
            self._moved()
            if collective:
                self.collective += 1
            self._what, self._waiting_for, self._loading = what, list(waiting_for), loading
            self._inside, self._idle, self._root = collective, idle, root
        self._announced = not brief or self._since - self._announced_at >= BRIEF_S
        if not self._announced:
            return self.collective
        self._announced_at = self._since
        data: dict[str, Any] = {
            "what": what,
            "phase": self.phase,
            "waiting_for": list(waiting_for),
            "progress": self._counter,
            "loading": loading,
        }
        if collective:
            data["collective"] = self.collective
        if idle:
            data["idle"] = True
        if root is not None:
            data["root"] = root
        if details:
            data["details"] = details
        self.send(rank_events.ENTERING, **data)
        return self.collective

    def waits_for(self, ranks: Sequence[int], *, idle: bool = False) -> None:
        """Report that the current call continues, but now waits only for these ranks; `idle` is as in `entering`."""
        if list(ranks) != self._waiting_for or idle != self._idle:
            with self._state:
                self._waiting_for, self._idle = list(ranks), idle
            self.send(
                rank_events.ENTERING, what=self._what, phase=self.phase, waiting_for=list(ranks), idle=idle, again=True
            )

    def report_progress(self) -> None:
        """Record that the main thread is making progress in its current call; the next heartbeat reports it."""
        with self._state:
            self._moved()

    def left(self, *, collective: bool = False) -> None:
        """Report that the current call has ended."""
        seconds = time.monotonic() - self._since
        with self._state:
            what, self._what, self._waiting_for, self._loading = self._what, "", [], False
            self._inside = self._idle = False
            self._root = None
            self._moved()
        if not self._announced:
            return
        data: dict[str, Any] = {"what": what, "phase": self.phase, "progress": self._counter, "seconds": seconds}
        if collective:
            data["collective"] = self.collective
        self.send(rank_events.LEFT, **data)

    def _moved(self) -> None:
        self._counter += 1
        self._since = time.monotonic()

    def _beat(self) -> None:
        beat = 0
        starvation = StarvationClock()
        while not self._quit.wait(rank_events.HEARTBEAT_S):
            beat += 1
            with self._state:
                now: dict[str, Any] = {
                    "progress": self._counter,
                    "phase": self.phase,
                    "what": self._what,
                    "waiting_for": list(self._waiting_for),
                    "collective": self.collective,
                    "inside": self._inside,
                    "loading": self._loading,
                    "idle": self._idle,
                    "since_s": round(time.monotonic() - self._since, 3),
                }
                if self._root is not None:
                    now["root"] = self._root
            starved_s = starvation.read()
            if starved_s is not None:
                now["starved_s"] = round(starved_s, 3)
            self.send(rank_events.BEAT, beat=beat, **now)


def _no_fault(collective: int) -> None:
    """Inject no fault."""
