"""Planning and judging the link stage for 100 to 10,000 nodes: the pairs, their rounds, and their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from preflight.analysis.link_matrix import disjoint_rounds, schedule
from preflight.model.job import Claim, Job, Known, Launch, Span, Strength
from preflight.model.recording import FactRecord, Facts, Fleet, Node, NodeRecord
from preflight.model.requests import Request, probe_name
from preflight_checks.links.fleet_comparison import judged_directions, plan_measurements
from preflight_checks.links.reachability import port_unreachable
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.links import Dialled, Target, dial

COUNTS = (100, 300, 1000, 3000, 10_000)
#: The aim: the rounds for AIM_NODES nodes are planned within AIM_S seconds.
AIM_NODES, AIM_S = 1000, 1.0
_LAUNCH = Launch("train.sh:1", "torchrun", Span("train.sh", 1, 1, 1, 8, "torchrun"))


def _job() -> Job:
    said = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
    span = Span("train.sh", 1, 1, 1, 8, "torchrun")
    claims = [Claim(k, Known(v), span, f"{k}={v}", "benchmark", _LAUNCH.scope, Strength.FLAG) for k, v in said.items()]
    return Job("train", launches=(_LAUNCH,), claims=tuple(claims))


def _fleet(count: int) -> Fleet:
    return Fleet(tuple(NodeRecord(Node(f"node{i}", i, f"10.0.{i // 250}.{i % 250}")) for i in range(count)))


def _dialled(requests: Sequence[Request]) -> tuple[FactRecord, ...]:
    """The facts of a fleet in which no node reaches node7."""
    found = []
    for request in requests:
        if request.probe == probe_name(dial):
            targets = [
                Target(
                    t["peer"], t["label"], t["host"], t["port"], "filtered" if t["peer"] == "node7" else "ok", t["host"]
                )
                for t in request.params["targets"]
            ]
            found.append(FactRecord(request, asdict(Dialled(targets))))
    return tuple(found)


def _status(peer: str) -> str:
    return "filtered" if peer == "node7" else "ok"


def _measured(requests: Sequence[Request]) -> tuple[FactRecord, ...]:
    """The facts of a fleet in which all links are equally fast."""
    way = Direction(9000.0, 9400.0, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
    value = asdict(Quality("", "", "", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0, way, way))
    wanted = [request for request in requests if request.probe == probe_name(measure)]
    return tuple(FactRecord(request, {**value, "peer": request.peers[0]}) for request in wanted)


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = function()
    return time.process_time() - began, result


def main() -> int:
    """Print the curve; return 1 if the aim is missed."""
    job = _job()
    print("planning and judging the link stage (seconds of CPU time)")
    print("   nodes    pairs    of all  rounds  requests   turns   judge  us/pair")
    missed = False
    for count in COUNTS:
        fleet = _fleet(count)
        rounds_s, plan = _timed(lambda fleet=fleet: schedule([node.name for node in fleet.nodes]))
        requests_s, requests = _timed(lambda fleet=fleet: list(port_unreachable.plan(job, fleet, Facts())))
        records = _dialled(requests)
        measures = list(plan_measurements(job, fleet, Facts()))
        turns_s, _ = _timed(lambda measures=measures: disjoint_rounds(measures))
        facts = Facts((*records, *_measured(measures)))

        def judge(fleet: Fleet = fleet, facts: Facts = facts) -> None:
            assert any("node7" in verdict.nodes for verdict in port_unreachable.judge(job, fleet, facts))
            judged_directions(facts)

        judge_s, _ = _timed(judge)
        share = plan.pairs / plan.all_pairs
        each = (rounds_s + requests_s + turns_s + judge_s) / (plan.pairs + len(measures)) * 1e6
        print(
            f"  {count:>6} {plan.pairs:>8} {share:>9.2%} {rounds_s:>7.3f} {requests_s:>9.3f} {turns_s:>7.3f} "
            f"{judge_s:>7.3f} {each:>8.1f}"
        )
        missed = missed or (count == AIM_NODES and rounds_s + requests_s + turns_s > AIM_S)
    print(
        f"  aim: rounds, requests and turns for {AIM_NODES} nodes within {AIM_S:g} s: {'missed' if missed else 'met'}"
    )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
