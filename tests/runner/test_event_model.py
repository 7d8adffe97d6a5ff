"""Events of ranks, validated before the head reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.runner.supervisor import problem_with

HUGE = int("9" * 400)


@pytest.mark.parametrize(
    "data",
    [
        {},
        *({"event": "phase", "phase": phase, "progress": 1} for phase in (*rank_events.ORDER, *rank_events.PS_ORDER)),
        {"event": "phase", "phase": "listening", "details": {"port": 29500}},
        {"event": "beat", "beat": 3, "progress": 9, "waiting_for": [0, 1], "inside": True, "since_s": 0.25},
        {"event": "beat", "since_s": 0},
        {"event": "dial", "rank": 3, "to": 0, "result": "open", "seconds": 0.02, "server": 0, "address": "127.0.0.1"},
        {"event": "problem", "problem": "mismatch", "worker": "worker 1", "rank": -1},
        {"state": "started", "pid": 11613, "python": "3.11.7", "executable": "/usr/bin/python3"},
        {"stacks": "Thread 1\n" * 1000},
        {"event": "entering", "what": "sum", "something_new": {"a": [1, 2]}},
    ],
)
def test_events_of_ranks_and_agents_are_valid(data: dict[str, Any]) -> None:
    assert problem_with(data) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("progress", "collective", "beat") for value in (-1, HUGE, 1.5, True, "1", None)),
        *((field, value) for field in ("seconds", "since_s") for value in (-0.1, 1e9, float("nan"), float("inf"), "1")),
        *(("rank", value) for value in (-2, 1 << 40, HUGE, "0", [0], None)),
        *(("waiting_for", value) for value in ("0", [-2], [HUGE], ["0"], [[0]], [0] * 70_000, {"0": 1})),
        *((field, value) for field in ("event", "what", "endpoint") for value in (1, None, ["x"], "x" * 5_000)),
        *(("phase", value) for value in (1, None, "x", "Started", "x" * 5_000, "\x1b[2J")),
        *((field, value) for field in ("inside", "idle", "loading", "consequence") for value in (1, "true", None)),
        *(("details", value) for value in ([], "x", None, {str(number): 1 for number in range(1_001)})),
        *(("pid", value) for value in (-1, 1 << 40, "1")),
        *(("worker", value) for value in (-2, 1.5, ["x"], "x" * 5_000)),
        *(("error", value) for value in (1, "x" * (1 << 19))),
    ],
)
def test_a_value_out_of_range_is_rejected_with_its_field(field: str, value: Any) -> None:
    problem = problem_with({"event": "beat", field: value})
    assert problem.startswith(field)
    # The message is shown and stored, so it contains nothing that the rank sent.
    assert len(problem) < 400 and "xxxx" not in problem and "9999" not in problem and "\x1b" not in problem


def test_only_the_head_decides_and_only_a_server_replaces() -> None:
    assert "only the head" in problem_with({"event": "decided", "because": "rank 0"}, role="server")
    assert problem_with({"event": "replaced", "worker": 0, "spare": 2}, role="server") == ""
    for role in ("", "worker"):
        assert "only a server" in problem_with({"event": "replaced", "worker": 0, "spare": 2}, role=role)


def test_every_phase_of_a_rank_is_known() -> None:
    """The constants are what the reference trainer sends; a new one must be added to an order."""
    said = {value for name, value in vars(rank_events).items() if name.isupper() and isinstance(value, str)}
    phases = {value for value in said if value in rank_events.ACTIVITIES or value in rank_events.PS_ORDER}
    assert phases >= {"started", "group", "done"}
    assert [phase for phase in sorted(phases) if problem_with({"phase": phase})] == []


def test_the_model_accepts_json_from_the_wire() -> None:
    data = json.loads('{"event": "left", "what": "sum", "phase": "exact", "progress": 3, "seconds": 1e-3}')
    assert problem_with(data) == ""
