"""One job on GPUs of different models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import certainly_several, joined, nodes_spanned, placed, quoted
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.sizes.hardware import named

#: What separates the alternatives of a constraint of Slurm. In brackets all nodes get the same one.
_EITHER = "|"


@rule(
    "GPU041",
    "gpus-of-different-models",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job of several nodes names its GPUs",
    evidence=(
        ("sbatch, --constraint (matching OR)", "https://slurm.schedmd.com/sbatch.html#OPT_constraint"),
        ("Slurm heterogeneous jobs", "https://slurm.schedmd.com/heterogeneous_jobs.html"),
        "pytorch/pytorch#22296",
    ),
)
def gpus_of_different_models(job: Job) -> Iterator[Verdict]:
    """The ranks of one synchronous job may run on GPUs of different models.

    What it checks: The parts of a heterogeneous Slurm job, the alternatives of a constraint over several nodes, and the
    node selectors and required affinities of the pods that train name one model of GPU.

    Why it matters: Each step ends with the slowest rank: faster GPUs wait for the rest of every step, and the batch
    size must fit the smallest memory. Models of different age also differ in the number formats that they support.

    Example: `#SBATCH --constraint="v100|a100"` with `--nodes=4`.

    Fix: Name one model. In Slurm, `--constraint="[v100|a100]"` gives all nodes the same one of both.

    Known limits: Jobs with parameter servers are not judged: their trainers need not be equally fast. A GPU model is
    known from its name only.
    """
    yield from (*_parts(job), *_constraints(job), *_pods(job))


def _parts(job: Job) -> Iterator[Verdict]:
    """The parts of a heterogeneous Slurm job."""
    parts = job.about("component_gpu_type")
    if len(parts) > 1 and not _has_servers(job):
        yield _one_model(parts[0].span.path, parts)


def _constraints(job: Job) -> Iterator[Verdict]:
    """A constraint or type that leaves the model open, over several nodes."""
    seen: set[Claim] = set()
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        for claim in job.setting("gpu_type", launch.scope):
            if claim.source != "slurm" or claim in seen or _has_servers(job):
                continue
            seen.add(claim)
            found = {model for text in texts(claim.value) if "[" not in text for model in _models(text)}
            open_text = any(_EITHER in text for text in texts(claim.value))
            if len(found) < 2 or not open_text:
                yield passed(launch.id)
            elif isinstance(nodes, Unresolved):
                yield unknown(
                    launch.id, f"{quoted(claim)} allows several models, on an unknown number of nodes", at=claim
                )
            elif certainly_several(nodes):
                yield failed(
                    launch.id,
                    f"{quoted(claim)} lets each of the {joined(numbers(nodes))} nodes have either of"
                    f" {joined(sorted(found))}: every step waits for the slower ones.",
                    at=claim,
                    remedy="Name one model, or put the alternatives in brackets, so that all nodes get the same.",
                )


def _pods(job: Job) -> Iterator[Verdict]:
    """The node selectors and affinities of the roles that train."""
    for workload in workloads(job):
        trainers = workload.trainers
        servers = any(role.name.lower() in ("ps", "server") for role in workload.roles)
        claims = [
            claim
            for role in trainers
            for quantity in ("node_label", "gpu_type")
            for claim in role.in_force(quantity)
            if _named_models(claim)
        ]
        if servers or not claims or not certainly_several(workload.pods(trainers)):
            continue
        yield _one_model(workload.id, claims)


def _one_model(subject: str, claims: Sequence[Claim]) -> Verdict:
    """Whether claims about parts of one job name one model."""
    first = claims[0]
    for claim in claims:
        alone = _named_models(claim)
        if len(alone) > 1:
            return failed(
                subject,
                f"{quoted(claim)} allows {joined(sorted(alone))} for the pods or nodes of one job: every step waits for"
                " the slower ones.",
                at=claim,
                remedy="Name one model.",
            )
        if alone and _named_models(first) and alone != _named_models(first):
            return failed(
                subject,
                f"{placed(first)} and {placed(claim)} give the ranks of one job GPUs of different models: every step"
                " waits for the slower ones.",
                at=claim,
                also=((first, "another model"),),
                remedy="Name one model for all ranks.",
            )
    unresolved = next((claim for claim in claims if isinstance(claim.value, Unresolved)), None)
    if unresolved is not None:
        return unknown(subject, f"{quoted(unresolved)} is known only at run time", at=unresolved)
    return passed(subject)


def _named_models(claim: Claim) -> set[str]:
    """The models that a label, type or constraint allows."""
    return {model for text in texts(claim.value) for model in _models(text.rpartition("=")[2])}


def _models(text: str) -> Iterator[str]:
    for part in text.strip("[]\"'").split(_EITHER):
        gpu = named(part)
        if gpu is not None:
            yield gpu.name


def _has_servers(job: Job) -> bool:
    return any(True in claim.alternatives for claim in job.about("ps_mode"))
