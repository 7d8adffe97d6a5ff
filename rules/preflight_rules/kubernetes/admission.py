"""Custom resources that the API server rejects."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import distinct
from preflight.plugins.authoring import Verdict, failed, rule, unknown
from preflight.plugins.claim_text import quoted


@rule(
    "KUB032",
    "manifest-refused",
    severity=Severity.ERROR,
    otherwise="no object of a known custom resource",
    passes_with=("manifest_schema",),
)
def manifest_refused(job: Job) -> Iterator[Verdict]:
    """The API server rejects a custom resource: a field, a value or a combination that its kind does not have.

    What it checks: Every field of a PyTorchJob, MPIJob, PaddleJob, TrainJob, JobSet, Volcano Job, RayCluster,
    LeaderWorkerSet and so on against the schemas and rules of the operators' releases: unknown and missing fields,
    types, allowed values, ranges, names, and fields that exclude each other.

    Why it matters: `kubectl apply` stops with an error and no pod starts. A pipeline that submits without strict
    validation drops the unknown field, and the job runs with a default.

    Example: `replica: 4` in a role of a PyTorchJob.

    Fix: Use the field or the value that the finding names.

    Known limits: Checks that only an operator's webhook makes are not covered. A field that some releases accept is a
    warning that names them. In the templates of a chart it is a warning, because a chart may have branches for several
    releases.
    """
    for claim in distinct(job.about("manifest_refused")):
        subject = claim.scope.launch or f"{claim.span.path}:{claim.span.line}"
        if isinstance(claim.value, Unresolved):
            yield unknown(subject, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
        else:
            yield _refused(subject, claim)


def _refused(subject: str, claim: Claim) -> Verdict:
    stated = next(iter(claim.alternatives), ())
    words = [str(word) for word in stated] if isinstance(stated, tuple) else []
    # A recording from elsewhere may hold fewer.
    problem, remedy, accepted, refused = [*words, "", "", "", ""][:4]
    effect = "the API server rejects the object and no pod starts"
    if accepted:
        effect = f"{refused} rejects the object, while {accepted} accepts it"
    return failed(
        subject,
        f"{problem}: {effect}.",
        at=claim,
        remedy=remedy,
        # A chart often has branches for several releases of an operator; which one runs is known to its user.
        severity=Severity.WARNING if accepted or "templates" in claim.span.path.split("/")[:-1] else None,
    )
