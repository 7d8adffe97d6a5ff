"""Configurations that Hydra fails to compose."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job, Unresolved
from preflight.model.job.claim import distinct
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown


@rule(
    "HYD001",
    "hydra-configuration-refused",
    severity=Severity.ERROR,
    otherwise="no launch has a Hydra configuration in the tree",
)
def hydra_configuration_refused(job: Job) -> Iterator[Verdict]:
    """Hydra stops before the program starts: an override or a defaults list does not fit the configuration.

    What it checks: Every override of a line names a key or a group that the composed configuration has, or begins with
    `+`; every configuration that a defaults list names is there; nothing that must be chosen is left at `???`; no
    mapping is merged with a list.

    Why it matters: Hydra composes the configuration first. "Could not override 'trainer.n_gpu_per_node'" comes after
    the job was queued and its nodes were set up.

    Example: `trainer.n_gpu_per_node=8`, where the configuration has `n_gpus_per_node`.

    Fix: Correct the key, or write `+key=value` to add it.

    Known limits: Judged only where all files of the configuration are in the tree and the program registers none in its
    code.
    """
    refused = distinct(job.about("config_refused"))
    for claim in refused:
        if isinstance(claim.value, Unresolved):
            subject = claim.scope.launch or claim.span.path
            yield unknown(subject, f"its configuration depends on {claim.value.why}", at=claim)
            continue
        message = next(iter(texts(claim.value)), "")
        yield failed(
            claim.scope.launch or claim.span.path,
            f"`{' '.join(claim.spelling.split())}`: {message}, so Hydra stops before the program starts.",
            at=claim,
            remedy="Correct the name, or write `+` in front of an override that adds a key.",
        )
    if not refused and any(reference.role == "composed" for reference in job.references):
        yield passed(job.name)


@rule(
    "HYD002",
    "hydra-interpolation-leads-nowhere",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch has a Hydra configuration in the tree",
)
def hydra_interpolation_leads_nowhere(job: Job) -> Iterator[Verdict]:
    """A value of a Hydra configuration refers to a key that the composed configuration does not have.

    What it checks: Every `${key}` of the composed configuration leads to a value: the key exists, or the program sets
    it, and it does not lead back to itself.

    Why it matters: Hydra composes such a configuration without a complaint. The program stops with
    InterpolationKeyError when it first reads the value, on every rank, after the model was built.

    Example: `lr: ${trainer.learning_rate}` where `trainer` has no `learning_rate`.

    Fix: Correct the key, or set it.

    Known limits: A program that never reads the value, or sets the key before it does, is not affected. Judged only
    where all files of the configuration are in the tree.
    """
    dangling = distinct(job.about("config_unresolvable"))
    for claim in dangling:
        stated = next(iter(claim.alternatives), ())
        name, why = stated if isinstance(stated, tuple) and len(stated) == 2 else ("the value", "it leads nowhere")
        yield failed(
            claim.scope.launch or claim.span.path,
            f"{why}: the program stops when it reads `{name}`.",
            at=claim,
            remedy="Correct the key, or set it in the configuration.",
        )
    if dangling:
        return
    for claim in distinct(job.about("config_refused")):
        if isinstance(claim.value, Unresolved):
            yield unknown(
                claim.scope.launch or claim.span.path, f"its configuration depends on {claim.value.why}", at=claim
            )
            return
    if any(reference.role == "composed" for reference in job.references):
        yield passed(job.name)
