"""What a script asks of a Ray cluster, and how long it waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import placed, quoted, texts
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


@rule(
    "RAY021",
    "worker-gpus-not-used",
    severity=Severity.ERROR,
    evidence=(
        "https://docs.ray.io/en/latest/train/api/doc/ray.train.ScalingConfig.html",
        "https://github.com/ray-project/ray/blob/ray-2.9.0/python/ray/air/config.py",
    ),
)
def worker_gpus_not_used(job: Job) -> Iterator[Verdict]:
    """The workers of a Ray trainer get GPUs that they are told not to use, or none where they are told to.

    What it checks:
        `resources_per_worker` of a ScalingConfig has a `GPU` above 0 exactly where `use_gpu` is True; without
        `use_gpu` it is False.

    Why it matters:
        Ray refuses such a ScalingConfig with ValueError, in the script that starts everything.

    Example:
        `ScalingConfig(num_workers=4, resources_per_worker={"GPU": 1})`.

    Fix:
        `use_gpu=True`, or no `GPU` among the resources.

    Known limits:
        Only where the resources are written out.

    Evidence:
        Ray, air/config.py (ScalingConfig.__post_init__) and its documentation.
    """
    met = False
    for subject, gpus in stated(job, "ray_train_worker_gpus"):
        met = True
        uses = gpus.because[0] if gpus.because else None
        amounts = [item for item in gpus.alternatives if isinstance(item, (int, float))]
        said = [item for item in uses.alternatives if isinstance(item, bool)] if uses is not None else [False]
        if len(amounts) != 1 or len(said) != 1:
            yield unknown(subject, f"{quoted(gpus)} or `use_gpu` is known at run time only", at=gpus)
        elif said[0] == (amounts[0] > 0):
            yield passed(subject)
        else:
            shown = placed(uses) if uses is not None else "`use_gpu`, which is not given and so False,"
            yield failed(
                subject,
                f"{quoted(gpus)} and {shown} contradict each other: Ray refuses the ScalingConfig with ValueError.",
                at=gpus,
                also=((uses, "whether GPUs are used"),) if uses is not None else (),
                remedy="Write `use_gpu=True`." if amounts[0] > 0 else "Leave `GPU` out, or write `use_gpu=False`.",
                severity=None if gpus.condition == "" else Severity.WARNING,
            )
    if not met:
        yield not_applicable(job.name, "no ScalingConfig gives its workers GPUs among their resources")
