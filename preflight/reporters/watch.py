"""How a run stands, put together from its steps: the stages with their times, who is waited for, where the ranks are.

Nothing here writes. The live view and the log of a pipe ask the same questions of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from preflight.lazy.dataclasses import dataclass
from preflight.progress import Step
from preflight.reporters.clean import clean, fold_nodes
from reference_trainer import phases

TITLES = {
    "gather": "finding the nodes",
    "open": "reaching the nodes",
    "node": "looking at the nodes",
    "link": "looking between the nodes",
    "smoke": "training a few steps",
    "files": "reading files",
    "jobs": "putting jobs together",
    "recording": "reading the recording",
    "logs": "reading logs",
    "judge": "judging",
}
#: What was over sooner and does not say itself that it is over was no stage worth a line.
SEEN_S = 0.1
#: Of those who are waited for so many are named.
_MOST_WAITED_FOR = 16


@dataclass
class Stage:
    """One stage as it stands. Times are the watcher's clock; `ends_s` is when it will be cut off."""

    name: str
    began_s: float | None = None
    took_s: float | None = None
    ends_s: float | None = None
    done: int = 0
    total: int = 0
    nodes: int = 0
    waiting_for: tuple[str, ...] = ()
    skipped: str = ""
    #: Of each member of the smoke run: the node it is on, and the phase it has behind it.
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: All members there ever were, in the order in which they came; groups may follow each other.
    everybody: dict[str, None] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What is done in it, for people."""
        return TITLES.get(self.name, self.name)

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.took_s is not None or bool(self.skipped)

    def why_over(self) -> str:
        """Why it did not take place, or not to its end; empty of a stage that ended as it should."""
        return f"{'skipped' if self.began_s is None else 'ended'}, {self.skipped}" if self.skipped else ""

    def how_far(self) -> str:
        """`3 of 4 nodes`, `12 of 40`, `8 ranks`; empty where that says nothing."""
        if self.name == "smoke":
            return _counted(tuple(self.everybody)) if self.everybody else ""
        if self.nodes:
            return f"{max(0, self.nodes - len(self.waiting_for))} of {self.nodes} nodes"
        return f"{self.done} of {self.total}" if self.total > 1 and not self.over else ""

    def time(self, now_s: float) -> str:
        """`1.2 s` of what is over, `3 s of at most 10` of what goes on."""
        if self.took_s is not None:
            return f"{self.took_s:.1f} s"
        if self.began_s is None:
            return ""
        elapsed = now_s - self.began_s
        most = f" of at most {self.ends_s - self.began_s:.0f}" if self.ends_s is not None else ""
        return f"{elapsed:.0f} s{most}"

    def awaited(self) -> str:
        """Who is waited for, folded; empty when nobody in particular is."""
        named = self.waiting_for[:_MOST_WAITED_FOR]
        more = len(self.waiting_for) - len(named)
        return fold_nodes(named) + (f" and {more} more" if more else "") if named else ""

    def by_phase(self) -> list[str]:
        """`ranks 0-5 on node[1-3]: importing torch`: who is where, those who are furthest behind first."""
        together: dict[str, list[str]] = {}
        where: dict[str, int] = {}
        for member, (_, phase) in self.members.items():
            role = member.partition(" ")[0]
            doing = "starting" if not phase else phases.doing(phase, role) or phase
            together.setdefault(doing, []).append(member)
            where.setdefault(doing, phases.position(phase))
        lines = []
        for doing, members in sorted(together.items(), key=lambda item: where[item[0]]):
            nodes = tuple(dict.fromkeys(self.members[member][0] for member in members))
            lines.append(f"{_named(members)} on {fold_nodes(nodes)}: {clean(doing)}")
        return lines


class Watch:
    """Takes steps, and knows how the run stands."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.now: Stage | None = None

    def take(self, step: Step, at_s: float) -> list[Stage]:
        """Take notice of `step`; returns the stages that are over by it and were not before."""
        for name in step.planned:
            self.stages.setdefault(name, Stage(name))
        over: list[Stage] = []
        stage = self.stages.setdefault(step.stage, Stage(step.stage))
        before = self.now
        if before is not None and before is not stage and not before.over:
            # The next one begins where this one ends.
            before.took_s = at_s - (before.began_s if before.began_s is not None else at_s)
            if before.took_s >= SEEN_S:
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
            stage.everybody[step.party] = None
        elif step.party:
            stage.members.pop(step.party, None)
        else:
            stage.done, stage.total = step.done, step.total
            stage.nodes = step.nodes or stage.nodes
            stage.waiting_for = step.waiting_for
        if step.deadline_s is not None:
            stage.ends_s = at_s + step.deadline_s
        return over


def _counted(members: Sequence[str]) -> str:
    """`8 ranks`; `2 servers and 4 workers`."""
    roles: dict[str, int] = {}
    for member in members:
        role = member.partition(" ")[0]
        roles[role] = roles.get(role, 0) + 1
    return " and ".join(f"{number} {role}{'' if number == 1 else 's'}" for role, number in roles.items())


def _named(members: Sequence[str]) -> str:
    """`ranks 0-5`; `server 0, workers 0-2`."""
    by_role: dict[str, list[str]] = {}
    for member in members:
        role, _, index = member.partition(" ")
        by_role.setdefault(role, []).append(index)
    return ", ".join(
        f"{role}{'' if len(indices) == 1 else 's'} {_ranges(indices)}".rstrip() for role, indices in by_role.items()
    )


def _ranges(indices: Sequence[str]) -> str:
    """`0-2,5` for 0, 1, 2 and 5; what is no number stands for itself."""
    numbers = sorted(int(index) for index in indices if index.isdigit())
    others = [clean(index) for index in indices if not index.isdigit()]
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join([*(str(a) if a == b else f"{a}-{b}" for a, b in found), *others])
