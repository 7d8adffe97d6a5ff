"""A run with a backup worker: it replaced a worker, was not needed, or was not possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.findings import Severity, Status
from preflight.model.recording import EventRecord, FactRecord, Facts, Fleet, InjectedFault, SmokeOptions, Unavailable
from preflight.plugins.authoring import Verdict
from preflight_checks.smoke.completion import injected_fault_not_named
from preflight_checks.smoke.server_results import (
    server_or_worker_did_not_finish,
    updates_lost_doubled_or_stale,
    worker_replaced,
    wrong_server_result,
)
from reference_trainer.ps.run_report import Replacement, ServerReport, WorkerReport, WorkerStats
from tests.checks.check_builders import fleet, job, one, plan, statuses

JOB = job(ps_mode=True, ps_update_mode="async", ps_servers=1, ps_workers=2)
NODES = replace(fleet(4), smoke_options=SmokeOptions(backup=True))
TAKEN = Replacement(1, "node3", 3, 7, "worker 1 (node2, process 7) is gone", 0.1)
WORKER, SPARE = 2, 3


def server(*taken: Replacement) -> ServerReport:
    seen = [WorkerStats(w, f"node{w + 1}", 1, "10.0.0.9", pushes=40, bytes_in=10, bytes_out=10) for w in (0, 1)]
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
    said: list[tuple[int, float, dict[str, Any]]] = [(WORKER, 5.5, {"event": rank_events.BEAT, "progress": 3})]
    if nodes.smoke_options.injected_fault is not None:
        said.append(
            (
                WORKER,
                5.6,
                {"event": rank_events.FAULT_INJECTED, "kind": nodes.smoke_options.injected_fault.kind, "step": 7},
            )
        )
    for one_ in taken:
        said.append((0, 6.3, {"event": rank_events.REPLACED, "worker": WORKER, "spare": SPARE, "clock": one_.clock}))
    events = tuple(EventRecord(asked[n].key, asked[n].node, at_s, "child", data) for n, at_s, data in said)
    return Facts(records, events)


KILLED = Unavailable("crashed", "died", "", -9)
IN_PLACE = worker(3, 1, spare=True, replaced=1)
UNNEEDED = worker(3, -1, spare=True, steps=0, exact_digest="", digest="")


def judged(facts: Facts, nodes: Fleet = NODES) -> list[Verdict]:
    return list(worker_replaced.judge(JOB, nodes, facts))


def test_a_replaced_worker_is_information() -> None:
    facts = recorded(KILLED, IN_PLACE, TAKEN)
    found = one(judged(facts), Status.FAIL)
    assert worker_replaced.meta.severity is Severity.INFO and found.nodes == ("node2",)
    assert found.message == (
        "worker 1 on node2 was killed by SIGKILL at step 7 of training; spare 0 on node3 took its place 0.8 s after "
        "its last event, and the run completed"
    )
    for check in (server_or_worker_did_not_finish, wrong_server_result, updates_lost_doubled_or_stale):
        assert statuses(list(check.judge(JOB, NODES, facts))) == {"pass"}, check.meta.id


@pytest.mark.parametrize(
    ("ended", "taken", "says"),
    [
        (Unavailable("cancelled", "stopped"), replace(TAKEN, lagged=True), "delayed the others at step 7"),
        (Unavailable("crashed", "died", "", 3), TAKEN, "exited with 3 at step 7"),
        (Unavailable("unreachable", "the channel broke"), TAKEN, "was lost at step 7"),
        (Unavailable("cancelled", "stopped"), replace(TAKEN, why="it has delayed the others"), "was lost at step 7"),
    ],
)
def test_a_lost_worker_is_described_by_end_and_replacement(ended: Unavailable, taken: Replacement, says: str) -> None:
    found = one(judged(recorded(ended, IN_PLACE, taken)), Status.FAIL)
    assert says in found.message and found.evidence[0].observed == taken.why


def test_an_unneeded_backup_worker() -> None:
    (found,) = judged(recorded(worker(2, 1), UNNEEDED))
    assert found.status is Status.PASS and "backup worker on node3: not needed" in str(found.subject)


def test_not_applicable_without_the_option() -> None:
    assert statuses(list(worker_replaced.judge(JOB, fleet(4), Facts()))) == {"not-applicable"}


def test_synchronous_servers_replace_no_worker() -> None:
    sync = job(ps_mode=True, ps_update_mode="sync", ps_servers=1, ps_workers=2)
    asked = plan(worker_replaced, sync, NODES)
    answers = (server(), worker(1, 0), worker(2, 1))
    facts = Facts(tuple(FactRecord(r, plain(a)) for r, a in zip(asked, answers, strict=True)))
    found = one(list(worker_replaced.judge(sync, NODES, facts)), Status.UNKNOWN)
    assert found.required and "try --mode async or ssp" in found.message


def test_an_unreplaced_worker_is_left_to_smk021() -> None:
    facts = recorded(KILLED, UNNEEDED)
    assert "blocked by SMK021" in one(judged(facts), Status.UNKNOWN).message
    told = one(list(server_or_worker_did_not_finish.judge(JOB, NODES, facts)), Status.FAIL)
    assert told.subject == "worker 1 on node2"


def test_an_injected_fault_is_expected_if_the_backup_took_over() -> None:
    nodes = replace(
        NODES, smoke_options=SmokeOptions(backup=True, injected_fault=InjectedFault("kill", "worker", 1, 7))
    )
    facts = recorded(KILLED, IN_PLACE, TAKEN, nodes=nodes)
    (found,) = injected_fault_not_named.judge(JOB, nodes, facts)
    assert found.status is Status.PASS and "spare 0 on node3 took its place 0.7 s later" in str(found.subject)
    assert one(judged(facts, nodes), Status.FAIL).message.startswith("as expected of the injected fault kill:worker1@7")
