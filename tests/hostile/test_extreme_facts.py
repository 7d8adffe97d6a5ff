"""Facts with the right type and extreme values: if a check crashes on them, their node is known.

A check may crash on what a node sent; then that node is unknown, with the id of the check. It must not crash on the
facts of all nodes, or of none.
"""

from __future__ import annotations

import functools
import importlib
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.analysis.culprit import Member, find_culprit
from preflight.config.resolve import jobs_in
from preflight.engine.evaluate import judge_without_crashing_nodes
from preflight.model.configuration import STAGES
from preflight.model.recording import FactRecord, Facts, Fleet, Node, NodeRecord, Unavailable
from preflight.model.requests import EventRecord, Request
from preflight.plugins import registry
from preflight.plugins.authoring import clear_memo
from tests.hostile.extremes import FLOATS, INTEGERS, TEXTS, answer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if (path / "good").is_dir())
#: The number of recordings generated for each job.
TRIES = int(os.environ.get("PREFLIGHT_EXTREME_TRIES", "6"))
WORDS = (*rank_events.ORDER, *rank_events.PS_ORDER, rank_events.LISTENING, "")
EVENTS = (
    rank_events.PHASE,
    rank_events.ENTERING,
    rank_events.LEFT,
    rank_events.BEAT,
    rank_events.DIAL,
    rank_events.PROBLEM,
    rank_events.REPLACED,
    "x",
)


@functools.cache
def _job(example: str) -> Any:
    (job,) = jobs_in([EXAMPLES / example / "good"], root=EXAMPLES)
    return job


@functools.cache
def _probe(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _record(request: Any, chance: random.Random) -> FactRecord:
    began = chance.choice((0.0, 1.0, 1e9))
    if chance.random() < 0.15:
        kind = chance.choice(("missing", "denied", "timeout", "crashed", "unreachable", "blocked"))
        why = Unavailable(kind, chance.choice(TEXTS), chance.choice(TEXTS), chance.choice((None, 0, -9, -6, 1, -999)))
        return FactRecord(request, None, why, began, began + 1)
    return FactRecord(request, answer(_probe(request.probe), chance), None, began, began + chance.random())


def event_data(chance: random.Random) -> dict[str, Any]:
    """Possible data of an event of a rank."""
    numbers = (0, 1, 2, 3, *INTEGERS)
    return {
        "event": chance.choice(EVENTS),
        "phase": chance.choice(WORDS),
        "progress": chance.choice(numbers),
        "collective": chance.choice(numbers),
        "inside": chance.random() < 0.5,
        "idle": chance.random() < 0.2,
        "waiting_for": [chance.choice(numbers) for _ in range(chance.randrange(3))],
        "seconds": chance.choice((*FLOATS, *INTEGERS)),
        "what": chance.choice(TEXTS),
        "to": chance.choice((*numbers, "x", None, [1])),
        "worker": chance.choice((*numbers, "x", None, [1])),
        "spare": chance.choice((*numbers, None)),
        "result": chance.choice(("open", "refused", "unresolved", "stranger", *TEXTS)),
        "problem": chance.choice(("mismatch", "listen", "import", *TEXTS)),
        "error": chance.choice(TEXTS),
        "state": chance.choice(("started", "T", "D", "R", *TEXTS)),
        "pid": chance.choice(numbers),
        "details": {
            name: chance.choice((*numbers, *TEXTS, [], ["a:1", 2], None, {}, 1e308))
            for name in (
                *("rank", "index", "role", "world_size", "servers", "workers", "server_endpoints", "endpoint", "mode"),
                *("endpoint_problem", "parameters", "tensors", "host", "pid", "master", "hostname_resolves_to"),
            )
            if chance.random() < 0.7
        },
        **({"stacks": chance.choice(TEXTS)} if chance.random() < 0.1 else {}),
    }


def _events(records: list[FactRecord], chance: random.Random) -> tuple[EventRecord, ...]:
    found = []
    for record in records:
        for _ in range(chance.randrange(6)):
            origin = chance.choice(("child", "child", "agent"))
            at_s = chance.choice((0.0, 1.0, 2.0, 60.0, 1e6))
            found.append(EventRecord(record.request.key, record.request.node, at_s, origin, event_data(chance)))
    return tuple(sorted(found, key=lambda event: event.at_s))


def _fleet(chance: random.Random) -> Fleet:
    def node(index: int) -> NodeRecord:
        return NodeRecord(
            Node(f"node{index + 1}", index, slots=chance.choice((None, 0, 8))),
            host=chance.choice(TEXTS),
            python=chance.choice(TEXTS),
            user=chance.choice(TEXTS),
            boot_id=chance.choice(TEXTS),
            clock_offset_s=chance.choice((None, *FLOATS)),
            round_trip_s=chance.choice((None, 0.0, 1e-9, 1e308)),
        )

    return Fleet(tuple(node(index) for index in range(3)))


def apart(function: Any, fleet: Fleet, facts: Facts) -> list[Any]:
    """The result of the function without the nodes whose facts make it crash."""
    found: list[Any] = judge_without_crashing_nodes(function, fleet, facts)[0]
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", NAMES)
def test_no_check_crashes_on_extreme_facts(example: str) -> None:
    job = _job(example)
    crashed: dict[str, str] = {}
    for seed in range(TRIES):
        chance = random.Random(f"{example} {seed}")
        fleet = _fleet(chance)
        known: dict[str, FactRecord] = {}
        events: tuple[EventRecord, ...] = ()

        def isolated(id: str, what: Any, *, seed: int = seed) -> list[Any]:
            try:
                return list(what())
            except Exception as error:
                import traceback

                crashed.setdefault(
                    f"{id} {type(error).__name__}: {error!s:.80}", f"seed {seed}\n{traceback.format_exc(limit=-3)}"
                )
                return []

        for stage in STAGES:
            for wave in ("plan", "follow_up", "follow_up"):
                facts = Facts(tuple(known.values()), events)
                for check in registry.checks():
                    plan = check.plan if wave == "plan" else check.follow_up
                    if check.when != stage or plan is None:
                        continue
                    for request in isolated(
                        f"{check.meta.id} {wave}",
                        lambda plan=plan, facts=facts, fleet=fleet: judge_without_crashing_nodes(
                            functools.partial(plan, job), fleet, facts
                        )[0],
                    ):
                        if request.key not in known:
                            known[request.key] = _record(request, chance)
                clear_memo(facts)
            if stage == "smoke":
                events = _events([record for record in known.values() if record.request.group], chance)
        facts = Facts(tuple(known.values()), events)
        for check in registry.checks():
            isolated(
                check.meta.id,
                lambda check=check, facts=facts, fleet=fleet: judge_without_crashing_nodes(
                    functools.partial(check.judge, job), fleet, facts
                )[0],
            )
        clear_memo(facts)
    assert not crashed, "\n".join(f"{head}\n{text}" for head, text in crashed.items())


@pytest.mark.parametrize("seed", range(40))
def test_any_rank_events_give_a_culprit_or_none(seed: int) -> None:
    chance = random.Random(seed)
    roles = [("rank", number) for number in range(4)] if seed % 2 else [("server", 0), ("worker", 0), ("worker", 1)]
    members = [Member(n, f"node{n}", f"key{n}", role, index) for n, (role, index) in enumerate(roles)]
    events = [
        EventRecord(
            m.key, m.node, chance.uniform(0, 50), chance.choice(("child", "child", "agent")), event_data(chance)
        )
        for m in members
        for _ in range(chance.randrange(30))
    ]
    records = []
    for member in members:
        if chance.random() < 0.5:
            kind = chance.choice(("crashed", "blocked", "timeout", "unreachable", "context", "cancelled", ""))
            code = chance.choice((None, -6, -9, -999, 1))
            why = Unavailable(kind, chance.choice(TEXTS), chance.choice(TEXTS), code) if kind else None
            request = Request("x:y", member.node, params={"rank": member.rank})
            records.append(replace(FactRecord(request, None, why, 0.0, chance.uniform(0, 60)), request=request))
    keys = {record.request.node: record.request.key for record in records}
    members = [replace(member, key=keys.get(member.node, member.key)) for member in members]
    for now_s in (0.0, 1.0, 10.0, 60.0, 1e6):
        named = find_culprit(members, events, records, now_s=now_s)
        assert named is None or named.because
