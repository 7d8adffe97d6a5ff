"""Yesterday's cluster: every node is played from a recording, so that a check can be written without the cluster.

The requests of today's checks are answered with what was observed then; what nobody observed is said to be not
recorded. Ranks of a smoke run are played in the pace of then, because who is to blame is told by the clock.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from preflight.errors import UsageError
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.node.wire import PROTOCOL, Ask, Beat, Cancel, Done, Event, Failed, FrameReader, Ready, Signal, encode
from preflight.recording import EventRecord, FactRecord, Node, NodeRecord, Recording
from preflight.saved import load

#: Parameters that differ from run to run and say nothing about what is observed.
_OF_THE_RUN = frozenset(("listening", "unheard", "run_id", "run_key", "timeout_s", "steps"))
#: A round trip of then is kept, but for one that would hold today's run up.
_LONGEST_TRIP_S = 1.0


def _recording_wrong(value: str) -> str:
    return "" if Path(value).is_file() else f"there is no file {value}"


_OPTIONS = (
    Option("recording", "the recording to play, as `preflight check --save` writes it", "run.json", _recording_wrong),
)


@dataclass(slots=True)
class ReplayExecutor:
    """Plays the nodes of `recording`."""

    recording: Recording | None = None
    path: str = ""
    name: str = "replay"
    _memory: _Memory | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        """What it can be told."""
        return _OPTIONS

    def configured(self, given: Mapping[str, str]) -> ReplayExecutor:
        """Another one, which plays the recording that was named.

        Raises:
            UsageError: none was named, or it is none.
        """
        path = given.get("recording", "")
        if not path:
            raise UsageError("--on replay plays a recording; name it with --on-option recording=FILE")
        try:
            return ReplayExecutor(load(Path(path).read_bytes()), path)
        except (OSError, ValueError) as error:
            raise UsageError(f"--on-option recording={path}: {error}") from None

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The nodes of then, or those of them that were named.

        Raises:
            ExecutorError: there were none then, either.
            UsageError: a node was named that is not in the recording.
        """
        recording = self._loaded()
        words = f"the recording {self.path} of {recording.created}"
        origin = recording.origin
        if origin is not None and origin.problem:
            raise ExecutorError(origin.problem_kind, origin.problem, origin.detail)
        nodes = [record.node for record in recording.nodes]
        if not wanted.named:
            if not nodes:
                raise ExecutorError("missing", f"{words} holds no nodes: it was made by `{recording.verb}`")
            return Gathered(tuple(nodes), words, origin=origin, cluster=recording.cluster)
        by_name = {node.name: node for node in nodes}
        strangers = [node.name for node in wanted.named if node.name not in by_name]
        if strangers:
            raise UsageError(f"{', '.join(strangers)}: not in {words}, which has {', '.join(by_name) or 'no nodes'}")
        named = tuple(replace(by_name[node.name], index=node.index) for node in wanted.named)
        return Gathered(named, words, cluster=recording.cluster)

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> ReplayedChannel:
        """The node as it was. Raises ExecutorError with the words of then where it could not be reached."""
        recording = self._loaded()
        if not is_hostname(node.name):
            raise ExecutorError("denied", f"{node.name}: {node.name!r} is no host name, and in no recording")
        for record in recording.nodes:
            if record.node.name == node.name:
                if record.problem:
                    raise ExecutorError(record.problem_kind or "unreachable", record.problem, "\n".join(record.notes))
                return ReplayedChannel(record, self._remembered())
        raise ExecutorError("missing", f"{node.name}: not recorded in {self.path}")

    async def aclose(self) -> None:
        """Nothing is shared but what was read."""

    def _loaded(self) -> Recording:
        if self.recording is None:
            raise UsageError("--on replay plays a recording; name it with --on-option recording=FILE")
        return self.recording

    def _remembered(self) -> _Memory:
        """What was recorded, sorted once for all nodes."""
        if self._memory is None:
            self._memory = _Memory(self._loaded())
        return self._memory


class _Memory:
    """The facts of a recording by node and request, and what else has to be found quickly."""

    def __init__(self, recording: Recording) -> None:
        self._facts: dict[tuple[str, str], FactRecord] = {}
        self._events: dict[str, list[EventRecord]] = {}
        self._listening = {fact.request.listen for fact in recording.facts if fact.request.listen}
        for fact in recording.facts:
            request = fact.request
            self._facts.setdefault((request.node, _key(request.probe, request.params, request.peers)), fact)
        for event in recording.events:
            self._events.setdefault(event.request_key, []).append(event)

    def fact(self, node: str, ask: Ask) -> FactRecord | None:
        """What was observed then; None when nobody asked."""
        told = (ask.params.get(name) for name in ("listening", "unheard"))
        peers = [str(peer) for each in told if isinstance(each, Mapping) for peer in each]
        return self._facts.get((node, _key(ask.target, ask.params, peers)))

    def listens(self, fact: FactRecord) -> bool:
        """Whether this is what ran on a node while others dialled it, and said so."""
        return fact.request.probe in self._listening and fact.unavailable is None

    def events(self, fact: FactRecord) -> list[EventRecord]:
        """What was said and seen of a rank; not what the head made of it."""
        found = [event for event in self._events.get(fact.request.key, ()) if event.origin != "head"]
        return sorted(found, key=lambda event: event.at_s)


class ReplayedChannel:
    """An agent that answers from a recording, on this side of the wire."""

    def __init__(self, record: NodeRecord, memory: _Memory) -> None:
        self._record = record
        self._memory = memory
        self._reader = FrameReader()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self._offset_s = record.clock_offset_s or 0.0
        self._trip_s = min(record.round_trip_s or 0.0, _LONGEST_TRIP_S)
        self._say(
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
        """Where this node is."""
        return f"the recorded {self._record.node.name}"

    async def send(self, data: bytes) -> None:
        """Take frames of the head's. Raises ExecutorError after the end."""
        if self._closed:
            raise ExecutorError("unreachable", f"{self.description} was closed")
        for message in self._reader.feed(data):
            self._take(message)

    async def receive(self) -> bytes:
        """The next frame; empty at the end."""
        return await self._outgoing.get()

    def abandon(self) -> None:
        """End at once."""
        self._end()

    async def aclose(self) -> None:
        """End what is being played."""
        self._end()
        await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def last_words(self) -> str:
        """A recording says nothing on standard error."""
        return ""

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            for task in self._playing.values():
                task.cancel()
            self._outgoing.put_nowait(b"")

    def _say(self, message: Any) -> None:
        if not self._closed:
            self._outgoing.put_nowait(encode(message))

    def _take(self, message: Any) -> None:
        if isinstance(message, Beat):
            # As by a clock that is as far from ours as it was then, half of the way there and half back.
            at_s = time.time() + self._trip_s / 2 + self._offset_s
            answer = Beat(at_s, message.sent_s, at_s)
            asyncio.get_running_loop().call_later(self._trip_s, self._say, answer)
        elif isinstance(message, Ask):
            self._playing[message.id] = asyncio.create_task(self._answer(message))
        elif isinstance(message, Cancel):
            task = self._playing.get(message.id)
            if task is not None and not task.done():
                task.cancel()
                self._say(Failed(message.id, "cancelled", "it was cancelled"))
        elif isinstance(message, Signal):
            # Stacks that were taken then come in their own time.
            return

    async def _answer(self, ask: Ask) -> None:
        node = self._record.node.name
        fact = self._memory.fact(node, ask)
        if fact is None:
            reason = f"not recorded: nobody asked {node} for {ask.target} with these parameters then"
            self._say(Failed(ask.id, "blocked", reason))
            return
        if self._memory.listens(fact):
            self._say(Event(ask.id, time.time() + self._offset_s, "child", {"listening": fact.value}))
            await anyio.sleep_forever()
        if fact.request.group:
            await self._play(ask, fact)
        why = fact.unavailable
        if why is None:
            self._say(Done(ask.id, fact.value))
        else:
            self._say(Failed(ask.id, why.kind, why.reason, why.detail, why.exit_code))

    async def _play(self, ask: Ask, fact: FactRecord) -> None:
        """What a rank said and did, as long after its start as then; one that was ended waits to be ended again."""
        began = anyio.current_time() - fact.started_s
        for event in self._memory.events(fact):
            await anyio.sleep_until(began + event.at_s)
            self._say(Event(ask.id, time.time() + self._offset_s, event.origin, dict(event.data)))
        if fact.unavailable is not None and fact.unavailable.kind == "cancelled":
            await anyio.sleep_forever()
        await anyio.sleep_until(began + fact.finished_s)


def _key(probe: str, params: Mapping[str, Any], peers: Iterable[str]) -> str:
    told = {name: value for name, value in params.items() if name not in _OF_THE_RUN}
    return "\t".join((probe, ",".join(sorted(peers)), json.dumps(told, sort_keys=True, default=list)))


EXECUTOR = ReplayExecutor()
