"""What Slurm says of its partitions, their nodes, and a request, without anything being submitted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.executors.base import ExecutorError
from preflight.executors.slurm_jobs import ASK_S, NodeState, fields_of
from preflight.executors.tool import run_tool
from preflight.lazy.patterns import lazy_pattern
from preflight.recording import Cluster, ClusterNode, Partition

#: Of sinfo(1): node, state, CPUs, MiB, generic resources, features, reason; one line for each node.
_FORMAT = "%N|%T|%c|%m|%G|%f|%E"
#: Words in the state of a node on which nothing new is placed. `~` and `#` behind it mean that it sleeps or boots.
_CLOSED = lazy_pattern(r"drain|down|fail|inval|unknown|future|maint|perfctrs|blocked", re.IGNORECASE)
#: Nodes of more partitions than the job names are of no use to it.
_MOST_NODES = 20_000


async def ask_cluster(options: Sequence[str]) -> Cluster:
    """The partitions, the nodes of those that `options` (of salloc) name, and whether Slurm would take the request.

    Raises:
        ExecutorError: the controller does not answer.
    """
    ran = await run_tool(["scontrol", "show", "partition", "--oneliner"], deadline_s=ASK_S)
    if ran.code:
        raise ExecutorError("unreachable", f"Slurm's controller does not answer: {ran.last_error}", ran.errors)
    partitions = tuple(_partition(fields_of(line)) for line in ran.output.splitlines() if "PartitionName=" in line)
    unknown: list[str] = []
    named = next((option.partition("=")[2] for option in options if option.startswith("--partition=")), "")
    wanted = set(named.split(",")) if named else {item.name for item in partitions if item.is_default}
    nodes: tuple[ClusterNode, ...] = ()
    if wanted & {item.name for item in partitions}:
        try:
            nodes = await _nodes(",".join(sorted(wanted & {item.name for item in partitions})))
        except ExecutorError as error:
            unknown.append(error.message)
    refusal = ""
    try:
        refusal = await _refusal(options)
    except ExecutorError as error:
        unknown.append(error.message)
    return Cluster("slurm", nodes, tuple(unknown), partitions, refusal)


def of_states(states: dict[str, NodeState]) -> Cluster:
    """What is known of the nodes of an allocation alone."""
    nodes = tuple(ClusterNode(name, {}, closed=_closed(*_split(state.said))) for name, state in states.items())
    return Cluster("slurm", nodes)


def _split(said: str) -> tuple[str, str]:
    state, _, reason = said.partition(": ")
    return state, reason


def _closed(state: str, reason: str) -> str:
    """Why nothing new is placed on a node in this state; empty when something may be."""
    if not _CLOSED.search(state):
        return ""
    return state.lower() + (f": {reason}" if reason not in ("", "none", "None") else "")


async def _nodes(partitions: str) -> tuple[ClusterNode, ...]:
    command = ["sinfo", "--noheader", "--Node", f"--partition={partitions}", f"--format={_FORMAT}"]
    ran = await run_tool(command, deadline_s=ASK_S)
    found: dict[str, ClusterNode] = {}
    for line in ran.output.splitlines()[:_MOST_NODES]:
        parts = line.strip().split("|", 6)
        if len(parts) < 7:
            continue
        name, state, cpus, memory, gres, features, reason = parts
        has = {"cpu": _number(cpus), "memory": _number(memory) * 1024 * 1024, "gpu": float(gpus_in(gres))}
        labels = dict.fromkeys(feature for feature in features.split(",") if feature not in ("", "(null)"))
        found[name] = ClusterNode(name, has, labels=dict.fromkeys(labels, ""), closed=_closed(state, reason))
    return tuple(found.values())


def gpus_in(gres: str) -> int:
    """How many GPUs `gpu:a100:8(S:0-1),nvme:1` holds."""
    total = 0
    for part in re.split(r",(?![^(]*\))", gres):
        pieces = part.split("(")[0].split(":")
        if pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if pieces[-1].isdigit() else 1
    return total


def _number(text: str) -> float:
    digits = re.match(r"\d+", text)
    return float(digits[0]) if digits else 0.0


def _partition(said: dict[str, str]) -> Partition:
    def listed(name: str) -> tuple[str, ...]:
        return tuple(part for part in said.get(name, "").split(",") if part and part not in ("ALL", "(null)", "NONE"))

    def bound(name: str) -> int | None:
        return int(said[name]) if said.get(name, "").isdigit() else None

    limit = said.get("MaxTime", "")
    return Partition(
        said.get("PartitionName", ""),
        said.get("State", "UP"),
        bound("TotalNodes"),
        bound("MinNodes"),
        bound("MaxNodes"),
        "" if limit in ("UNLIMITED", "INFINITE") else limit,
        said.get("Default") == "YES",
        listed("AllowAccounts"),
        listed("DenyAccounts"),
        listed("AllowQos"),
        listed("DenyQos"),
    )


async def _refusal(options: Sequence[str]) -> str:
    """Why sbatch would not take a job with these options; empty when it would. Nothing is submitted."""
    command = ["sbatch", "--test-only", *options, "--output=/dev/null", "--wrap=true"]
    ran = await run_tool(command, deadline_s=ASK_S)
    if not ran.code:
        return ""
    said = [line.strip() for line in ran.errors.splitlines() if line.strip()]
    return re.sub(r"^(?:sbatch: error: |allocation failure: |sbatch: )+", "", said[-1])[:300] if said else ""
