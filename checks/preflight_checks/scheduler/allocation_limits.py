"""Checks that the partition in a job's header exists, is open to the job, and allows its request.

These checks use the controller's list of partitions, so they work even if no node is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job, is_whole_number
from preflight.model.recording import Facts, Fleet, Partition
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed
from preflight.sources.launchers.slurm import parse_seconds
from preflight_checks.requirements import fold
from preflight_checks.scheduler.allocation import (
    NOT_SLURM,
    RequestedOption,
    allocation_check,
    min_nodes,
    partitions_of,
    requested_options,
    slurm_of,
)


@allocation_check(
    "ALC001",
    "partition-unavailable",
    severity=Severity.ERROR,
    evidence=(
        "https://slurm.schedmd.com/sbatch.html",
        (
            "sbatch's documentation of --partition, scontrol's of the state of partitions",
            "https://slurm.schedmd.com/scontrol.html",
        ),
    ),
)
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


@allocation_check(
    "ALC002",
    "beyond-partition-limits",
    severity=Severity.ERROR,
    evidence=(
        (
            "slurm.conf's documentation of MaxTime, MaxNodes and EnforcePartLimits",
            "https://slurm.schedmd.com/slurm.conf.html",
        ),
        "https://slurm.schedmd.com/resource_limits.html",
    ),
)
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


@allocation_check(
    "ALC003",
    "account-not-allowed",
    severity=Severity.ERROR,
    evidence=(
        ("slurm.conf's documentation of AllowAccounts and AllowQos", "https://slurm.schedmd.com/slurm.conf.html"),
    ),
)
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
