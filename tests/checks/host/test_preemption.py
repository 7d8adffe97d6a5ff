"""Nodes that will be removed or restarted."""

from __future__ import annotations

from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.host.leftovers import node_will_go_away
from preflight_checks.probes.maintenance import (
    CloudEvents,
    Reservation,
    ShutdownSigns,
    SlurmNode,
    SlurmPlans,
    cloud_events,
    signs,
    slurm_plans,
)
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses


def signs_at(node: str, **changes: Any) -> FactRecord:
    return fact(signs, node, ShutdownSigns(**changes))


def slurm(*nodes: SlurmNode, reservations: tuple[Reservation, ...] = ()) -> FactRecord:
    return fact(slurm_plans, "node0", SlurmPlans(list(nodes), list(reservations)), params={"nodes": ["node0", "node1"]})


def test_one_node_queries_slurm_and_clouds_need_consent() -> None:
    wanted = plan(node_will_go_away, job(), fleet(3))
    assert [r.params["nodes"] for r in wanted if "slurm" in r.probe] == [["node0", "node1", "node2"]]
    assert {r.consent for r in wanted if "cloud" in r.probe} == {"metadata"}


def test_only_a_shutdown_before_the_end_of_the_job_is_a_warning() -> None:
    seen = facts(signs_at("node0"), signs_at("node1", shutdown="reboot", shutdown_in_s=1800.0))
    found = one(judge(node_will_go_away, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "will restart in 30 min" in found.message
    assert statuses(judge(node_will_go_away, job(time_limit_s=600), fleet(2), seen)) == {"pass"}


def test_refused_logins_and_waiting_restarts() -> None:
    closed = facts(signs_at("node0", no_logins="going down"), signs_at("node1", no_logins=""))
    found = one(judge(node_will_go_away, job(), fleet(2), closed), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "going down" in found.message
    waiting = facts(signs_at("node0", restart_wanted=True))
    assert one(judge(node_will_go_away, job(), fleet(1), waiting), Status.FAIL).severity is Severity.INFO


def test_plans_of_slurm_for_the_jobs_nodes() -> None:
    drained = facts(signs_at("node0"), slurm(SlurmNode("node1", "IDLE+DRAIN", "bad dimm")))
    found = one(judge(node_will_go_away, job(), fleet(2), drained), Status.FAIL)
    assert found.nodes == ("node1",) and "bad dimm" in found.message
    soon = Reservation("pm", "node[1-3]", 3600.0)
    elsewhere = Reservation("pm2", "other[1-3]", 3600.0)
    late = Reservation("pm3", "node1", 200000.0)
    seen = facts(signs_at("node0"), slurm(reservations=(soon, elsewhere, late)))
    found = one(judge(node_will_go_away, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "pm of node1 begins in 60 min" in found.message


def test_a_node_without_slurm_or_cloud_passes() -> None:
    absent = Unavailable("missing", "there is no scontrol on the node")
    denied = Unavailable("denied", "not without --allow metadata")
    seen = facts(
        signs_at("node0"),
        fact(slurm_plans, "node0", absent, params={"nodes": ["node0"]}),
        fact(cloud_events, "node0", denied),
    )
    assert statuses(judge(node_will_go_away, job(), fleet(1), seen)) == {"pass"}


def test_cloud_events_and_missing_answers() -> None:
    seen = facts(signs_at("node0"), fact(cloud_events, "node0", CloudEvents(["system-reboot: soon"])))
    assert "system-reboot" in one(judge(node_will_go_away, job(), fleet(1), seen), Status.FAIL).message
    assert statuses(judge(node_will_go_away, job(), fleet(1), facts(fact(signs, "node0", TIMEOUT)))) == {"unknown"}
