"""One group of a recorded smoke run, whoever its members were: what became of it, and where who is to blame stood."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.culprit import Culprit, culprit, decision_time
from preflight.gang import members_of
from preflight.job import Claim
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Evidence
from preflight.ranks import Member, views
from preflight.recording import EventRecord, FactRecord, Facts

_LAST_LINES = 6
_FRAMES = 8
#: A frame and the head of a thread in a dump of Python's faulthandler (most recent call first).
_FRAME = lazy_pattern(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = lazy_pattern(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
#: The functions that members run, as they stand in a stack.
_ENTRIES = ("rank", "server", "worker")


@dataclass(frozen=True)
class GangRun:
    """What is recorded of one group."""

    records: tuple[FactRecord, ...]
    events: tuple[EventRecord, ...]
    blamed: Culprit | None
    claims: tuple[Claim, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """Everybody who was to be started."""
        return members_of([record.request for record in self.records])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to name: that of who is to blame and those with the same fault; all where nobody is named."""
        by_rank = {member.rank: member.node for member in self.members}
        if self.blamed is None or self.blamed.rank is None:
            return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))
        also = [by_rank[rank] for rank in self.blamed.also if rank in by_rank]
        return tuple(dict.fromkeys((self.blamed.node, *also)))


def gang_run(facts: Facts, group: str) -> GangRun:
    """What is recorded of this group, and who is to blame when it did not end well."""
    records = tuple(facts.records_of(group=group))
    keys = {record.request.key for record in records}
    events = tuple(event for event in facts.events() if event.request_key in keys)
    blamed = None
    if records and any(record.unavailable is not None for record in records):
        blamed = culprit(
            members_of([record.request for record in records]),
            events,
            records,
            now_s=decision_time(events, records),
            began_s=min(record.started_s for record in records),
        )
    claims = tuple(dict.fromkeys(claim for record in records for claim in record.request.because))
    return GangRun(records, events, blamed, claims)


def observed(blamed: Culprit) -> str:
    """What was seen of who is to blame, in a few words."""
    phase = f"after phase {blamed.phase}" if blamed.phase else "before its first phase"
    return f"{blamed.kind} {phase}, during {blamed.doing}" if blamed.doing else f"{blamed.kind} {phase}"


def details(run: GangRun, blamed: Culprit, fact: str) -> Iterator[Evidence]:
    """Where who is to blame stood, else its last words; of a group in which nobody is named, where the first stood."""
    wanted = blamed.rank if blamed.rank is not None else min(member.rank for member in run.members)
    view = views(run.members, run.events, run.records, began_s=0.0)[wanted]
    if view.stacks.strip():
        yield Evidence(fact, "stack: " + stack_of(view.stacks), node=view.node, at_s=blamed.since_s)
        return
    for record in run.records:
        problem = record.unavailable
        if record.request.key == blamed.key and problem is not None and problem.detail.strip():
            lines = [line.strip() for line in problem.detail.splitlines() if line.strip()]
            words = " | ".join(lines[-_LAST_LINES:])
            yield Evidence(fact, "last words: " + words, node=blamed.node, at_s=record.finished_s)


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
