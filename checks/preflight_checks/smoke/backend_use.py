"""The check that the ranks of the smoke run communicate over the backend that the job asks for."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, passed, unknown
from preflight_checks.requirements.hosts import fold
from preflight_checks.smoke.backend import nodes_without_gpus, title
from preflight_checks.smoke.framework import framework_of
from preflight_checks.smoke.plan import PLAN_PROBES, plan_of, plan_smoke
from preflight_checks.smoke.recorded_run import FACT, SmokeRun, missing_run, obstacles, run_of
from reference_trainer.collective.rank import rank as run_rank


@check(
    "SMK008",
    "backend-unusable",
    plan=plan_smoke,
    reads=PLAN_PROBES,
    probes=(run_rank,),
    cost="a short training run: every rank imports torch and takes a few steps",
    when="smoke",
    severity=Severity.ERROR,
    evidence=(
        "NVIDIA/nccl#861",
        "meta-llama/codellama#125",
        ("ProcessGroupNCCL is only supported with GPUs", "tatsu-lab/stanford_alpaca#258"),
    ),
)
def backend_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank can use the backend that the job asks for, and all ranks use the same.

    What it checks: the backend is chosen once for all ranks: NCCL if the job names it, or requests GPUs and names none;
    Gloo if the job names it, also on nodes with GPUs; otherwise NCCL if every rank has a GPU. With NCCL each rank asks
    its own torch (or paddle) for a GPU, in the job's interpreter and environment.

    Why it matters: torch refuses NCCL without a GPU, on every node or on the one whose container hides them, and the
    other ranks wait for it. A test over Gloo would say nothing about such a job.

    Example: the job asks for NCCL, and torch 2.5.1+cpu finds no GPU on node3.

    Fix: install a build of torch for the GPUs, let the container or scheduler pass them on, or let the job use Gloo.

    Known limits: `--smoke-backend gloo` runs over Gloo nevertheless, and the report says so. Other backends (mpi, ucc)
    are not tested.
    """
    run = run_of(job, facts)
    early = missing_run(job, fleet, run)
    found = obstacles(run)
    if found:
        yield _unusable(job, fleet, facts, run, found)
        return
    if early is not None:
        yield early if not early.required else unknown("backend", "blocked by SMK001: no rank ran")
        return
    backend = plan_of(job, fleet, facts).backend
    nodes = [node.name for node in fleet.nodes]
    notes = {report.backend_note: node for node, report in run.reports if report.backend_note}
    if backend.by_option and backend.untested:
        used = next((f"{title(report.backend)} on {fold(nodes)}" for _, report in run.reports), backend.why)
        yield failed(
            "backend",
            f"the smoke run used {title(backend.name)} because of --smoke-backend; {backend.untested}",
            at=Evidence(FACT, used, "the job's backend", node=run.members[0].node),
            also=backend.claims,
            nodes=nodes,
            remedy="Run it without --smoke-backend on nodes that can use the job's backend.",
            severity=Severity.INFO,
        )
    elif backend.untested:
        yield unknown("backend", backend.untested, required=True)
    elif not run.reports:
        yield unknown("backend", "blocked by SMK001: no rank completed")
    elif notes:
        note, node = next(iter(notes.items()))
        yield failed(
            "backend",
            f"the ranks used {note}",
            at=Evidence(FACT, note, "a GPU for every rank, or for none", node=node),
            also=backend.claims,
            nodes=nodes,
            remedy="Name the backend in the job, or give every rank a GPU: if each decides alone, they may differ.",
            severity=Severity.WARNING,
        )
    else:
        used = fold(sorted({title(report.backend) for _, report in run.reports}))
        yield passed(f"backend: {used} ({backend.why})")
        untested = framework_of(job, fleet, facts).untested
        if untested:
            yield unknown("the job's framework", untested)


def _unusable(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun, found: dict[str, str]) -> Verdict:
    backend = plan_of(job, fleet, facts).backend
    nodes = [node.name for node in fleet.nodes if node.name in {*found, *nodes_without_gpus(fleet, facts)}]
    node, why = next(iter(found.items()))
    others = "" if len(set(found.values())) == 1 else f" ({node})"
    asks = "--smoke-backend asks" if backend.by_option else "the job asks"
    return failed(
        f"NCCL on {fold(nodes)}",
        f"{asks} for NCCL, and {why} on {fold(nodes)}{others}",
        at=Evidence(FACT, f"{node}: {why}", "a GPU for every rank", node=node),
        also=backend.claims,
        nodes=nodes,
        remedy=f"Install a build for the GPUs of {fold(nodes)}, or pass them on to the ranks' container. If the job is "
        "meant to run over Gloo, let it ask for Gloo; `--smoke-backend gloo` tests everything else over it.",
    )
