"""Which nodes are taken out of service and which are given back, from a report and what the scheduler says of them.

Only evidence about a node alone counts: a finding about both ends of a link blames neither, and a node that did not
answer is left to the scheduler, which sees for itself whether it answers. What is unknown changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from preflight._util.sanitize import clean
from preflight.engine.node_status import hosts_of
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Confidence, Severity, Status

#: Begins the reason of every node that preflight takes out of service. Others are never given back.
PREFIX = "preflight:"
_MAX_REASON = 200
_ID = re.compile(r"\b[A-Z]{3}[0-9]{3}\b")


@dataclass(frozen=True, slots=True)
class Standing:
    """What the scheduler says of a node.

    Args:
        known: whether it is one of its nodes.
        in_service: whether it accepts new work.
        reason: why it does not; empty if it does, or without a reason.
    """

    known: bool
    in_service: bool = True
    reason: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether preflight took the node out of service."""
        return not self.in_service and self.reason.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a node, with the reason for the scheduler (`drain`) or for the log."""

    node: str
    action: Literal["drain", "resume", "leave"]
    reason: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """What follows from a run. `refused` says why nothing is done at all; empty if something may be."""

    items: tuple[Decision, ...] = ()
    refused: str = ""

    def of(self, action: str) -> tuple[Decision, ...]:
        """The decisions with this action."""
        return tuple(item for item in self.items if item.action == action)


def share_of(text: str) -> float:
    """The share in `10%`. Raises ValueError if it is not a percentage from 0 to 100."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{text}: expected a percentage, as in 10%")
    return float(match[1]) / 100


def blamed_nodes(report: Report) -> dict[str, str]:
    """The nodes to take out of service, with the reason: what each has by itself, with certainty.

    A node counts if it answered, and a check found an error of high confidence on it and no other node, which nothing
    suppresses.
    """
    answered = {record.node.name for record in report.nodes if not record.problem}
    candidates = answered.intersection(hosts_of(report).failing)
    waived = {(item.id, node) for item in report.suppressed for node in item.nodes}
    least = max(Severity(report.configuration.fail_on).rank, Severity.ERROR.rank)
    found: dict[str, dict[str, str]] = {}
    for outcome in report.outcomes:
        finding = outcome.finding
        if outcome.status is not Status.FAIL or finding is None or len(set(outcome.nodes)) != 1:
            continue
        node = outcome.nodes[0]
        certain = finding.severity.rank >= least and finding.confidence is Confidence.HIGH
        if certain and node in candidates and (outcome.id, node) not in waived:
            found.setdefault(node, {}).setdefault(outcome.id, finding.message)
    return {
        # The message quotes the node, and Slurm lists a reason among `Key=value` fields.
        node: clean(f"{PREFIX} {' '.join(sorted(by_id))} {by_id[min(by_id)]}").replace("=", ":")[:_MAX_REASON].strip()
        for node, by_id in sorted(found.items())
    }


def is_cleared(report: Report, node: str, reason: str) -> bool:
    """Whether this run shows that what the reason names is over: each check that it names passed on the node."""
    ids = set(_ID.findall(reason))
    if not ids or node not in hosts_of(report).passing:
        return False
    word = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w-])")
    passed = {
        outcome.id
        for outcome in report.outcomes
        if outcome.status is Status.PASS and (outcome.subject == "nodes" or word.search(outcome.subject))
    }
    return ids <= passed


def decide(report: Report, standings: Mapping[str, Standing], *, at_most: float) -> Decisions:
    """What follows from a run.

    Args:
        standings: what the scheduler says of each node of the run, and of others that preflight took out of service.
        at_most: the largest share of the nodes of the run that may be out of service by preflight at the same time;
            nodes that the scheduler does not know are not counted.
    """
    if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.BUG):
        return Decisions(refused="the run did not come to its end")
    names = [record.node.name for record in report.nodes]
    blamed = blamed_nodes(report)
    items = [_decision(report, node, standings.get(node, Standing(False)), blamed.get(node, "")) for node in names]
    drained = sum(item.action == "drain" for item in items)
    resumed = {item.node for item in items if item.action == "resume"}
    ours = sum(standing.is_ours and node not in resumed for node, standing in standings.items())
    known = sum(standings.get(node, Standing(False)).known for node in set(names))
    limit = int(at_most * known + 1e-9)
    if drained and drained + ours > limit:
        back = tuple(item for item in items if item.action != "drain")
        refused = (
            f"{drained} {'node has' if drained == 1 else 'nodes have'} faults of their own and {ours} "
            f"{'is' if ours == 1 else 'are'} out of service already, but {at_most:.4g} of {known} nodes allows "
            f"{limit}: look for a common cause, or raise --act-at-most"
        )
        return Decisions(back, refused)
    return Decisions(tuple(items))


def _decision(report: Report, node: str, standing: Standing, reason: str) -> Decision:
    if not standing.known:
        return Decision(node, "leave", "the scheduler does not know this node")
    if reason:
        if standing.in_service:
            return Decision(node, "drain", reason)
        whose = "by preflight" if standing.is_ours else "by somebody else"
        return Decision(node, "leave", f"already out of service {whose}: {standing.reason or 'no reason given'}")
    if standing.is_ours:
        if is_cleared(report, node, standing.reason):
            return Decision(node, "resume", f"what it had is over: {standing.reason}")
        return Decision(node, "leave", f"this run does not show that it is over: {standing.reason}")
    return Decision(node, "leave", "nothing against it" if standing.in_service else "not preflight's to change")
