"""Slurm's data about its partitions and nodes, and its answer to a request, without submitting anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.executors.base import ExecutorError
from preflight.executors.slurm_jobs import REQUEST_S, NodeState, parse_fields
from preflight.executors.tool import run_tool
from preflight.model.job import is_whole_number
from preflight.model.recording import Cluster, ClusterNode, Partition

#: Fields of sinfo(1): node, state, CPUs, MiB, generic resources, features, reason; one line for each node.
_FORMAT = "%N|%T|%c|%m|%G|%f|%E"
#: Words in the state of a node that accepts no new work. A following `~` or `#` means that it sleeps or boots.
_CLOSED_STATES = re.compile(r"drain|down|fail|inval|unknown|future|maint|perfctrs|blocked", re.IGNORECASE)
#: Nodes of partitions that the job does not name are not needed.
_MAX_NODES = 20_000


async def read_cluster(options: Sequence[str]) -> Cluster:
    """Return the partitions, the nodes of those that `options` (of salloc) name, and whether Slurm would accept the
    request.

    Raises:
        ExecutorError: the controller does not answer.
    """
    ran = await run_tool(["scontrol", "show", "partition", "--oneliner"], deadline_s=REQUEST_S)
    if ran.code:
        raise ExecutorError("unreachable", f"Slurm's controller does not answer: {ran.last_error}", ran.errors)
    partitions = tuple(_partition(parse_fields(line)) for line in ran.output.splitlines() if "PartitionName=" in line)
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


def cluster_from_states(states: dict[str, NodeState]) -> Cluster:
    """Return what is known about the nodes of an allocation, without the rest of the cluster."""
    nodes = tuple(
        ClusterNode(name, {}, closed=_closed_reason(*_split_state(state.fields))) for name, state in states.items()
    )
    return Cluster("slurm", nodes)


def _split_state(output: str) -> tuple[str, str]:
    state, _, reason = output.partition(": ")
    return state, reason


def _closed_reason(state: str, reason: str) -> str:
    """Return why a node in this state accepts no new work; empty if it does."""
    if not _CLOSED_STATES.search(state):
        return ""
    return state.lower() + (f": {reason}" if reason not in ("", "none", "None") else "")


async def _nodes(partitions: str) -> tuple[ClusterNode, ...]:
    command = ["sinfo", "--noheader", "--Node", f"--partition={partitions}", f"--format={_FORMAT}"]
    ran = await run_tool(command, deadline_s=REQUEST_S)
    found: dict[str, ClusterNode] = {}
    for line in ran.output.splitlines()[:_MAX_NODES]:
        parts = line.strip().split("|", 6)
        if len(parts) < 7:
            continue
        name, state, cpus, memory, gres, features, reason = parts
        has = {"cpu": _number(cpus), "memory": _number(memory) * 1024 * 1024, "gpu": float(gpus_in(gres))}
        labels = dict.fromkeys(feature for feature in features.split(",") if feature not in ("", "(null)"))
        found[name] = ClusterNode(name, has, labels=dict.fromkeys(labels, ""), closed=_closed_reason(state, reason))
    return tuple(found.values())


def gpus_in(gres: str) -> int:
    """Return the number of GPUs in `gpu:a100:8(S:0-1),nvme:1`."""
    total = 0
    for part in re.split(r",(?![^(]*\))", gres):
        pieces = part.split("(")[0].split(":")
        if pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if is_whole_number(pieces[-1]) else 1
    return total


def _number(text: str) -> float:
    digits = re.match(r"\d+", text)
    return float(digits[0]) if digits else 0.0


def _partition(output: dict[str, str]) -> Partition:
    def listed(name: str) -> tuple[str, ...]:
        return tuple(part for part in output.get(name, "").split(",") if part and part not in ("ALL", "(null)", "NONE"))

    def bound(name: str) -> int | None:
        return int(output[name]) if is_whole_number(output.get(name, "")) else None

    limit = output.get("MaxTime", "")
    return Partition(
        output.get("PartitionName", ""),
        output.get("State", "UP"),
        bound("TotalNodes"),
        bound("MinNodes"),
        bound("MaxNodes"),
        "" if limit in ("UNLIMITED", "INFINITE") else limit,
        output.get("Default") == "YES",
        listed("AllowAccounts"),
        listed("DenyAccounts"),
        listed("AllowQos"),
        listed("DenyQos"),
    )


async def _refusal(options: Sequence[str]) -> str:
    """Return why sbatch would reject a job with these options; empty if it would not. Nothing is submitted."""
    command = ["sbatch", "--test-only", *options, "--output=/dev/null", "--wrap=true"]
    ran = await run_tool(command, deadline_s=REQUEST_S)
    if not ran.code:
        return ""
    output = [line.strip() for line in ran.errors.splitlines() if line.strip()]
    return re.sub(r"^(?:sbatch: error: |allocation failure: |sbatch: )+", "", output[-1])[:300] if output else ""
