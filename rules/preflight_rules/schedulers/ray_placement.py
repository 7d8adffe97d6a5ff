"""What a script asks of a Ray cluster, and how long it waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import quoted, texts
from preflight_rules.scripts.script_reading import is_run, stated


@rule(
    "RAY020",
    "placement-group-waited-for-without-end",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("ray-project/ray#47792", "https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html"),
)
def placement_group_waited_for_without_end(job: Job) -> Iterator[Verdict]:
    """A script waits without a time-out for a placement group that may fit on no node.

    What it checks:
        `ray.get(pg.ready())` of a placement group with known bundles has a time-out.

    Why it matters:
        A bundle is never split over nodes. Where no node of the cluster has all it asks for, the group stays pending;
        Ray says so in its log only, and the job waits for ever with whatever it already holds.

    Example:
        `pg = placement_group([{"CPU": 2}], strategy="SPREAD")`, `ray.get(pg.ready())`, on nodes of one CPU.

    Fix:
        `ray.get(pg.ready(), timeout=600)`, or `pg.wait(timeout_seconds=600)`, and stop with a message; compare the
        largest bundle with the nodes.

    Known limits:
        How large the nodes are is not known from the script; on an autoscaling cluster a wait may be meant.

    Evidence:
        ray-project/ray#47792; Ray documentation, placement groups.
    """
    met = False
    for subject, waits in stated(job, "ray_wait_unbounded"):
        met = True
        bundle = next((claim for claim in waits.because if claim.quantity == "ray_bundle"), None)
        if not is_run(job) or bundle is None:
            yield unknown(subject, f"{quoted(waits)} waits for bundles that are not known", at=waits)
            continue
        yield failed(
            subject,
            f"{quoted(waits)} waits for ever if no node of the cluster has {next(iter(texts(bundle.value)), 'that')}"
            f" for the bundle {quoted(bundle)} (line {bundle.span.line}), and nothing tells.",
            at=waits,
            also=((bundle, "never split over nodes"),),
            remedy="Give it an end, ray.get(pg.ready(), timeout=600), and compare the largest bundle with the nodes.",
        )
    if not met and job.about("ray_bundle"):
        met = True
        yield passed(job.name)
    if not met:
        yield not_applicable(job.name, "no script waits for a placement group")
