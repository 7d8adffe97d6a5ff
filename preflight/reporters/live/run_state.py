"""The state of a run, derived from its steps: stages with their times, awaited nodes, and phases of ranks.

Nothing here writes. The live table and the log of a pipe both use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from preflight._util.hostnames import number_ranges
from preflight._util.sanitize import clean, fold_nodes
from preflight.agent import rank_events
from preflight.model.job import is_whole_number
from preflight.model.progress import Step

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
    """The state of one stage. Times are those of the watcher's clock; `ends_s` is when it will be cut off."""

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
        """Return a title for people."""
        return TITLES.get(self.name, self.name)

    @property
    def over(self) -> bool:
        """Return whether the stage has ended."""
        return self.took_s is not None or bool(self.skipped)

    def end_reason(self) -> str:
        """Return why the stage did not run or did not complete; empty if it ended normally."""
        return f"{'skipped' if self.began_s is None else 'ended'}, {self.skipped}" if self.skipped else ""

    def progress_text(self) -> str:
        """Return progress as `3 of 4 nodes`, `12 of 40` or `8 ranks`; empty if there is nothing to count."""
        if self.name == "smoke":
            return _count_members(tuple(self.all_members)) if self.all_members else ""
        if self.nodes:
            return f"{max(0, self.nodes - len(self.waiting_for))} of {self.nodes} nodes"
        return f"{self.done} of {self.total}" if self.total > 1 and not self.over else ""

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
        """Return the awaited nodes, folded; empty if there are none in particular."""
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
        if before is not None and before is not stage and not before.over:
            # The next stage begins when this one ends.
            before.took_s = at_s - (before.began_s if before.began_s is not None else at_s)
            if before.took_s >= MIN_STAGE_S:
                over.append(before)
        if step.skipped:
            stage.skipped = step.skipped
            self.now = None
            return [*over, stage]
        if stage.over:
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
    roles: dict[str, int] = {}
    for member in members:
        role = member.partition(" ")[0]
        roles[role] = roles.get(role, 0) + 1
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
