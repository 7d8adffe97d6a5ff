"""Mutated ranks: the messages of one rank in a smoke run are changed between a real agent and the head.

The names start with `rank-`, so `tests.hostile.mutants` accepts them beside those of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile.mutants import CONTROL, HUGE, Agent, Mutant, Raw, deeply, endless, frame, number, text, with_events


def with_data(**changed: Any) -> Mutant:
    """Fields of every event of a rank have other values."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == "event":
            message = {**message, "data": {**message["data"], **changed}}
        return frame(message)

    return mutate


def with_value(change: Callable[[Any], Any]) -> Mutant:
    """Change every leaf of a rank's final answer; other answers of the agent stay unchanged."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == "done" and agent.seen.get("event"):
            message = {**message, "value": deeply(message["value"], change)}
        return frame(message)

    return mutate


def with_extra_events(*more: dict[str, Any], times: int = 1, **envelope: Any) -> Mutant:
    """Send other events of the same rank beside each of its events."""

    def mutate(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] != "event":
            return frame(message)
        said = b"".join(frame({**message, "data": data, **envelope}) for data in more)
        return frame(message) + said * times

    return mutate


def floods(agent: Agent, message: dict[str, Any]) -> bytes | Iterator[bytes]:
    """Its first event is followed by endless heartbeats."""
    if message["type"] != "event":
        return frame(message)
    beat = frame({**message, "data": {"event": "beat", "beat": 1, "progress": 1}})
    return endless(beat * 200)(message)


def falls_silent(agent: Agent, message: dict[str, Any]) -> bytes:
    """It sends nothing after its third event, and never ends."""
    silent = agent.seen.get("event", 0) > 3 and message["type"] in ("event", "done", "failed")
    return b"" if silent else frame(message)


def backwards(agent: Agent, message: dict[str, Any]) -> bytes:
    """The times of its events run backwards."""
    if message["type"] == "event":
        message = {**message, "at_s": max(0.0, 1e6 - message["at_s"])}
    return frame(message)


def twice(agent: Agent, message: dict[str, Any]) -> bytes:
    """It sends everything twice."""
    return frame(message) * (2 if message["type"] == "event" else 1)


MUTANTS: dict[str, Mutant] = {
    "rank-progress-huge": with_data(progress=HUGE),
    "rank-progress-negative": with_data(progress=-1),
    "rank-collective-float": with_data(collective=1e308),
    "rank-beat-nan": with_data(beat=Raw("NaN")),
    "rank-seconds-infinite": with_data(seconds=Raw("1e999")),
    "rank-waits-for-nobody-there": with_data(waiting_for=[-1, 99, 1 << 19]),
    "rank-waits-for-too-many": with_data(waiting_for=list(range(70_000))),
    "rank-of-another": with_data(rank=0),
    "rank-out-of-range": with_data(rank=1 << 40),
    "rank-phase-unknown": with_data(event="phase", phase="x" * 100),
    "rank-phase-long": with_data(event="phase", phase="x" * 100_000),
    "rank-phase-done-at-once": with_data(event="phase", phase="done"),
    "rank-event-list": with_data(event=["phase"]),
    "rank-decides": with_extra_events({"event": "decided", "because": "somebody else"}, origin="head"),
    "rank-replaces-others": with_extra_events({"event": "replaced", "worker": 0, "spare": 1}),
    "rank-numbers-huge": with_events(number(HUGE)),
    "rank-numbers-negative": with_events(number(-1)),
    "rank-texts-control": with_events(text(CONTROL)),
    "rank-nulls": with_events(lambda leaf: None),
    "rank-answers-huge": with_value(number(1 << 62)),
    "rank-answers-nan": with_value(number(Raw("NaN"))),
    "rank-floods": floods,
    "rank-falls-silent": falls_silent,
}
#: Written before any of them ran, and not run until those above passed.
SEALED: dict[str, Mutant] = {
    "rank-sealed-backwards": backwards,
    "rank-sealed-twice": twice,
    "rank-sealed-details-deep": with_data(details={"a": Raw('{"a":' * 200 + "1" + "}" * 200)}),
    "rank-sealed-details-wide": with_data(details={f"k{index}": index for index in range(5_000)}),
    "rank-sealed-lies-about-all": with_extra_events(
        *({"event": "phase", "phase": phase} for phase in ("done", "started", "parity", "listening"))
    ),
    "rank-sealed-texts-long": with_events(text("x" * 5_000)),
    "rank-sealed-enters-out-of-order": with_extra_events(
        {"event": "entering", "what": "sum", "collective": (1 << 53) - 1, "waiting_for": [0]}, times=50
    ),
    "rank-sealed-answers-texts": with_value(text(CONTROL)),
}
assert len(MUTANTS) + len(SEALED) >= 15 and len(SEALED) >= 5
