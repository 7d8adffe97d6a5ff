"""What is said of a run with a spare worker: replaced, not needed, not possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.judgement import Verdict
from preflight.node.child import plain
from preflight.outcome import Severity, Status
from preflight.recording import Drill, EventRecord, FactRecord, Facts, Fleet, Unavailable, Wish
from preflight_checks.smoke.drill_named import drill_not_named
from preflight_checks.smoke.server_end import server_or_worker_did_not_finish
from preflight_checks.smoke.server_recovery import worker_replaced
from preflight_checks.smoke.server_results import updates_lost_doubled_or_stale, wrong_server_result
from reference_trainer import phases
from reference_trainer.ps.report import Replacement, ServerReport, WorkerReport, WorkerSeen

from .build import fleet, job, one, plan, statuses

JOB = job(ps_mode=True, ps_update_mode="async", ps_servers=1, ps_workers=2)
NODES = replace(fleet(4), wish=Wish(backup=True))
TAKEN = Replacement(1, "node2", "node3", 3, 7, "worker 1 (node2, process 7) is gone", 0.1)
WORKER, SPARE = 2, 3


def server(*taken: Replacement) -> ServerReport:
    seen = [WorkerSeen(w, f"node{w + 1}", 1, "10.0.0.9", pushes=40, bytes_in=10, bytes_out=10) for w in (0, 1)]
    said = (0, 0, 1, 2, "node0", "node0:6170", "async", "cpu", "2.9.0")
    return ServerReport(*said, dense_bytes=10, seen=seen, expected_pushes=40, replaced=list(taken))


def worker(number: int, index: int, **changes: Any) -> WorkerReport:
    said = (number, index, 1, 2, f"node{number}", "async", "cpu", "2.9.0")
    whole = WorkerReport(*said, exact_steps=20, steps=20, first_loss=2.0, last_loss=0.5, exact_digest="a", digest="b")
    return replace(whole, **changes)


def recorded(lost: Unavailable | WorkerReport, spare: WorkerReport, *taken: Replacement, nodes: Fleet = NODES) -> Facts:
    asked = plan(worker_replaced, JOB, nodes)
    answers = (server(*taken), worker(1, 0), lost, spare)
    records = tuple(
        FactRecord(request, unavailable=answer, finished_s=20.0)
        if isinstance(answer, Unavailable)
        else FactRecord(request, plain(answer), finished_s=20.0)
        for request, answer in zip(asked, answers, strict=True)
    )
    said: list[tuple[int, float, dict[str, Any]]] = [(WORKER, 5.5, {"event": phases.BEAT, "progress": 3})]
    if nodes.wish.drill is not None:
        said.append((WORKER, 5.6, {"event": phases.DRILL, "kind": nodes.wish.drill.kind, "step": 7}))
    for one_ in taken:
        said.append((0, 6.3, {"event": phases.REPLACED, "worker": WORKER, "spare": SPARE, "clock": one_.clock}))
    events = tuple(EventRecord(asked[n].key, asked[n].node, at_s, "child", data) for n, at_s, data in said)
    return Facts(records, events)


KILLED = Unavailable("crashed", "died", "", -9)
IN_PLACE = worker(3, 1, spare=True, replaced=1)
UNNEEDED = worker(3, -1, spare=True, steps=0, exact_digest="", digest="")


def judged(facts: Facts, nodes: Fleet = NODES) -> list[Verdict]:
    return list(worker_replaced.judge(JOB, nodes, facts))


def test_a_killed_worker_that_was_replaced_is_told_in_passing() -> None:
    facts = recorded(KILLED, IN_PLACE, TAKEN)
    found = one(judged(facts), Status.FAIL)
    assert worker_replaced.meta.severity is Severity.INFO and found.nodes == ("node2",)
    assert found.message == (
        "worker 1 on node2 was killed by SIGKILL at step 7 of training; spare 0 on node3 took its place 0.8 s after "
        "its last word, and the run came to its end"
    )
    for check in (server_or_worker_did_not_finish, wrong_server_result, updates_lost_doubled_or_stale):
        assert statuses(list(check.judge(JOB, NODES, facts))) == {"pass"}, check.meta.id


@pytest.mark.parametrize(
    ("ended", "why", "says"),
    [
        (Unavailable("cancelled", "stopped"), "worker 1 has held others up for 5 s", "held the others up at step 7"),
        (Unavailable("crashed", "died", "", 3), "worker 1 is gone", "exited with 3 at step 7"),
        (Unavailable("unreachable", "the channel broke"), "worker 1 is gone", "was lost at step 7"),
    ],
)
def test_how_it_was_lost(ended: Unavailable, why: str, says: str) -> None:
    found = one(judged(recorded(ended, IN_PLACE, replace(TAKEN, why=why))), Status.FAIL)
    assert says in found.message and found.evidence[0].observed == why


def test_a_spare_worker_that_nobody_needed() -> None:
    (found,) = judged(recorded(worker(2, 1), UNNEEDED))
    assert found.status is Status.PASS and "spare worker on node3: not needed" in str(found.subject)


def test_without_the_wish_nothing_is_said() -> None:
    assert statuses(list(worker_replaced.judge(JOB, fleet(4), Facts()))) == {"not-applicable"}


def test_synchronous_servers_replace_nobody() -> None:
    sync = job(ps_mode=True, ps_update_mode="sync", ps_servers=1, ps_workers=2)
    asked = plan(worker_replaced, sync, NODES)
    answers = (server(), worker(1, 0), worker(2, 1))
    facts = Facts(tuple(FactRecord(r, plain(a)) for r, a in zip(asked, answers, strict=True)))
    found = one(list(worker_replaced.judge(sync, NODES, facts)), Status.UNKNOWN)
    assert found.required and "try --mode async or ssp" in found.message


def test_a_lost_worker_that_nobody_replaced_is_told_by_another_check() -> None:
    facts = recorded(KILLED, UNNEEDED)
    assert "blocked by SMK021" in one(judged(facts), Status.UNKNOWN).message
    told = one(list(server_or_worker_did_not_finish.judge(JOB, NODES, facts)), Status.FAIL)
    assert told.subject == "worker 1 on node2"


def test_a_drill_is_as_expected_where_the_spare_worker_came() -> None:
    nodes = replace(NODES, wish=Wish(backup=True, drill=Drill("kill", "worker", 1, 7)))
    facts = recorded(KILLED, IN_PLACE, TAKEN, nodes=nodes)
    (found,) = drill_not_named.judge(JOB, nodes, facts)
    assert found.status is Status.PASS and "spare 0 on node3 took its place 0.7 s later" in str(found.subject)
    assert one(judged(facts, nodes), Status.FAIL).message.startswith("as expected of the drill kill:worker1@7")
