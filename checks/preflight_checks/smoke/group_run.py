"""The recorded run of one process group: its outcome, and where the culprit stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight.analysis.culprit import Culprit, decision_time, find_culprit
from preflight.analysis.rank_state import Member, build_views, members_of
from preflight.model.findings import Evidence
from preflight.model.job import Claim
from preflight.model.recording import EventRecord, FactRecord, Facts

_LAST_LINES = 6
_FRAMES = 8
#: A frame, and the header of a thread, in a dump of Python's faulthandler (most recent call first).
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
#: The functions that members run, as named in a stack.
_ENTRIES = ("rank", "server", "worker")


@dataclass(frozen=True)
class GroupRun:
    """The recorded run of one group."""

    records: tuple[FactRecord, ...]
    events: tuple[EventRecord, ...]
    culprit: Culprit | None
    claims: tuple[Claim, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that were to be started."""
        return members_of([record.request for record in self.records])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to name: that of the culprit and those with the same fault; all nodes without a culprit."""
        by_rank = {member.rank: member.node for member in self.members}
        if self.culprit is None or self.culprit.rank is None:
            return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))
        also = [by_rank[rank] for rank in self.culprit.also if rank in by_rank]
        return tuple(dict.fromkeys((self.culprit.node, *also)))


def group_run_of(facts: Facts, group: str) -> GroupRun:
    """The recorded run of this group, and its culprit if it failed."""
    records = tuple(facts.records_of(group=group))
    keys = {record.request.key for record in records}
    events = tuple(event for event in facts.events() if event.request_key in keys)
    culprit = None
    if records and any(record.unavailable is not None for record in records):
        culprit = find_culprit(
            members_of([record.request for record in records]),
            events,
            records,
            now_s=decision_time(events, records),
            began_s=min(record.started_s for record in records),
        )
    claims = tuple(dict.fromkeys(claim for record in records for claim in record.request.because))
    return GroupRun(records, events, culprit, claims)


def observed(culprit: Culprit) -> str:
    """The observed state of the culprit, in a few words."""
    phase = f"after phase {culprit.phase}" if culprit.phase else "before its first phase"
    return f"{culprit.kind} {phase}, during {culprit.doing}" if culprit.doing else f"{culprit.kind} {phase}"


def details(run: GroupRun, culprit: Culprit, fact: str) -> Iterator[Evidence]:
    """The stack of the culprit, else its last output; without a culprit, the stack of the first member."""
    wanted = culprit.rank if culprit.rank is not None else min(member.rank for member in run.members)
    view = build_views(run.members, run.events, run.records, began_s=0.0)[wanted]
    if view.stacks.strip():
        yield Evidence(fact, "stack: " + stack_of(view.stacks), node=view.node, at_s=culprit.since_s)
        return
    for record in run.records:
        problem = record.unavailable
        if record.request.key == culprit.key and problem is not None and problem.detail.strip():
            lines = [line.strip() for line in problem.detail.splitlines() if line.strip()]
            words = " | ".join(lines[-_LAST_LINES:])
            yield Evidence(fact, "last output: " + words, node=culprit.node, at_s=record.finished_s)


def stack_of(text: str) -> str:
    """The innermost frames of the member's own thread, innermost first, from faulthandler's dump of all threads."""
    threads = [_FRAME.findall(block) for block in _THREAD.split(text)]
    own = [frames for frames in threads if any("reference_trainer" in path for path, _, _ in frames)]
    main = [frames for frames in own if any(name in _ENTRIES for _, _, name in frames)]
    frames = next(iter(main or own or [frames for frames in threads if frames]), [])
    if not frames:
        return " | ".join(line.strip() for line in text.splitlines()[:_LAST_LINES] if line.strip())
    shown = [f"{name} ({path.rsplit('/', 1)[-1]}:{line})" for path, line, name in frames[:_FRAMES]]
    return " < ".join(shown)
