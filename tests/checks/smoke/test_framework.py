"""The framework of a smoke run: Paddle's jobs run in Paddle where it is installed, and are told where it is not."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.recording import FactRecord, Facts, Fleet, SmokeOptions
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.completion import rank_did_not_finish
from preflight_checks.smoke.ranks import framework_of, trains_with_paddle
from preflight_checks.smoke.server_results import server_or_worker_did_not_finish
from preflight_checks.smoke.transport import backend_unusable
from reference_trainer.collective.rank import RankReport
from tests.checks.check_builders import LAUNCH, claim, fact, facts, fleet, job, one, plan

TORCH, PADDLE = Framework("2.13.0"), Framework("3.3.1")
SERVERS: dict[str, Any] = {"ps_mode": True, "ps_servers": 1, "ps_workers": 1}


def having(*nodes: tuple[Framework | None, Framework | None]) -> Facts:
    """Nodes with this torch and this paddle."""
    return facts(
        *(
            fact(packages, f"node{index}", Packages("3.11", "python3", {}, torch, paddle), context=True)
            for index, (torch, paddle) in enumerate(nodes)
        )
    )


def of_paddle(**claims: Any) -> Job:
    return job([claim("imported_framework", "paddle")], **claims)


def frameworks(of: Job, nodes: Fleet, known: Facts) -> set[str]:
    check = server_or_worker_did_not_finish if of.about("ps_mode") else rank_did_not_finish
    return {str(request.params.get("framework", "")) for request in plan(check, of, nodes, known)}


def test_a_job_of_paddle_runs_in_paddle_where_it_is() -> None:
    both = having((TORCH, PADDLE), (TORCH, PADDLE))
    for of in (of_paddle(), of_paddle(**SERVERS)):
        assert frameworks(of, fleet(2), both) == {"paddle"}
        assert framework_of(of, fleet(2), both).untested == ""
    assert frameworks(job(), fleet(2), both) == {""}
    # The node without it fails at the import, as in the job.
    assert frameworks(of_paddle(**SERVERS), fleet(2), having((TORCH, PADDLE), (TORCH, None))) == {"paddle"}


def test_what_makes_a_job_one_of_paddle() -> None:
    assert trains_with_paddle(job([claim("fleet_calls", ("init",))]))
    launched = replace(job(), launches=(replace(LAUNCH, launcher="fleetrun"),))
    assert trains_with_paddle(launched) and trains_with_paddle(of_paddle())
    assert not trains_with_paddle(job(**SERVERS)) and not trains_with_paddle(job(imported_framework="torch"))


def test_where_paddle_is_missing_the_run_tells_what_it_did_not_test() -> None:
    known = having((TORCH, None), (TORCH, None))
    assert frameworks(of_paddle(), fleet(2), known) == {""}
    requests = plan(rank_did_not_finish, of_paddle(), fleet(2), known)
    ran = [
        FactRecord(request, asdict(RankReport(rank, 2, request.node, "gloo", "cpu", "torch 2.13.0")))
        for rank, request in enumerate(requests)
    ]
    said = list(backend_unusable.judge(of_paddle(), fleet(2), Facts((*known.records_of(), *ran))))
    told = one(said, Status.UNKNOWN)
    assert told.message == (
        "the job trains with Paddle, which is not installed on node0, node1: the same was run in torch instead"
    )
    assert not told.required


def test_what_only_our_servers_have_runs_in_torch() -> None:
    both = having((TORCH, PADDLE), (TORCH, PADDLE))
    for options, word in ((SmokeOptions(mode="ssp"), "--mode ssp"), (SmokeOptions(backup=True), "--backup")):
        nodes = replace(fleet(2), smoke_options=options)
        assert frameworks(of_paddle(**SERVERS), nodes, both) == {"torch"}
        assert word in framework_of(of_paddle(**SERVERS), nodes, both).untested


def test_unknown_packages_leave_the_choice_to_each_process() -> None:
    assert frameworks(of_paddle(), fleet(2), having((TORCH, None))) == {""}
    assert framework_of(of_paddle(), fleet(2), having((TORCH, None))).untested == ""
