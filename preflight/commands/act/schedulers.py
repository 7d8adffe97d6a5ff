"""How Slurm and Kubernetes are asked about their nodes, and the commands by which a node is drained and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from preflight.commands.act.decisions import PREFIX, Decision, Standing
from preflight.executors.base import ExecutorError
from preflight.executors.slurm_jobs import parse_node
from preflight.executors.tool import run_tool

#: A scheduler answers within seconds, or is not asked again.
ANSWER_S = 30.0
#: The key of our taint and annotation, and the type of our condition.
KUBERNETES_KEY = "preflight-train/failing"
KUBERNETES_CONDITION = "PreflightFailing"
#: Slurm's words for a node that accepts no new work.
_CLOSED = ("DRAIN", "DOWN", "FAIL", "INVAL", "MAINT", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN")

Command = tuple[str, ...]


class Scheduler(Protocol):
    """What owns the nodes."""

    name: str

    async def standings(self) -> dict[str, Standing]:
        """What it says of each of its nodes. Raises ExecutorError if it does not answer."""
        ...

    async def standing(self, node: str) -> Standing:
        """What it says of one of its nodes now. Raises ExecutorError if it does not answer."""
        ...

    def commands(self, decision: Decision) -> tuple[Command, ...]:
        """The commands that carry out a decision, in order."""
        ...


class Slurm:
    """Nodes of Slurm: `scontrol` drains with a reason, and resumes."""

    name = "slurm"

    async def standings(self) -> dict[str, Standing]:
        """Ask for all nodes."""
        return _of_slurm(await _asked(["scontrol", "show", "node", "--oneliner"]))

    async def standing(self, node: str) -> Standing:
        """Ask for one node."""
        found = _of_slurm(await _asked(["scontrol", "show", "node", node, "--oneliner"]))
        return found.get(node, Standing(False))

    def commands(self, decision: Decision) -> tuple[Command, ...]:
        """One `scontrol update`."""
        base = ("scontrol", "update", f"nodename={decision.node}")
        if decision.action == "drain":
            return ((*base, "state=drain", f"reason={decision.reason}"),)
        return ((*base, "state=resume"),)


class Kubernetes:
    """Nodes of Kubernetes: a taint of our own keeps new pods away, and a condition says why.

    A cordon has no owner, so a cordon by somebody else would look the same; a taint has our key.
    """

    name = "kubernetes"

    async def standings(self) -> dict[str, Standing]:
        """Ask for all nodes."""
        output = await _asked(["kubectl", "get", "nodes", "--output=json"])
        try:
            items = json.loads(output)["items"]
            return {str(item["metadata"]["name"]): _of_kubernetes(item) for item in items}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError("unreadable", f"kubectl get nodes: not a list of nodes ({error!r})") from error

    async def standing(self, node: str) -> Standing:
        """Ask for one node."""
        output = await _asked(["kubectl", "get", "node", node, "--output=json"])
        try:
            return _of_kubernetes(json.loads(output))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError("unreadable", f"kubectl get node {node}: not a node ({error!r})") from error

    def commands(self, decision: Decision) -> tuple[Command, ...]:
        """The reason first: a taint without one could not be resumed."""
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


def _of_slurm(output: str) -> dict[str, Standing]:
    found = {}
    for line in output.splitlines():
        fields = parse_node(line)
        name, flags = fields.get("NodeName", ""), fields.get("State", "").upper()
        if name:
            closed = any(word in flags for word in _CLOSED)
            found[name] = Standing(True, not closed, fields.get("Reason", "") if closed else "")
    return found


def _of_kubernetes(item: Mapping[str, Any]) -> Standing:
    spec, annotations = item.get("spec") or {}, item["metadata"].get("annotations") or {}
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
    if any(taint.get("key") == KUBERNETES_KEY for taint in taints):
        reason = str(annotations.get(KUBERNETES_KEY, ""))
        return Standing(True, False, reason if reason.startswith(PREFIX) else f"{PREFIX} {reason}".strip())
    if spec.get("unschedulable"):
        return Standing(True, False, "cordoned")
    # Other taints do not take a node out of service: pods of training jobs tolerate those of accelerators.
    return Standing(True)


async def _asked(command: Sequence[str]) -> str:
    ran = await run_tool(command, deadline_s=ANSWER_S)
    if ran.code:
        raise ExecutorError("unreachable", f"`{' '.join(command)}`: {ran.last_error or f'exit code {ran.code}'}")
    return ran.output
