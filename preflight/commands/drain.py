"""Takes nodes out of service after a run, and returns them: decisions, commands, and the scheduler's responses.

Only evidence about a single node counts: a finding about both ends of a link blames neither, and a node that did not
respond is left to the scheduler, which knows whether the node responds. Unknown results change nothing.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import anyio

from preflight._util.sanitize import clean
from preflight._util.usage_error import UsageError
from preflight.engine.report import ExitCode, Report, hosts_of
from preflight.executors.base import ExecutorError, run_tool
from preflight.executors.slurm import parse_node
from preflight.model.findings import Confidence, Severity, Status

#: Prefix of the reason of every node that preflight takes out of service. Only these nodes are returned to service.
PREFIX = "preflight:"
_MAX_REASON = 200
_ID = re.compile(r"\b[A-Z]{3}[0-9]{3}\b")


@dataclass(frozen=True, slots=True)
class Standing:
    """The scheduler's view of a node: whether it manages the node, whether the node accepts work, and the reason if
    not.
    """

    known: bool
    in_service: bool = True
    reason: str = ""

    @property
    def is_ours(self) -> bool:
        return not self.in_service and self.reason.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class Decision:
    """The action for a node, with the reason for the scheduler (`drain`) or for the log."""

    node: str
    action: Literal["drain", "resume", "leave"]
    reason: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions after a run. `refused` is the reason why nothing is changed; empty if changes are allowed."""

    items: tuple[Decision, ...] = ()
    refused: str = ""

    def of(self, action: str) -> tuple[Decision, ...]:
        return tuple(item for item in self.items if item.action == action)


def share_of(text: str) -> float:
    """Return the share in `10%`. Raises ValueError if `text` is not a percentage from 0 to 100."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{text}: expected a percentage, as in 10%")
    return float(match[1]) / 100


def blamed_nodes(report: Report) -> dict[str, str]:
    """Return the nodes to drain, with reasons: they responded, and a check blames only them with high confidence."""
    answered = {record.node.name for record in report.nodes if not record.problem}
    candidates = answered.intersection(hosts_of(report).failing)
    waived = {(item.id, node) for item in report.suppressed for node in item.nodes}
    least = max(Severity(report.configuration.fail_on).rank, Severity.ERROR.rank)
    reasons_by_node: dict[str, dict[str, str]] = {}
    for outcome in report.outcomes:
        finding = outcome.finding
        if outcome.status is not Status.FAIL or finding is None or len(set(outcome.nodes)) != 1:
            continue
        node = outcome.nodes[0]
        certain = finding.severity.rank >= least and finding.confidence is Confidence.HIGH
        if certain and node in candidates and (outcome.id, node) not in waived:
            reasons_by_node.setdefault(node, {}).setdefault(outcome.id, finding.message)
    return {
        # The message quotes the node, and Slurm lists a reason among `Key=value` fields.
        node: clean(f"{PREFIX} {' '.join(sorted(by_id))} {by_id[min(by_id)]}").replace("=", ":")[:_MAX_REASON].strip()
        for node, by_id in sorted(reasons_by_node.items())
    }


def is_cleared(report: Report, node: str, reason: str) -> bool:
    """Return whether the report shows that the faults in the reason are gone: each check in it passed on the node."""
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
    """Return the decisions after a run; `at_most` is the largest share of known nodes to keep out of service."""
    if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.BUG):
        return Decisions(refused="the run did not finish")
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
            f"{drained} {'node has' if drained == 1 else 'nodes have'} individual faults and {ours} "
            f"{'is' if ours == 1 else 'are'} already out of service, but the limit of {at_most:.4g} of {known} nodes "
            f"is {limit}: look for a common cause, or raise --act-at-most"
        )
        return Decisions(back, refused)
    return Decisions(tuple(items))


def _decision(report: Report, node: str, standing: Standing, reason: str) -> Decision:
    if not standing.known:
        return Decision(node, "leave", "the scheduler does not know this node")
    if reason:
        if standing.in_service:
            return Decision(node, "drain", reason)
        drained_by = "by preflight" if standing.is_ours else "by someone else"
        return Decision(node, "leave", f"already out of service {drained_by}: {standing.reason or 'no reason given'}")
    if standing.is_ours:
        if is_cleared(report, node, standing.reason):
            return Decision(node, "resume", f"the reason no longer applies: {standing.reason}")
        return Decision(node, "leave", f"this run does not show that the reason no longer applies: {standing.reason}")
    return Decision(node, "leave", "no objection" if standing.in_service else "not taken out of service by preflight")


#: Deadline for a scheduler, which normally answers within seconds.
ANSWER_S = 30.0
#: The key of our taint and annotation, and the type of our condition.
KUBERNETES_KEY = "preflight-train/failing"
KUBERNETES_CONDITION = "PreflightFailing"
#: Slurm's words for a node that does not accept new work.
_CLOSED = ("DRAIN", "DOWN", "FAIL", "INVAL", "MAINT", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN")

Command = tuple[str, ...]


class Slurm:
    """Nodes of Slurm, which `scontrol` drains with a reason and resumes."""

    name = "slurm"

    async def standings(self) -> dict[str, Standing]:
        return _slurm_standing(await _query(["scontrol", "show", "node", "--oneliner"]))

    async def standing(self, node: str) -> Standing:
        found = _slurm_standing(await _query(["scontrol", "show", "node", node, "--oneliner"]))
        return found.get(node, Standing(False))

    def commands(self, decision: Decision) -> tuple[Command, ...]:
        """Return the single `scontrol update` command that carries out a decision."""
        base = ("scontrol", "update", f"nodename={decision.node}")
        if decision.action == "drain":
            return ((*base, "state=drain", f"reason={decision.reason}"),)
        return ((*base, "state=resume"),)


class Kubernetes:
    """Nodes of Kubernetes: a taint with our key blocks new pods (a cordon has no owner), and a condition gives the
    reason.
    """

    name = "kubernetes"

    async def standings(self) -> dict[str, Standing]:
        output = await _query(["kubectl", "get", "nodes", "--output=json"])
        try:
            items = json.loads(output)["items"]
            return {str(item["metadata"]["name"]): _kubernetes_standing(item) for item in items}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError("unreadable", f"kubectl get nodes: not a list of nodes ({error!r})") from error

    async def standing(self, node: str) -> Standing:
        output = await _query(["kubectl", "get", "node", node, "--output=json"])
        try:
            return _kubernetes_standing(json.loads(output))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError("unreadable", f"kubectl get node {node}: not a node ({error!r})") from error

    def commands(self, decision: Decision) -> tuple[Command, ...]:
        """Return the commands, with the reason first, because a taint without a reason could not be removed later."""
        node, kubectl = decision.node, ("kubectl",)
        drains = decision.action == "drain"
        condition = {
            "type": KUBERNETES_CONDITION,
            "status": "True" if drains else "False",
            "reason": "PreflightFailed" if drains else "PreflightPassed",
            "message": decision.reason,
        }
        patch = json.dumps({"status": {"conditions": [condition]}}, separators=(",", ":"))
        say = (*kubectl, "patch", "node", node, "--subresource=status", "--type=strategic", f"--patch={patch}")
        if drains:
            return (
                (*kubectl, "annotate", "node", node, "--overwrite", f"{KUBERNETES_KEY}={decision.reason}"),
                (*kubectl, "taint", "node", node, "--overwrite", f"{KUBERNETES_KEY}=true:NoSchedule"),
                say,
            )
        return (
            (*kubectl, "taint", "node", node, f"{KUBERNETES_KEY}:NoSchedule-"),
            (*kubectl, "annotate", "node", node, f"{KUBERNETES_KEY}-"),
            say,
        )


SCHEDULERS: Mapping[str, type[Slurm] | type[Kubernetes]] = {"slurm": Slurm, "kubernetes": Kubernetes}


def _slurm_standing(output: str) -> dict[str, Standing]:
    found = {}
    for line in output.splitlines():
        fields = parse_node(line)
        name, flags = fields.get("NodeName", ""), fields.get("State", "").upper()
        if name:
            closed = any(word in flags for word in _CLOSED)
            found[name] = Standing(True, not closed, fields.get("Reason", "") if closed else "")
    return found


def _kubernetes_standing(item: Mapping[str, Any]) -> Standing:
    spec, annotations = item.get("spec") or {}, item["metadata"].get("annotations") or {}
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
    if any(taint.get("key") == KUBERNETES_KEY for taint in taints):
        reason = str(annotations.get(KUBERNETES_KEY, ""))
        return Standing(True, False, reason if reason.startswith(PREFIX) else f"{PREFIX} {reason}".strip())
    if spec.get("unschedulable"):
        return Standing(True, False, "cordoned")
    # Other taints do not take a node out of service: pods of training jobs tolerate those of accelerators.
    return Standing(True)


async def _query(command: Sequence[str]) -> str:
    ran = await run_tool(command, deadline_s=ANSWER_S)
    if ran.code:
        raise ExecutorError("unreachable", f"`{' '.join(command)}`: {ran.last_error or f'exit code {ran.code}'}")
    return ran.output


LOG = logging.getLogger(__name__)


def act_on(
    report: Report,
    scheduler: str,
    *,
    really: bool,
    at_most: float,
    say: Callable[[str], None],
    log_file: Path | None = None,
) -> Decisions:
    """Drain and resume nodes after a run, or (without `really`) list the commands for that.

    `say` receives lines for the user; `log_file` gets a JSON line for each decision and command. Raises UsageError if
    the scheduler does not respond, a command fails, or too many nodes would be drained; earlier changes are logged.
    """
    return anyio.run(_act, report, SCHEDULERS[scheduler](), really, at_most, say, log_file)


async def _act(
    report: Report,
    scheduler: Slurm | Kubernetes,
    really: bool,
    at_most: float,
    say: Callable[[str], None],
    log_file: Path | None,
) -> Decisions:
    try:
        standings = await scheduler.standings()
    except ExecutorError as error:
        raise UsageError(f"nothing was changed: {error.message}") from None
    decisions = decide(report, standings, at_most=at_most)
    changes = [item for item in decisions.items if item.action != "leave"]
    # Nodes are returned first: the share counts them as returned, even if the run ends early.
    for item in sorted(decisions.items, key=lambda item: item.action == "drain"):
        LOG.info("%s: %s (%s)", item.node, item.action, item.reason)
        if item not in changes or (really and await _has_changed(item, scheduler, standings[item.node], say, log_file)):
            continue
        for command in scheduler.commands(item):
            await _run_decision(item, command, really, say, log_file)
    if decisions.refused:
        raise UsageError(f"no node was drained: {decisions.refused}")
    if not changes:
        say("no node is drained or resumed")
    elif not really:
        say("these commands were not run; --act runs them")
    return decisions


async def _has_changed(
    item: Decision, scheduler: Slurm | Kubernetes, recorded: Standing, say: Callable[[str], None], log_file: Path | None
) -> bool:
    """Return whether someone else has changed the node since the decision; preflight does not change such a node."""
    try:
        now = await scheduler.standing(item.node)
    except ExecutorError as error:
        raise UsageError(f"{item.node} could not be changed: {error.message}") from None
    if now == recorded:
        return False
    state = "in service" if now.in_service else f"out of service: {now.reason or 'no reason given'}"
    why = f"someone else changed the node during the run; it is {state}"
    _write(log_file, item, "", f"left: {why}")
    say(f"{item.node} is not changed: {why}")
    return True


async def _run_decision(
    item: Decision, command: Command, really: bool, say: Callable[[str], None], log_file: Path | None
) -> None:
    shown = shlex.join(command)
    if not really:
        say(shown)
        _write(log_file, item, shown, "not run")
        return
    try:
        ran = await run_tool(command, deadline_s=ANSWER_S)
    except ExecutorError as error:
        _write(log_file, item, shown, error.message)
        raise UsageError(f"{item.node} could not be changed: {error.message}") from None
    result = "done" if not ran.code else ran.last_error or f"exit code {ran.code}"
    _write(log_file, item, shown, result)
    if ran.code:
        raise UsageError(f"{item.node} could not be changed: `{shown}`: {result}")
    say(f"{item.action} {item.node}: {item.reason}")
    LOG.info("ran %s", shown)


def _write(log_file: Path | None, item: Decision, command: str, result: str) -> None:
    if log_file is None:
        return
    line = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "node": item.node,
        "action": item.action,
        "reason": item.reason,
        "command": command,
        "result": result,
    }
    try:
        with log_file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UsageError(f"--act-log {log_file}: {error.strerror}; nothing else was changed") from None
