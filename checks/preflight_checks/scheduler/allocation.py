"""Checks that Slurm can give the job its nodes: enough that fit, in service, in a partition that allows the request.

Partitions come from the controller's list, so they are checked even if no node is free.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, is_whole_number
from preflight.model.recording import Cluster, Facts, Fleet, Partition
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight.sources.launchers.slurm import parse_seconds
from preflight_checks.plans import no_requests
from preflight_checks.requirements import fold

COST = "nothing on nodes; one query to the controller"
NOT_SLURM = "Slurm did not report its partitions"


@dataclass(frozen=True, slots=True)
class RequestedOption:
    """One option of the header: the value as written, and its location."""

    value: str
    claim: Claim


def requested_options(job: Job) -> dict[str, RequestedOption]:
    """The request of the header, by the long name of the option; unresolved values are left out."""
    found: dict[str, RequestedOption] = {}
    for claim in job.about("batch_option"):
        if isinstance(claim.value, Known):
            name, _, value = str(claim.value.value).partition("=")
            found[name] = RequestedOption(value, claim)
    return found


def slurm_of(fleet: Fleet) -> Cluster | None:
    return fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "slurm" else None


def partitions_of(cluster: Cluster, requested: dict[str, RequestedOption]) -> tuple[Partition, ...]:
    """The partitions that the job may run in; Slurm starts it in the first available one."""
    if "--partition" in requested:
        names = requested["--partition"].value.split(",")
        return tuple(item for item in cluster.partitions if item.name in names)
    return tuple(item for item in cluster.partitions if item.is_default)


def min_nodes(requested: dict[str, RequestedOption]) -> int | None:
    text = requested["--nodes"].value.partition("-")[0] if "--nodes" in requested else ""
    return int(text) if is_whole_number(text) else None


MIB = 2**20


#: A check that judges what the scheduler granted.
allocation_check = functools.partial(check, plan=no_requests, probes=(), cost=COST)


@allocation_check("ALC004", "node-out-of-service", severity=Severity.ERROR)
def node_out_of_service(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node of the job is drained or down in Slurm.

    What it checks: Slurm's state of each node of the allocation, and of each node that the job names.

    Why it matters: Slurm allocates no drained node: a job that names one waits forever, and a job that runs on one
    cannot be requeued there. The finding quotes the administrator's reason.

    Example: node7 is drained with the reason "GPU 3 fell off the bus".

    Fix: exclude the node, or return it to service (`scontrol update nodename=N state=resume`) once it is fixed.

    Known limits: in a running allocation a drained node is a warning; NOD001 reports one that is down.
    """
    cluster = slurm_of(fleet)
    if cluster is None or not cluster.nodes:
        yield not_applicable(job.name, NOT_SLURM)
        return
    closed = {node.name: node.closed for node in cluster.nodes if node.closed}
    running = bool(fleet.records)
    wanted = {node.name for node in fleet.nodes} if running else set(_named(fleet))
    broken = {name: closed[name] for name in sorted(wanted) if name in closed}
    if not broken:
        yield passed(job.name)
        return
    for name, reason in broken.items():
        yield failed(
            name,
            f"Slurm has {name} as {reason}" + ("" if running else ", and does not allocate it"),
            at=Evidence("state of the node", reason, "in service", f"scontrol show node {name}", name),
            remedy=f"Leave {name} out (--exclude={name}), or return it to service once it is fixed.",
            severity=Severity.WARNING if running else None,
        )


def _named(fleet: Fleet) -> Iterator[str]:
    """The nodes that the job names, if the fleet is empty because Slurm gave no nodes."""
    if fleet.origin is not None:
        yield from fleet.origin.named


@allocation_check("ALC005", "too-few-fitting-nodes", severity=Severity.ERROR)
def too_few_fitting_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition has as many suitable nodes as the job needs at once.

    What it checks: how many nodes of the partition have the GPUs, cores, memory and features that the header requests
    on each, and how many of those are in service.

    Why it matters: a job starts on all of its nodes or on none. With too few suitable nodes it never starts; with too
    few in service it waits until one is repaired, and no tool says which.

    Example: a job requests sixteen nodes with eight GPUs, and two of the partition's sixteen are drained.

    Fix: request fewer nodes or less on each, or return nodes to service.

    Known limits: reservations, licenses, the topology and features joined by operators are ignored. Busy nodes count
    as suitable.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    count = min_nodes(requested)
    if cluster is None or not cluster.nodes or not cluster.partitions or count is None:
        yield not_applicable(job.name, NOT_SLURM if cluster is None else "the header states no number of nodes")
        return
    needs = dict(_needs(requested))
    feature = requested["--constraint"].value if "--constraint" in requested else ""
    plain = feature if feature.replace("_", "").replace("-", "").isalnum() else ""
    fitting = [
        node
        for node in cluster.nodes
        if all(node.has.get(name, 0) >= amount for name, amount in needs.items())
        and (not plain or plain in node.labels)
    ]
    usable = [node for node in fitting if not node.closed]
    wants = ", ".join(_amount(name, amount) for name, amount in needs.items()) + (f", {plain}" if plain else "")
    each = f" with {wants.removeprefix(', ')}" if wants else ""
    if len(usable) >= count:
        yield passed(job.name)
        return
    closed = tuple(node.name for node in fitting if node.closed)
    seen = Evidence("fitting nodes", f"{len(fitting)}, {len(usable)} of them in service", f"{count}", "sinfo -N -l")
    if len(fitting) < count:
        yield failed(
            f"{job.name}: nodes",
            f"the job starts on {count} nodes{each} at once, and its partition has {len(fitting)} of these",
            at=requested["--nodes"].claim,
            also=(seen,),
            remedy="Request fewer nodes, for less on each, or in another partition.",
        )
        return
    yield failed(
        f"{job.name}: nodes",
        f"the job starts on {count} nodes{each} at once; only {len(usable)} of these are in service, and "
        f"{fold(closed)} {'is' if len(closed) == 1 else 'are'} not: "
        + "; ".join(f"{node.name} is {node.closed}" for node in fitting[:64] if node.closed),
        at=requested["--nodes"].claim,
        also=(seen,),
        nodes=closed,
        remedy=f"Return {fold(closed)} to service, or request {len(usable)} nodes.",
        severity=Severity.WARNING,
    )


def _needs(requested: dict[str, RequestedOption]) -> Iterator[tuple[str, float]]:
    """The numeric requests of the header for each node."""
    gpus = 0
    for option in ("--gres", "--gpus-per-node"):
        if option in requested:
            gpus = max(gpus, _gpus(requested[option].value, bare=option != "--gres"))
    if gpus:
        yield "gpu", gpus
    cores = _whole_number(requested, "--cpus-per-task") or 1
    tasks = _whole_number(requested, "--ntasks-per-node") or 1
    if cores * tasks > 1:
        yield "cpu", cores * tasks
    memory = requested["--mem"].value if "--mem" in requested else ""
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    number, unit = (memory[:-1], memory[-1:].upper()) if memory[-1:].upper() in units else (memory, "M")
    if is_whole_number(number) and int(number):
        yield "memory", int(number) * units[unit] * MIB


def _whole_number(requested: dict[str, RequestedOption], option: str) -> int | None:
    return int(requested[option].value) if option in requested and is_whole_number(requested[option].value) else None


def _gpus(text: str, *, bare: bool) -> int:
    """The GPUs of `gpu:a100:8,nvme:1` or, `bare`, of `a100:8`."""
    total = 0
    for part in text.split(","):
        pieces = part.split(":")
        if bare or pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if is_whole_number(pieces[-1]) else 1
    return total


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / MIB / 1024:.4g} GiB of memory"
    return f"{amount:.0f} {'GPU' if name == 'gpu' else 'core'}{'s' if amount != 1 else ''}"


@allocation_check("ALC006", "scheduler-refuses", severity=Severity.ERROR)
def scheduler_refuses(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Slurm would accept the job.

    What it checks: `sbatch --test-only` with the options of the header; nothing is submitted.

    Why it matters: a site's own rules (accounts, limits, plugins) are known only to Slurm.

    Example: `--gres=gpu:9` where no node has so many: "Requested node configuration is not available".

    Fix: follow the message; other findings may be more specific.

    Known limits: Slurm also accepts requests that it can never meet: a partition that is down, a time beyond its limit.
    """
    cluster = slurm_of(fleet)
    if cluster is None or not cluster.partitions:
        yield not_applicable(job.name, NOT_SLURM)
        return
    if not cluster.refusal:
        if cluster.unknown:
            yield unknown(f"{job.name}: request", "; ".join(cluster.unknown))
        else:
            yield passed(job.name)
        return
    # Other checks report nodes out of service by name, and Slurm's message does not tell for how long.
    passing = "not available" in cluster.refusal and any(node.closed for node in cluster.nodes)
    claims = [requested.claim for requested in requested_options(job).values()]
    evidence = Evidence("sbatch --test-only", cluster.refusal, "a start time", "sbatch --test-only")
    yield failed(
        f"{job.name}: request",
        f'Slurm would not accept the job: "{cluster.refusal}"',
        at=claims[0] if claims else evidence,
        also=(*claims[1:], evidence),
        remedy="Correct the option in the message; `sbatch --test-only` repeats the test without submitting.",
        severity=Severity.WARNING if passing else None,
    )


@allocation_check("ALC001", "partition-unavailable", severity=Severity.ERROR)
def partition_unavailable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition that the job names exists and starts jobs.

    What it checks: `--partition` of the header compared with the partitions of the cluster and their state.

    Why it matters: sbatch rejects an unknown name; a job in a partition that is down waits forever, while `sbatch
    --test-only` still reports a start time.

    Example: `--partition=gpus` on a cluster whose partition is called gpu.

    Fix: name a partition that `sinfo` lists as up.

    Known limits: one of several partitions must be up; hidden partitions are not visible to every user.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    if cluster is None or not cluster.partitions:
        yield not_applicable(job.name, NOT_SLURM)
        return
    if "--partition" not in requested:
        yield not_applicable(job.name, "the header names no partition")
        return
    option = requested["--partition"]
    partitions, known = partitions_of(cluster, requested), [item.name for item in cluster.partitions]
    if not partitions:
        near = get_close_matches(option.value, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {fold(known)}."
        yield failed(
            f"{job.name}: partition",
            f"the cluster has no partition {option.value}",
            at=option.claim,
            also=(Evidence("partitions", fold(known), option.value, "sinfo --summarize"),),
            remedy=hint,
        )
    elif all(item.state != "UP" for item in partitions):
        states = ", ".join(f"{item.name} is {item.state}" for item in partitions)
        yield failed(
            f"{job.name}: partition",
            f"{states}, and starts no jobs",
            at=option.claim,
            also=(Evidence("state of the partition", states, "UP", f"scontrol show partition {partitions[0].name}"),),
            remedy="Choose a partition that is up, or wait until an administrator opens this one.",
        )
    else:
        yield passed(job.name)


@allocation_check("ALC002", "beyond-partition-limits", severity=Severity.ERROR)
def beyond_partition_limits(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The header's request is within the limits of its partition.

    What it checks: nodes and time compared with MinNodes, MaxNodes, MaxTime and the size of the partition.

    Why it matters: without EnforcePartLimits Slurm accepts the job and lets it wait forever (PartitionTimeLimit,
    PartitionNodeLimit); only the reason in squeue shows it.

    Example: `--time=7-00:00:00` in a partition with MaxTime=2-00:00:00.

    Fix: request less, or choose another partition.

    Known limits: a quality of service may lift these limits, so with `--qos` this is a warning. Limits of accounts and
    users are not checked.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    partitions = partitions_of(cluster, requested) if cluster is not None else ()
    if not partitions:
        yield not_applicable(job.name, NOT_SLURM if cluster is None else "its partition is not known")
        return
    faults = [list(_exceeded_limit(item, requested)) for item in partitions]
    if not all(faults):
        yield passed(job.name)
        return
    lifted = "--qos" in requested
    for option, message, limit in faults[0]:
        yield failed(
            f"{job.name}: {limit}",
            message,
            at=requested[option].claim,
            also=(Evidence("limits of the partition", limit, "", f"scontrol show partition {partitions[0].name}"),),
            remedy=f"Request less than {limit}, or choose another partition.",
            certain=not lifted,
        )


def _exceeded_limit(item: Partition, requested: dict[str, RequestedOption]) -> Iterator[tuple[str, str, str]]:
    """The option that exceeds a limit of this partition, a message, and the limit."""
    count = min_nodes(requested)
    if count is not None:
        for bound, limit_name in ((item.max_nodes, "MaxNodes"), (item.total_nodes, "TotalNodes")):
            if bound is not None and count > bound:
                message = (
                    f"the job requests {count} nodes, and partition {item.name} allows at most {bound} ({limit_name})"
                )
                yield "--nodes", message, f"{limit_name}={bound}"
                break
        if item.min_nodes and _max_nodes(requested, count) < item.min_nodes:
            message = f"the job requests {count} nodes, and partition {item.name} requires at least {item.min_nodes}"
            yield "--nodes", message, f"MinNodes={item.min_nodes}"
    if "--time" in requested and item.max_time:
        wanted, limit = parse_seconds(requested["--time"].value), parse_seconds(item.max_time)
        if wanted is not None and limit and wanted > limit:
            requested_time = requested["--time"].value
            message = f"the job requests {requested_time}, and partition {item.name} allows at most {item.max_time}"
            yield "--time", message, f"MaxTime={item.max_time}"


def _max_nodes(requested: dict[str, RequestedOption], count: int) -> int:
    text = requested["--nodes"].value.partition("-")[2]
    return int(text) if is_whole_number(text) else count


@allocation_check("ALC003", "account-not-allowed", severity=Severity.ERROR)
def account_not_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The account and quality of service that the job names may use its partition.

    What it checks: `--account` and `--qos` compared with AllowAccounts, DenyAccounts, AllowQos and DenyQos.

    Why it matters: the job is rejected, or waits forever with the reason AccountNotAllowed or QOSNotAllowed.

    Example: `--account=students` in a partition with AllowAccounts=research.

    Fix: name an account or quality of service that the partition allows.

    Known limits: without an account in the header, the user's default account is not looked up. Children of an
    allowed account are allowed too, so accounts are a warning.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    partitions = partitions_of(cluster, requested) if cluster is not None else ()
    if not partitions or not ({"--account", "--qos"} & requested.keys()):
        yield not_applicable(
            job.name, "the header names neither account nor quality of service, or the nodes do not come from Slurm"
        )
        return
    found = False
    for option, word in (("--account", "account"), ("--qos", "quality of service")):
        if option not in requested:
            continue
        value = requested[option].value
        lists = [
            (item.allowed_accounts, item.denied_accounts) if word == "account" else (item.allowed_qos, item.denied_qos)
            for item in partitions
        ]
        if all((allowed and value not in allowed) or value in denied for allowed, denied in lists):
            found = True
            allowed = lists[0][0]
            yield failed(
                f"{job.name}: {word}",
                f"partition {partitions[0].name} does not allow the {word} {value}",
                at=requested[option].claim,
                also=(
                    Evidence(
                        f"allowed there ({word})", fold(allowed) or "all except some", value, "scontrol show partition"
                    ),
                ),
                remedy=f"Use one of {fold(allowed)}." if allowed else f"Use another {word}.",
                certain=word != "account",
            )
    if not found:
        yield passed(job.name)
