"""Shows the progress of a run, and derives its state from its steps: stages with their times, nodes, phases of
ranks.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from preflight._util import terminal
from preflight._util.hostnames import number_ranges
from preflight._util.log import is_on_stderr
from preflight._util.sanitize import clean, fold_nodes, neutralize_commands
from preflight.agent import rank_events
from preflight.model.job import is_whole_number
from preflight.model.progress import Progress, Step, ignore

if TYPE_CHECKING:
    from preflight.reporters.live.table import LiveTable

TITLES = {
    "gather": "finding the nodes",
    "open": "reaching the nodes",
    "node": "checking the nodes",
    "link": "checking the links",
    "smoke": "training a few steps",
    "files": "reading files",
    "jobs": "assembling jobs",
    "recording": "reading the recording",
    "logs": "reading logs",
    "judge": "judging",
}
#: A stage that ends sooner, without reporting its end, gets no line.
MIN_STAGE_S = 0.1
#: Number of awaited nodes that are named.
_MAX_WAITED_FOR = 16


@dataclass
class Stage:
    """The state of one stage. Times are those of the watcher's clock; `ends_s` is the deadline."""

    name: str
    began_s: float | None = None
    took_s: float | None = None
    ends_s: float | None = None
    done: int = 0
    total: int = 0
    nodes: int = 0
    waiting_for: tuple[str, ...] = ()
    skipped: str = ""
    #: For each process of the smoke run: its node, and the last phase it finished.
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: All processes seen so far, in order of appearance; several groups may follow each other.
    all_members: dict[str, None] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the title to display."""
        return TITLES.get(self.name, self.name)

    @property
    def is_over(self) -> bool:
        return self.took_s is not None or bool(self.skipped)

    def end_reason(self) -> str:
        """Return why the stage did not run or did not complete; empty if it ended normally."""
        return f"{'skipped' if self.began_s is None else 'ended'}, {self.skipped}" if self.skipped else ""

    def progress_text(self) -> str:
        """Return progress as `3 of 4 nodes`, `12 of 40` or `8 ranks`; empty if nothing is counted."""
        if self.name == "smoke":
            return _count_members(tuple(self.all_members)) if self.all_members else ""
        if self.nodes:
            return f"{max(0, self.nodes - len(self.waiting_for))} of {self.nodes} nodes"
        return f"{self.done} of {self.total}" if self.total > 1 and not self.is_over else ""

    def time(self, now_s: float) -> str:
        """Return `1.2 s` for a finished stage, `3 s of at most 10` for a running one."""
        if self.took_s is not None:
            return f"{self.took_s:.1f} s"
        if self.began_s is None:
            return ""
        elapsed = now_s - self.began_s
        most = f" of at most {self.ends_s - self.began_s:.0f}" if self.ends_s is not None else ""
        return f"{elapsed:.0f} s{most}"

    def awaited(self) -> str:
        """Return the awaited nodes, folded; empty if no particular nodes are awaited."""
        named = self.waiting_for[:_MAX_WAITED_FOR]
        more = len(self.waiting_for) - len(named)
        return fold_nodes(named) + (f" and {more} more" if more else "") if named else ""

    def by_phase(self) -> list[str]:
        """Return `ranks 0-5 on node[1-3]: importing torch`, the slowest ranks first."""
        together: dict[str, list[str]] = {}
        where: dict[str, int] = {}
        for member, (_, phase) in self.members.items():
            role = member.partition(" ")[0]
            doing = "starting" if not phase else rank_events.activity_of(phase, role) or phase
            together.setdefault(doing, []).append(member)
            where.setdefault(doing, rank_events.position(phase))
        lines = []
        for doing, members in sorted(together.items(), key=lambda item: where[item[0]]):
            nodes = tuple(dict.fromkeys(self.members[member][0] for member in members))
            lines.append(f"{_name_members(members)} on {fold_nodes(nodes)}: {clean(doing)}")
        return lines


class Watch:
    """Tracks the state of a run from its steps."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.now: Stage | None = None

    def update(self, step: Step, at_s: float) -> list[Stage]:
        """Process `step` and return the stages that it ended."""
        for name in step.planned:
            self.stages.setdefault(name, Stage(name))
        over: list[Stage] = []
        stage = self.stages.setdefault(step.stage, Stage(step.stage))
        before = self.now
        if before is not None and before is not stage and not before.is_over:
            # The next stage begins when this one ends.
            before.took_s = at_s - (before.began_s if before.began_s is not None else at_s)
            if before.took_s >= MIN_STAGE_S:
                over.append(before)
        if step.skipped:
            stage.skipped = step.skipped
            self.now = None
            return [*over, stage]
        if stage.is_over:
            return over
        self.now = stage
        stage.began_s = at_s if stage.began_s is None else stage.began_s
        if step.ended:
            stage.took_s, self.now = at_s - stage.began_s, None
            return [*over, stage]
        if step.party and step.node:
            stage.members[step.party] = (step.node, step.phase)
            stage.all_members[step.party] = None
        elif step.party:
            stage.members.pop(step.party, None)
        else:
            stage.done, stage.total = step.done, step.total
            stage.nodes = step.nodes or stage.nodes
            stage.waiting_for = step.waiting_for
        if step.deadline_s is not None:
            stage.ends_s = at_s + step.deadline_s
        return over


def _count_members(members: Sequence[str]) -> str:
    """Return `8 ranks` or `2 servers and 4 workers`."""
    roles = Counter(member.partition(" ")[0] for member in members)
    return " and ".join(f"{number} {role}{'' if number == 1 else 's'}" for role, number in roles.items())


def _name_members(members: Sequence[str]) -> str:
    """Return `ranks 0-5` or `server 0, workers 0-2`."""
    by_role: dict[str, list[str]] = {}
    for member in members:
        role, _, index = member.partition(" ")
        by_role.setdefault(role, []).append(index)
    return ", ".join(
        f"{role}{'' if len(indices) == 1 else 's'} {_ranges(indices)}".rstrip() for role, indices in by_role.items()
    )


def _ranges(indices: Sequence[str]) -> str:
    """Return `0-2,5` for 0, 1, 2 and 5; a name that is not a number is unchanged."""
    numbers = [int(index) for index in indices if is_whole_number(index)]
    others = [clean(index) for index in indices if not is_whole_number(index)]
    return ",".join([*number_ranges(numbers), *others])


#: Shortest time between two log lines about a running stage.
LOG_EVERY_S = 5.0
#: Largest number of notes per stage in a log: each of a thousand silent nodes has a note.
_MAX_NOTES = 10
Clock = Callable[[], float]


@contextmanager
def live_progress(
    stream: TextIO,
    *,
    color: bool | None = None,
    quiet: bool = False,
    after_s: float = 0.0,
    threads: bool = True,
    clock: Clock = time.monotonic,
) -> Iterator[Progress]:
    """Yield a receiver of progress that writes to `stream`, unless `quiet` or the run ends within `after_s`."""
    if quiet:
        yield ignore
        return
    make = functools.partial(_watcher, stream, color, clock, threads=threads)
    watcher = _DelayedProgress(make, after_s, clock, threads=threads) if after_s else make()
    try:
        yield watcher
    finally:
        watcher.close()


def _watcher(stream: TextIO, color: bool | None, clock: Clock, *, threads: bool) -> _Log | LiveTable:
    if not terminal.can_redraw(stream) or is_on_stderr():
        return _Log(stream, clock)
    # Imported here so that a run without a terminal does not load the library.
    from preflight.reporters.live.table import LiveTable

    return LiveTable(stream, color=terminal.wants_color(stream, color), clock=clock, threads=threads)


class _Log:
    """Writes progress to a file or pipe: a line per stage, its first notes, and running stages at intervals."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._watch = Watch()
        self._announced: set[str] = set()
        self._notes: Counter[str] = Counter()
        self._logged = clock()

    def __call__(self, step: Step) -> None:
        now = self._clock()
        for over in self._watch.update(step, now):
            if over.skipped:
                self._write(f"{over.title}: {clean(over.end_reason())}")
        self._begin(now)
        if step.note:
            self._note(step)
        stage = self._watch.now
        if stage is not None and now - self._logged >= LOG_EVERY_S:
            self._logged = now
            for line in _running_line(stage, now):
                self._write(f"  {line}")

    def _note(self, step: Step) -> None:
        """Print a note. After the first few of a stage, print only that more follow."""
        self._notes[step.stage] += 1
        if self._notes[step.stage] <= _MAX_NOTES:
            self._write(f"  {clean(step.note)}")
        elif self._notes[step.stage] == _MAX_NOTES + 1:
            self._write("  there are more notes; the report contains all of them")

    def _begin(self, now: float) -> None:
        stage = self._watch.now
        if stage is not None and stage.name not in self._announced:
            self._announced.add(stage.name)
            self._logged = now
            most = f" (at most {stage.ends_s - now:.0f} s)" if stage.ends_s is not None else ""
            self._write(f"{stage.title}{most}")

    def close(self) -> None:
        """Do nothing, because nothing has to be cleaned up."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(neutralize_commands(f"preflight: {line}\n"))
            self._stream.flush()
        except (OSError, ValueError):
            # The reader closed the stream; the run continues for the report.
            pass


def _running_line(stage: Stage, now_s: float) -> list[str]:
    if stage.members:
        return stage.by_phase()
    text = ", ".join(filter(None, (stage.progress_text(), stage.time(now_s))))
    awaited = stage.awaited()
    return [f"{text}; waiting for {awaited}" if awaited else text]


class _DelayedProgress:
    """Forwards steps to another receiver once a run has taken so long that the user needs to see progress."""

    def __init__(self, make: Callable[[], _Log | LiveTable], after_s: float, clock: Clock, *, threads: bool) -> None:
        self._make = make
        self._watcher: _Log | LiveTable | None = None
        self._clock = clock
        self._from = clock() + after_s
        self._held: list[Step] = []
        self._lock = threading.Lock()
        self._closed = False
        self._timer = threading.Timer(after_s, self._on_timer) if threads else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, step: Step) -> None:
        with self._lock:
            if self._watcher is not None or self._clock() >= self._from:
                self._create_watcher()(step)
            else:
                # The display starts later: it needs the newest step of each stage, every note and every plan.
                self._held = [held for held in self._held if held.stage != step.stage or held.note or held.planned]
                self._held.append(step)

    def _on_timer(self) -> None:
        with self._lock:
            if not self._closed:
                self._create_watcher()

    def _create_watcher(self) -> _Log | LiveTable:
        """Create the receiver and pass it the held-back steps. Most runs end before this is necessary."""
        watcher = self._watcher = self._watcher or self._make()
        held, self._held = self._held, []
        for step in held:
            watcher(step)
        return watcher

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._watcher is not None:
                self._watcher.close()
