"""Whether Slurm can give the job its nodes: fitting ones, in service, and by its own word."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.scheduler.slurm_request import COST, NOT_SLURM, Asked, asked_of, least_nodes, nothing, slurm_of

MIB = 2**20


@check(
    "ALC004",
    "node-out-of-service",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sinfo.html", "https://slurm.schedmd.com/scontrol.html"),
)
def node_out_of_service(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node of the job is drained or down for Slurm.

    What it checks: the state that Slurm has for each node of the allocation, and for each that was named.

    Why it matters: a node that is drained is given to nobody: a job that names it waits for ever, and one that runs on
    it cannot be requeued there. Somebody had a reason to take it out, which is told here.

    Example: node7 is drained with the reason "GPU 3 fell off the bus".

    Fix: leave the node out, or have it put back (`scontrol update nodename=N state=resume`) once it is mended.

    Known limits: in an allocation that runs already a drained node is a warning; one that is down is told by NOD001.

    Evidence: sinfo's documentation of the states of nodes.
    """
    cluster = slurm_of(fleet)
    if cluster is None or not cluster.nodes:
        yield not_applicable(job.name, NOT_SLURM)
        return
    closed = {node.name: node.closed for node in cluster.nodes if node.closed}
    running = bool(fleet.records)
    wanted = {node.name for node in fleet.nodes} if running else set(_named(job, fleet))
    broken = {name: closed[name] for name in sorted(wanted) if name in closed}
    if not broken:
        yield passed(job.name)
        return
    for name, why in broken.items():
        yield failed(
            name,
            f"Slurm has {name} as {why}" + ("" if running else ", and gives it to nobody"),
            at=Evidence("state of the node", why, "in service", f"scontrol show node {name}", name),
            nodes=(name,),
            remedy=f"Leave {name} out (--exclude={name}), or have it put back once it is mended.",
            severity=Severity.WARNING if running else None,
        )


def _named(job: Job, fleet: Fleet) -> Iterator[str]:
    """The nodes that somebody named, where there are none in the fleet because Slurm gave none."""
    if fleet.origin is not None:
        yield from fleet.origin.named


@check(
    "ALC005",
    "too-few-fitting-nodes",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sbatch.html", "https://slurm.schedmd.com/gres.html"),
)
def too_few_fitting(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition has as many nodes of the kind as the job starts on at once.

    What it checks: how many nodes of the partition have the GPUs, cores, memory and features that the header asks for
    on each, and how many of those are in service.

    Why it matters: a job starts on all of its nodes or on none. With too few that fit it never does; with too few in
    service it waits until somebody mends one, and no tool says which.

    Example: sixteen nodes with eight GPUs are asked for, and two of the partition's sixteen are drained.

    Fix: ask for fewer nodes or less on each, or have nodes put back.

    Known limits: reservations, licences and the topology are not looked at, nor features joined by operators. Nodes
    that are only busy count as fitting.

    Evidence: sbatch's documentation of --nodes, --gres and --constraint.
    """
    cluster, asked = slurm_of(fleet), asked_of(job)
    count = least_nodes(asked)
    if cluster is None or not cluster.nodes or not cluster.partitions or count is None:
        yield not_applicable(job.name, NOT_SLURM if cluster is None else "the header says no number of nodes")
        return
    needs = dict(_needs(asked))
    feature = asked["--constraint"].value if "--constraint" in asked else ""
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
            f"the job starts on {count} nodes{each} at once, and its partition has {len(fitting)} such",
            at=asked["--nodes"].claim,
            also=(seen,),
            remedy="Ask for fewer nodes, for less on each, or in another partition.",
        )
        return
    yield failed(
        f"{job.name}: nodes",
        f"the job starts on {count} nodes{each} at once; {len(usable)} such are in service, and {fold(closed)} "
        f"{'is' if len(closed) == 1 else 'are'} not: "
        + "; ".join(f"{node.name} is {node.closed}" for node in fitting[:64] if node.closed),
        at=asked["--nodes"].claim,
        also=(seen,),
        nodes=closed,
        remedy=f"Have {fold(closed)} put back, or ask for {len(usable)} nodes.",
        severity=Severity.WARNING,
    )


def _needs(asked: dict[str, Asked]) -> Iterator[tuple[str, float]]:
    """What the header asks for on each node, as far as that is a number."""
    gpus = 0
    for option in ("--gres", "--gpus-per-node"):
        if option in asked:
            gpus = max(gpus, _gpus(asked[option].value, bare=option != "--gres"))
    if gpus:
        yield "gpu", gpus
    cores = _whole(asked, "--cpus-per-task") or 1
    tasks = _whole(asked, "--ntasks-per-node") or 1
    if cores * tasks > 1:
        yield "cpu", cores * tasks
    memory = asked["--mem"].value if "--mem" in asked else ""
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    number, unit = (memory[:-1], memory[-1:].upper()) if memory[-1:].upper() in units else (memory, "M")
    if number.isdigit() and int(number):
        yield "memory", int(number) * units[unit] * MIB


def _whole(asked: dict[str, Asked], option: str) -> int | None:
    return int(asked[option].value) if option in asked and asked[option].value.isdigit() else None


def _gpus(text: str, *, bare: bool) -> int:
    """The GPUs of `gpu:a100:8,nvme:1` or, `bare`, of `a100:8`."""
    total = 0
    for part in text.split(","):
        pieces = part.split(":")
        if bare or pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if pieces[-1].isdigit() else 1
    return total


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / MIB / 1024:.4g} GiB of memory"
    return f"{amount:.0f} {'GPU' if name == 'gpu' else 'core'}{'s' if amount != 1 else ''}"


@check(
    "ALC006",
    "scheduler-refuses",
    plan=nothing,
    probes=(),
    cost=COST,
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sbatch.html",),
)
def scheduler_refuses(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Slurm would take the job into its queue.

    What it checks: `sbatch --test-only` with the options of the header; nothing is submitted.

    Why it matters: a site's own rules (accounts, limits, plugins) are known to Slurm alone.

    Example: `--gres=gpu:9` where no node has so many: "Requested node configuration is not available".

    Fix: what the message says; other findings may say it more plainly.

    Known limits: Slurm takes requests that it can never meet, too: a partition that is down, a time beyond its limit.

    Evidence: sbatch's documentation of --test-only.
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
    # Nodes that are out of service are told by name elsewhere, and Slurm's words do not tell for how long.
    passing = "not available" in cluster.refusal and any(node.closed for node in cluster.nodes)
    claims = [asked.claim for asked in asked_of(job).values()]
    evidence = Evidence("sbatch --test-only", cluster.refusal, "a time at which it would start", "sbatch --test-only")
    yield failed(
        f"{job.name}: request",
        f'Slurm would not take the job: "{cluster.refusal}"',
        at=claims[0] if claims else evidence,
        also=(*claims[1:], evidence),
        remedy="Correct the option that the message speaks of; `sbatch --test-only` says it without submitting.",
        severity=Severity.WARNING if passing else None,
    )
