"""The backend that a process group is created with, which torch must know."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.suggest import similar_names
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import quoted

#: The backends of torch.distributed and of the device plugins that register one (torch 2.9).
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl", "ccl", "hccl", "hcl", "cncl", "eccl", "mccl", "smddp", "fake")
#: Backends of the C++ library that torch 1.0 replaced.
_REMOVED = ("tcp",)


@rule(
    "PGR006",
    "process-group-backend-refused",
    severity=Severity.WARNING,
    otherwise="no script creates a process group",
    evidence=(
        ("scripts for older releases still ask for tcp", "pytorch/pytorch#12721"),
        ("torch.distributed documentation, Backends", "https://docs.pytorch.org/docs/stable/distributed.html#backends"),
    ),
)
def process_group_backend_refused(job: Job) -> Iterator[Verdict]:
    """A script creates its process group with a backend that torch does not have.

    What it checks: The backend that a script passes to `init_process_group` is not `tcp`, which torch removed in 1.0,
    and is not a misspelling of a known backend.

    Why it matters: Every rank stops with `ValueError` as soon as the script starts, after the job has waited in the
    queue for all of its nodes.

    Example: `dist.init_process_group("tcp")`, or `dist.init_process_group("ncll")`.

    Fix: `nccl` for GPUs, `gloo` for CPUs.

    Known limits: A backend that a plugin registers under a name unlike those that torch knows is not reported.
    """
    claims = [claim for claim in job.about("backend") if claim.source == "python"]
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"the backend {quoted(claim)} is unknown: {claim.value.why}", at=claim)
            continue
        yield next((_refused(claim, name) for name in _names(claim) if _replacements(name)), passed(claim.span.path))


def _names(claim: Claim) -> list[str]:
    """The backends in `nccl` or in `cpu:gloo,cuda:nccl`."""
    return [part.rpartition(":")[2].strip().lower() for text in texts(claim.value) for part in text.split(",")]


def _replacements(name: str) -> tuple[str, ...]:
    """Backends to use instead of one that torch rejects; empty for a backend that it may accept."""
    if name in _REMOVED:
        return ("gloo", "nccl")
    return () if name in _BACKENDS else tuple(similar_names(name, ("nccl", "gloo"), cutoff=0.75))


def _refused(claim: Claim, name: str) -> Verdict:
    meant = " or ".join(_replacements(name))
    why = "which torch removed in 1.0" if name in _REMOVED else "which torch does not have"
    return failed(
        claim.span.path,
        f"{quoted(claim)} requests the backend `{name}`, {why}: every rank stops with ValueError.",
        at=claim,
        remedy=f"Use {meant}.",
    )
