"""Reads what lies beside the logs of a run: Flight Recorder dumps, stacks of processes, and preflight's own events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from preflight._util import regular_file
from preflight._util.redaction import scrub
from preflight._util.sanitize import clean
from preflight.commands.diagnose import flight_recorder, hangs, stacks
from preflight.commands.diagnose.flight_recorder import Dump
from preflight.commands.diagnose.hangs import Hang
from preflight.commands.diagnose.log_files import LogFile
from preflight.commands.diagnose.log_processes import member_of_file
from preflight.commands.diagnose.stacks import Stack

_HEAD_BYTES = 8192
_MAX_EVENTS_BYTES = 64 << 20
_MAX_EVENTS = 200_000
#: Processor time for all of these files.
_MAX_SECONDS = 120.0
#: Number of files of each kind; the largest jobs have one for each rank.
_MAX_FILES = 20_000
#: Number of calls kept of all dumps together; a thousand ranks that wait in a hundred collectives each have fewer.
_MAX_CALLS = 1_000_000
_MAX_TEXT = 400
_LAST_NUMBER = re.compile(r"(?P<rank>\d{1,6})(?:\.[a-z]{1,8})?$")


@dataclass(frozen=True, slots=True)
class Reported:
    """A rule or check that preflight reported as failed before or during the run."""

    id: str
    text: str
    path: str


@dataclass(slots=True)
class SideFiles:
    """What was read. `reported` is by the id of the rule or check."""

    dumps: list[Dump] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    reported: dict[str, Reported] = field(default_factory=dict)
    _calls: int = 0
    _spent_s: float = 0.0

    def read(self, log: LogFile) -> tuple[bool, int, str]:
        """Read a file if it is of one of these kinds; return whether it is, its size, and why it could not be read."""
        if log.path is None or len(self.dumps) + len(self.stacks) > _MAX_FILES:
            return False, 0, ""
        try:
            with regular_file.open_regular(log.path) as stream:
                head = stream.read(_HEAD_BYTES)
                if stacks.looks_like_stacks(head):
                    return self._read_stack(log.name, head + stream.read(stacks.MAX_BYTES))
                if _looks_like_events(head):
                    return self._read_events(log.name, head + stream.read(_MAX_EVENTS_BYTES))
                if not flight_recorder.looks_like_dump(head):
                    return False, 0, ""
                if self._spent_s > _MAX_SECONDS:
                    # A log may begin with a brace, too, and is then scanned as a log.
                    return head.startswith(b"\x80"), 0, "was not read as a dump: those before it took too long"
                data = head + stream.read(flight_recorder.MAX_BYTES)
        except OSError:
            # Reading it as a log reports the reason.
            return False, 0, ""
        began = time.thread_time()
        try:
            return self._read_dump(log, data)
        finally:
            self._spent_s += time.thread_time() - began

    def _read_dump(self, log: LogFile, data: bytes) -> tuple[bool, int, str]:
        is_pickle = data.startswith(b"\x80")
        if len(data) > flight_recorder.MAX_BYTES:
            return (
                is_pickle,
                0,
                f"is larger than {regular_file.size_of(flight_recorder.MAX_BYTES)}, the limit for a dump",
            )
        try:
            dump = flight_recorder.read_dump(data, _rank_of(log.name), log.name)
        except ValueError as error:
            # A log may begin with a brace, but not with the first byte of a pickle.
            return is_pickle, len(data), f"is a dump that cannot be read: {error}" if is_pickle else ""
        if dump is None:
            return is_pickle, len(data), "is a pickle, but no dump of the Flight Recorder" if is_pickle else ""
        if dump.rank < 0:
            return True, len(data), "is a dump without a rank; name it like nccl_trace_rank_3"
        # A rank may have a pickle, with stacks, and the same as JSON, without.
        known = next((at for at, other in enumerate(self.dumps) if other.rank == dump.rank), None)
        self._calls += len(dump.calls)
        if self._calls > _MAX_CALLS:
            return True, len(data), "was not read: the dumps before it have too many collectives"
        if known is None:
            self.dumps.append(dump)
        elif not any(call.place for call in self.dumps[known].calls):
            self.dumps[known] = dump
        return True, len(data), ""

    def _read_stack(self, name: str, data: bytes) -> tuple[bool, int, str]:
        rank = member_of_file(name).rank
        if rank is None:
            return True, len(data), "has the stacks of a process without its rank; name it like py-spy-rank_3.txt"
        stack = stacks.read_stack(data.decode("utf-8", "replace"), rank, name)
        if stack is not None:
            self.stacks.append(stack)
        return True, len(data), ""

    def _read_events(self, name: str, data: bytes) -> tuple[bool, int, str]:
        for line in data.splitlines()[:_MAX_EVENTS]:
            if b'"finding"' not in line:
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            found = _reported(event, name)
            if found is not None:
                self.reported.setdefault(found.id, found)
        return True, len(data), ""

    def hang(self) -> Hang | None:
        """Return the explanation of a hang: from dumps of collectives, otherwise from stacks."""
        return hangs.find_hang(self.dumps) or stacks.find_hang(self.stacks)

    def notes(self) -> tuple[str, ...]:
        """Return which ranks left no dump although the dumps of the others list them."""
        missing = hangs.ranks_without_dump(self.dumps)
        return (f"{hangs.format_ranks(missing)} left no dump",) if missing else ()


def reported_before(reported: Iterable[Reported]) -> tuple[str, ...]:
    """Return what preflight reported, as text."""
    return tuple(f"preflight reported {item.id} beforehand: {item.text} ({item.path})" for item in reported)


def _rank_of(name: str) -> int | None:
    """Return the rank that a dump is named for: `nccl_trace_rank_3`, `_dump_3`, `trace.3.json`."""
    rank = member_of_file(name).rank
    if rank is None and (number := _LAST_NUMBER.search(name)) is not None:
        rank = int(number["rank"])
    return rank


def _looks_like_events(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"run-began"' in first and b'"schema_version"' in first


def _reported(event: Any, path: str) -> Reported | None:
    finding = event.get("finding") if isinstance(event, dict) and event.get("type") == "finding" else None
    if not isinstance(finding, dict) or finding.get("suppressed_by"):
        return None
    name, text = finding.get("id"), finding.get("message")
    if not isinstance(name, str) or not isinstance(text, str):
        return None
    return Reported(clean(name)[:40], scrub(clean(text))[:_MAX_TEXT], path)
