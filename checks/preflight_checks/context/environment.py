"""Whether the ranks of all nodes find the same variables where they must."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Job, Known, Strength
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request
from preflight_checks.context.environment_table import Group, group_of
from preflight_checks.context.surroundings import Alike, Setting, alike, requests, set_by_job, setting, surroundings
from preflight_checks.demands import backends, deciding, fold, gpu_claims, is_loopback, scopes, stand_ins, unseen
from preflight_checks.majority import split
from preflight_checks.probes.environment import environment

_COST = "reads the environment and at most three small files in one process, milliseconds"
_READ_BY_TORCH = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
#: Some participants can do without it.
_MAY_LACK = ("PADDLE_TRAINER_ENDPOINTS",)
#: What the files of a job can say instead of a variable: then nobody reads the variable.
_STATED = {
    "MASTER_ADDR": ("master_addr", "rendezvous_endpoint"),
    "MASTER_PORT": ("master_port", "rendezvous_endpoint"),
    "WORLD_SIZE": ("world_size", "processes_per_node"),
    "NNODES": ("nodes",),
    "NPROC_PER_NODE": ("processes_per_node",),
    "NODE_RANK": ("node_rank",),
    "MACHINE_RANK": ("node_rank",),
    "PADDLE_PSERVERS_IP_PORT_LIST": ("ps_server_endpoints",),
    "PADDLE_TRAINER_ENDPOINTS": ("ps_worker_endpoints",),
    "PADDLE_TRAINERS_NUM": ("ps_workers",),
}


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) > 1 and job.launches:
        yield from requests(job, fleet, context=True)
        yield from requests(job, fleet, context=False)


def matters(name: str, group: Group, job: Job) -> bool:
    """Whether a job of this kind reads a variable of a group: what nobody reads may stand in a profile for ever."""
    if group.of == "nccl":
        names, _ = backends(job)
        return "nccl" in names or bool(gpu_claims(job))
    if group.of == "ps" or name.startswith("PADDLE_") or name == "POD_IP":
        return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)) or any(
            launch.launcher == "paddle" for launch in job.launches
        )
    # The group's own meeting reads these by itself; others are read where a file names them.
    return group.of != "ranks" or name in _READ_BY_TORCH or _named_in(name, job)


def _named_in(name: str, job: Job) -> bool:
    """Whether a file of the job names a variable: as `$NAME`, or by reading it in a script."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(word.search(claim.spelling) or name in claim.alternatives for claim in job.claims)


def stated(name: str, job: Job) -> tuple[Claim, ...]:
    """Claims by which the job's files say, stronger than any variable, what `name` would; empty when none does."""
    return tuple(
        claim
        for quantity in _STATED.get(name, ())
        for scope in scopes(job)
        for claim in deciding(job, quantity, scope)
        if claim.strength >= Strength.FLAG and isinstance(claim.value, Known)
    )


@dataclass(frozen=True, slots=True)
class _Difference:
    """One variable that is not the same everywhere."""

    name: str
    group: Group
    severity: Severity
    odd: Mapping[str, Setting]
    common: Setting
    agreeing: tuple[str, ...]

    @property
    def spoken(self) -> str:
        shown = fold((f"{node}: {value}" for node, value in self.odd.items()), 4)
        others = self.agreeing[0] if len(self.agreeing) == 1 else f"{len(self.agreeing)} others"
        return f"{self.name} is {shown}, but {self.common} on {others}"


@check(
    "ENV020",
    "communication-variables-differ",
    plan=_plan,
    probes=(environment,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#626", "NVIDIA/nccl#1136", "NVIDIA/nccl#1328", "snowflakedb/ArcticTraining#316"),
)
def communication_variables_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Variables that all ranks must agree on have one value on every node.

    What it checks: the variables of NCCL, UCX, libfabric, Gloo, Paddle, Horovod, MPI and the like in a process that is
    started the way ranks are, with what NCCL reads from /etc/nccl.conf, ~/.nccl.conf or $NCCL_CONF_FILE beneath them.
    Where the context of the ranks cannot be entered, what the node gives a process by itself.

    Why it matters: each rank chooses algorithm, protocol and transport for itself from them. Ranks that choose
    differently hang in a collective of a certain size, or cannot connect, and say nothing about the variable.

    Example: one node keeps `NCCL_ALGO=Tree` in /etc/nccl.conf from an old experiment.

    Fix: set the variable in the job, or take it out of the files of the odd node.

    Known limits: variables that a program sets for itself are not seen. Values that look secret are compared by a hash
    and not shown. What the job's own files set is the same everywhere and not looked at here.

    Evidence: NVIDIA/nccl#626, NVIDIA/nccl#1136, NVIDIA/nccl#1328, snowflakedb/ArcticTraining#316.
    """
    if len(fleet.nodes) < 2 or not job.launches:
        yield not_applicable("variables", "the job has one node, or no launch")
        return
    yield from unseen(facts, environment, "variables")
    seen = surroundings(facts)
    if seen is None:
        yield unknown("variables", "fewer than two nodes told their environment")
        return
    ours = set_by_job(job)
    groups = alike(seen.by_node)
    names = sorted({name for group in groups for name in group.settings if name not in ours})
    differences = [found for name in names if (found := _difference(name, groups, job)) is not None]
    together: dict[tuple[Severity, tuple[str, ...]], list[_Difference]] = {}
    for item in differences:
        together.setdefault((item.severity, tuple(item.odd)), []).append(item)
    for (severity, nodes), items in together.items():
        yield _finding(severity, nodes, items, seen.where, len(seen.by_node))
    if not differences:
        yield passed(f"variables {seen.where} on {len(seen.by_node)} nodes")


def _difference(name: str, groups: Sequence[Alike], job: Job) -> _Difference | None:
    group = group_of(name)
    if group is None or group.kind != "agree" or stated(name, job):
        return None
    if len({setting(item.settings, name).key for item in groups}) < 2:
        return None
    values = {
        node: setting(item.settings, name)
        for item in groups
        for node in item.nodes
        if name in item.settings or name not in _MAY_LACK
    }
    divided = split({node: value.key for node, value in values.items()})
    if divided is None or not divided.odd:
        return None
    severity = group.severity if matters(name, group, job) else Severity.INFO
    odd = {node: values[node] for node in divided.odd}
    if name == "MASTER_ADDR" and len(odd) == 1 and is_loopback(next(iter(odd.values())).shown):
        # Operators of Kubernetes tell the master itself that the master is localhost.
        return None
    return _Difference(name, group, severity, odd, values[divided.agreeing[0]], divided.agreeing)


def _finding(severity: Severity, nodes: tuple[str, ...], items: list[_Difference], where: str, asked: int) -> Verdict:
    first = items[0]
    node, value = next(iter(first.odd.items()))
    names = fold(item.name for item in items)
    files = fold(sorted({setting.file for item in items for setting in item.odd.values() if setting.file}), 2)
    # With two nodes nobody can say which of them is right.
    sided = tuple(dict.fromkeys((*nodes, *first.agreeing))) if 2 * len(nodes) >= asked else nodes
    source = files or "its profile, /etc/environment or the configuration of the daemon that starts ranks"
    return failed(
        f"{names} on {fold(nodes)}",
        f"{where}, {'; '.join(item.spoken for item in items[:6])}"
        + (f"; and {len(items) - 6} more variables" if len(items) > 6 else "")
        + f": {first.group.why}",
        at=Evidence("environment", f"{first.name}: {value}", str(first.common), f"printenv {first.name}", node),
        also=[
            Evidence("environment", f"{item.name}: {next(iter(item.odd.values()))}", str(item.common), "", node)
            for item in items[1:6]
        ],
        nodes=sided,
        remedy=f"Set {names} in the job for all ranks, or mend {source} on {fold(nodes)}.",
        severity=severity,
        confidence=Confidence.HIGH if severity is Severity.ERROR else Confidence.MEDIUM,
    )


@check(
    "ENV021",
    "node-identities-collide",
    plan=_plan,
    probes=(environment,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-hostid",
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py",
    ),
)
def node_identities_collide(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """What each node must have for itself is not the same on two of them.

    What it checks: NCCL_HOSTID, NODE_RANK, MACHINE_RANK, PADDLE_CURRENT_ENDPOINT and POD_IP, where a node's own
    environment sets them and the job does not.

    Why it matters: two nodes that take one place in the job collide, and the job waits for the other place for ever.
    With one NCCL_HOSTID, NCCL takes GPUs of two machines for neighbours.

    Example: an image with `NODE_RANK=0` in /etc/environment.

    Fix: take the variable out of the image, or set it on each node.

    Known limits: a variable that the job's files set, or that a flag overrides, is not looked at.

    Evidence: NCCL's documentation of NCCL_HOSTID; torchrun's handling of --node-rank.
    """
    if len(fleet.nodes) < 2 or not job.launches or stand_ins(fleet):
        yield not_applicable("identities", "the job has one node, or no launch, or its nodes are played by one machine")
        return
    yield from unseen(facts, environment, "identities")
    seen = surroundings(facts)
    if seen is None:
        yield unknown("identities", "fewer than two nodes told their environment")
        return
    ours = set_by_job(job)
    groups = alike(seen.by_node)
    wrong = False
    for name in sorted({name for item in groups for name in item.settings if name not in ours}):
        group = group_of(name)
        if group is None or group.kind != "distinct" or stated(name, job) or not matters(name, group, job):
            continue
        holders: dict[Setting, list[str]] = {}
        for item in groups:
            if name in item.settings:
                holders.setdefault(item.settings[name], []).extend(item.nodes)
        for value, nodes in holders.items():
            if len(nodes) > 1:
                wrong = True
                yield _collision(name, value, nodes, group, seen.where)
    if not wrong:
        yield passed(f"identities on {len(seen.by_node)} nodes")


def _collision(name: str, value: Setting, nodes: list[str], group: Group, where: str) -> Verdict:
    return failed(
        f"{name} on {fold(nodes)}",
        f"{where}, {name} is {value} on {fold(nodes)} alike, and each node must have its own: {group.why}",
        at=Evidence("environment", f"{name}={value}", "a value of its own", f"printenv {name}", nodes[0]),
        also=[Evidence("environment", f"{name}={value}", "a value of its own", f"printenv {name}", nodes[1])],
        nodes=nodes,
        remedy=f"Take {name} out of the environment of {fold(nodes)}, or set it on each node to its own value.",
    )
