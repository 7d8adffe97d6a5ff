"""Replays nodes from a recording, so that a check can be written without the cluster.

Requests of current checks are answered with recorded facts; anything else is reported as not recorded. Ranks of a smoke
run are replayed in real time, because timing decides which rank is to blame.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio

from preflight._util import regular_file
from preflight._util.hostnames import is_hostname
from preflight._util.usage_error import UsageError
from preflight.agent.wire import (
    PROTOCOL,
    AgentRequest,
    Beat,
    Cancel,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Signal,
    encode,
)
from preflight.executors.base import Bundle, Executor, ExecutorError, GatheredNodes, NodeRequest, Option, file_problem
from preflight.model.recording import EventRecord, FactRecord, Node, NodeRecord, Recording
from preflight.model.recording_io import MAX_BYTES, load

#: Parameters that differ from run to run and do not affect the observation.
_RUN_PARAMETERS = frozenset(("listening", "unheard", "run_id", "run_key", "timeout_s", "steps"))
#: The recorded round trip is kept, unless it would delay the replay.
_MAX_TRIP_S = 1.0


@dataclass(slots=True)
class ReplayExecutor(Executor):
    """Replays the nodes of `recording`."""

    recording: Recording | None = None
    path: str = ""
    name: str = "replay"
    _recorded: _RecordedFacts | None = None

    options = (
        Option(
            "recording", "the recording to replay, as written by `preflight check --save`", "run.json", file_problem
        ),
    )

    def configured(self, settings: Mapping[str, str]) -> ReplayExecutor:
        """Return a copy that replays the named recording. Raises UsageError."""
        path = settings.get("recording", "")
        if not path:
            raise UsageError("--on replay needs a recording; name it with --on-option recording=FILE")
        try:
            return ReplayExecutor(load(regular_file.read(path, MAX_BYTES)), path)
        except (OSError, ValueError) as error:
            raise UsageError(f"--on-option recording={path}: {error}") from None

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return the recorded nodes, or the named ones. Raises ExecutorError without any, UsageError if unknown."""
        recording = self._require_recording()
        words = f"the recording {self.path} of {recording.created}"
        origin = recording.origin
        if origin is not None and origin.problem:
            raise ExecutorError(origin.problem_kind, origin.problem, origin.detail)
        nodes = [record.node for record in recording.nodes]
        if not request.named_nodes:
            if not nodes:
                raise ExecutorError("missing", f"{words} contains no nodes: it was written by `{recording.verb}`")
            return GatheredNodes(tuple(nodes), words, origin=origin, cluster=recording.cluster)
        by_name = {node.name: node for node in nodes}
        strangers = [node.name for node in request.named_nodes if node.name not in by_name]
        if strangers:
            raise UsageError(f"{', '.join(strangers)}: not in {words}, which has {', '.join(by_name) or 'no nodes'}")
        named = tuple(replace(by_name[node.name], index=node.index) for node in request.named_nodes)
        return GatheredNodes(named, words, cluster=recording.cluster)

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> ReplayedChannel:
        """Open a recorded node. Raises ExecutorError with the recorded message if it could not be reached."""
        recording = self._require_recording()
        if not is_hostname(node.name):
            raise ExecutorError("denied", f"{node.name}: {node.name!r} is not a valid host name")
        for record in recording.nodes:
            if record.node.name == node.name:
                if record.problem:
                    raise ExecutorError(record.problem_kind or "unreachable", record.problem, "\n".join(record.notes))
                return ReplayedChannel(record, self._index())
        raise ExecutorError("missing", f"{node.name}: not recorded in {self.path}")

    def _require_recording(self) -> Recording:
        if self.recording is None:
            raise UsageError("--on replay needs a recording; name it with --on-option recording=FILE")
        return self.recording

    def _index(self) -> _RecordedFacts:
        if self._recorded is None:
            self._recorded = _RecordedFacts(self._require_recording())
        return self._recorded


class _RecordedFacts:
    """The facts of a recording by node and request, and other indexes."""

    def __init__(self, recording: Recording) -> None:
        self._facts: dict[tuple[str, str], FactRecord] = {}
        self._events: dict[str, list[EventRecord]] = {}
        self._listening = {fact.request.listen for fact in recording.facts if fact.request.listen}
        for fact in recording.facts:
            request = fact.request
            self._facts.setdefault((request.node, _key(request.probe, request.params, request.peers)), fact)
        for event in recording.events:
            self._events.setdefault(event.request_key, []).append(event)

    def fact(self, node: str, request: AgentRequest) -> FactRecord | None:
        parameters = (request.params.get(name) for name in ("listening", "unheard"))
        peers = [str(peer) for each in parameters if isinstance(each, Mapping) for peer in each]
        return self._facts.get((node, _key(request.target, request.params, peers)))

    def listens(self, fact: FactRecord) -> bool:
        return fact.request.probe in self._listening and fact.unavailable is None

    def events(self, fact: FactRecord) -> list[EventRecord]:
        """Return the recorded events of a rank, without the head's own."""
        found = [event for event in self._events.get(fact.request.key, ()) if event.origin != "head"]
        return sorted(found, key=lambda event: event.at_s)


class ReplayedChannel:
    """An agent that answers from a recording, on this side of the wire."""

    def __init__(self, record: NodeRecord, memory: _RecordedFacts) -> None:
        self._record = record
        self._recorded = memory
        self._reader = FrameReader()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self._offset_s = record.clock_offset_s or 0.0
        self._trip_s = min(record.round_trip_s or 0.0, _MAX_TRIP_S)
        self._reply(
            Ready(
                protocol=PROTOCOL,
                host=record.host,
                pid=0,
                python=record.python,
                executable="",
                boot_id=record.boot_id,
                user=record.user,
                notes=list(record.notes),
            )
        )

    @property
    def description(self) -> str:
        return f"the recorded {self._record.node.name}"

    async def send(self, data: bytes) -> None:
        """Accept frames from the head. Raises ExecutorError once the channel is closed."""
        if self._closed:
            raise ExecutorError("unreachable", f"{self.description} was closed")
        for message in self._reader.feed(data):
            self._dispatch(message)

    async def receive(self) -> bytes:
        return await self._outgoing.get()

    def abandon(self) -> None:
        self._end()

    async def aclose(self) -> None:
        self._end()
        await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def error_tail(self) -> str:
        """Return nothing; a recording has no standard error."""
        return ""

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            for task in self._playing.values():
                task.cancel()
            self._outgoing.put_nowait(b"")

    def _reply(self, message: Any) -> None:
        if not self._closed:
            self._outgoing.put_nowait(encode(message))

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, Beat):
            # The recorded clock offset, half of the round trip each way.
            at_s = time.time() + self._trip_s / 2 + self._offset_s
            answer = Beat(at_s, message.sent_s, at_s)
            asyncio.get_running_loop().call_later(self._trip_s, self._reply, answer)
        elif isinstance(message, AgentRequest):
            self._playing[message.id] = asyncio.create_task(self._answer(message))
        elif isinstance(message, Cancel):
            task = self._playing.get(message.id)
            if task is not None and not task.done():
                task.cancel()
                self._reply(Failed(message.id, "cancelled", "it was cancelled"))
        elif isinstance(message, Signal):
            # Recorded stacks arrive at their own time.
            return

    async def _answer(self, request: AgentRequest) -> None:
        node = self._record.node.name
        fact = self._recorded.fact(node, request)
        if fact is None:
            reason = f"not recorded: {request.target} was not requested from {node} with these parameters"
            self._reply(Failed(request.id, "blocked", reason))
            return
        if self._recorded.listens(fact):
            self._reply(Event(request.id, time.time() + self._offset_s, "child", {"listening": fact.value}))
            await anyio.sleep_forever()
        if fact.request.group:
            await self._play(request, fact)
        why = fact.unavailable
        if why is None:
            self._reply(Done(request.id, fact.value))
        else:
            self._reply(Failed(request.id, why.kind, why.reason, why.detail, why.exit_code))

    async def _play(self, request: AgentRequest, fact: FactRecord) -> None:
        """Replay the events of a rank at their recorded times; a rank that was ended waits until it is ended again."""
        started_at = anyio.current_time() - fact.started_s
        for event in self._recorded.events(fact):
            await anyio.sleep_until(started_at + event.at_s)
            self._reply(Event(request.id, time.time() + self._offset_s, event.origin, dict(event.data)))
        if fact.unavailable is not None and fact.unavailable.kind == "cancelled":
            await anyio.sleep_forever()
        await anyio.sleep_until(started_at + fact.finished_s)


def _key(probe: str, params: Mapping[str, Any], peers: Iterable[str]) -> str:
    parameters = {name: value for name, value in params.items() if name not in _RUN_PARAMETERS}
    return "\t".join((probe, ",".join(sorted(peers)), json.dumps(parameters, sort_keys=True, default=list)))


EXECUTOR = ReplayExecutor()
