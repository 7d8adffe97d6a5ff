"""Whether the partition that a job's header names exists, is open to it, and gives as much as it asks for.

Judged from what the controller says of its partitions, so that it also speaks where no node is free and nothing can be
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from preflight.job import Job, Known
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Partition
from preflight.sources.launchers.slurm import seconds_of
from preflight_checks.demands import fold
from preflight_checks.scheduler.slurm_request import (
    COST,
    NOT_SLURM,
    Asked,
    asked_of,
    least_nodes,
    nothing,
    partitions_of,
    slurm_of,
)


@check(
    "ALC001",
    "partition-unavailable",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sbatch.html", "https://slurm.schedmd.com/scontrol.html"),
)
def partition_unavailable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition that the job names exists and starts jobs.

    What it checks: `--partition` of the header against the partitions of the cluster and their state.

    Why it matters: sbatch refuses a name that is none; a job of a partition that is down waits for ever, and
    `sbatch --test-only` still says when it would start.

    Example: `--partition=gpus` on a cluster whose partition is called gpu.

    Fix: name a partition that `sinfo` lists as up.

    Known limits: of several partitions one that is up will do; hidden ones are not seen by everybody.

    Evidence: sbatch's documentation of --partition, scontrol's of the state of partitions.
    """
    cluster, asked = slurm_of(fleet), asked_of(job)
    if cluster is None or not cluster.partitions:
        yield not_applicable(job.name, NOT_SLURM)
        return
    if "--partition" not in asked:
        yield not_applicable(job.name, "the header names no partition")
        return
    option = asked["--partition"]
    there, known = partitions_of(cluster, asked), [item.name for item in cluster.partitions]
    if not there:
        near = get_close_matches(option.value, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {fold(known)}."
        yield failed(
            f"{job.name}: partition",
            f"the cluster has no partition {option.value}",
            at=option.claim,
            also=(Evidence("partitions", fold(known), option.value, "sinfo --summarize"),),
            remedy=hint,
        )
    elif all(item.state != "UP" for item in there):
        states = ", ".join(f"{item.name} is {item.state}" for item in there)
        yield failed(
            f"{job.name}: partition",
            f"{states}, and starts no jobs",
            at=option.claim,
            also=(Evidence("state of the partition", states, "UP", f"scontrol show partition {there[0].name}"),),
            remedy="Choose a partition that is up, or wait until an administrator opens this one.",
        )
    else:
        yield passed(job.name)


@check(
    "ALC002",
    "beyond-partition-limits",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/slurm.conf.html", "https://slurm.schedmd.com/resource_limits.html"),
)
def beyond_limits(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """What the header asks for lies within the limits of its partition.

    What it checks: nodes and time against MinNodes, MaxNodes, MaxTime and the size of the partition.

    Why it matters: without EnforcePartLimits Slurm takes the job and lets it wait for ever (PartitionTimeLimit,
    PartitionNodeLimit); nothing says so but the reason in squeue.

    Example: `--time=7-00:00:00` in a partition with MaxTime=2-00:00:00.

    Fix: ask for less, or choose another partition.

    Known limits: a quality of service may lift these limits, so with `--qos` this is a warning. Limits of accounts and
    users are not looked at.

    Evidence: slurm.conf's documentation of MaxTime, MaxNodes and EnforcePartLimits.
    """
    cluster, asked = slurm_of(fleet), asked_of(job)
    there = partitions_of(cluster, asked) if cluster is not None else ()
    if not there:
        yield not_applicable(job.name, NOT_SLURM if cluster is None else "its partition is not known")
        return
    faults = [list(_over(item, asked)) for item in there]
    if not all(faults):
        yield passed(job.name)
        return
    lifted = "--qos" in asked
    for option, message, limit in faults[0]:
        yield failed(
            f"{job.name}: {limit}",
            message,
            at=asked[option].claim,
            also=(Evidence("limits of the partition", limit, "", f"scontrol show partition {there[0].name}"),),
            remedy=f"Ask for less than {limit}, or choose another partition.",
            severity=Severity.WARNING if lifted else None,
            confidence=Confidence.MEDIUM if lifted else None,
        )


def _over(item: Partition, asked: dict[str, Asked]) -> Iterator[tuple[str, str, str]]:
    """The option that is beyond a limit of this partition, what that means, and the limit."""
    least = least_nodes(asked)
    if least is not None:
        for bound, said in ((item.max_nodes, "MaxNodes"), (item.total_nodes, "TotalNodes")):
            if bound is not None and least > bound:
                message = f"the job asks for {least} nodes, and partition {item.name} gives at most {bound} ({said})"
                yield "--nodes", message, f"{said}={bound}"
                break
        if item.min_nodes and _most_nodes(asked, least) < item.min_nodes:
            message = f"the job asks for {least} nodes, and partition {item.name} takes none below {item.min_nodes}"
            yield "--nodes", message, f"MinNodes={item.min_nodes}"
    if "--time" in asked and item.max_time:
        wanted, limit = _seconds(asked["--time"].value), _seconds(item.max_time)
        if wanted is not None and limit is not None and wanted > limit:
            message = (
                f"the job asks for {asked['--time'].value}, and partition {item.name} gives at most {item.max_time}"
            )
            yield "--time", message, f"MaxTime={item.max_time}"


def _seconds(text: str) -> int | None:
    value = seconds_of(Known(text))
    return value.value if isinstance(value, Known) and isinstance(value.value, int) else None


def _most_nodes(asked: dict[str, Asked], least: int) -> int:
    text = asked["--nodes"].value.partition("-")[2]
    return int(text) if text.isdigit() else least


@check(
    "ALC003",
    "account-not-allowed",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/slurm.conf.html",),
)
def not_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The account and quality of service that the job names may use its partition.

    What it checks: `--account` and `--qos` against AllowAccounts, DenyAccounts, AllowQos and DenyQos.

    Why it matters: the job is refused, or waits for ever with the reason AccountNotAllowed or QOSNotAllowed.

    Example: `--account=students` in a partition with AllowAccounts=research.

    Fix: name an account or quality of service that the partition allows.

    Known limits: an account that is not named is the user's default one, which is not looked up. Children of an
    allowed account are allowed too, so accounts are a warning.

    Evidence: slurm.conf's documentation of AllowAccounts and AllowQos.
    """
    cluster, asked = slurm_of(fleet), asked_of(job)
    there = partitions_of(cluster, asked) if cluster is not None else ()
    if not there or not ({"--account", "--qos"} & asked.keys()):
        yield not_applicable(
            job.name, "the header names neither account nor quality of service, or Slurm was not asked"
        )
        return
    found = False
    for option, word in (("--account", "account"), ("--qos", "quality of service")):
        if option not in asked:
            continue
        value = asked[option].value
        lists = [
            (item.allowed_accounts, item.denied_accounts) if word == "account" else (item.allowed_qos, item.denied_qos)
            for item in there
        ]
        if all((allowed and value not in allowed) or value in denied for allowed, denied in lists):
            found = True
            allowed = lists[0][0]
            yield failed(
                f"{job.name}: {word}",
                f"partition {there[0].name} does not allow the {word} {value}",
                at=asked[option].claim,
                also=(
                    Evidence(
                        f"allowed there ({word})", fold(allowed) or "all but some", value, "scontrol show partition"
                    ),
                ),
                remedy=f"Name one of {fold(allowed)}." if allowed else f"Name another {word}.",
                severity=Severity.WARNING if word == "account" else None,
                confidence=Confidence.MEDIUM if word == "account" else None,
            )
    if not found:
        yield passed(job.name)
