"""The life cycle of pods: restart policy, completion index, volumes, preemptible nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.kubernetes.workloads import Workload, workloads
from preflight_rules.launches import certainly_several

#: Labels of spot and preemptible nodes.
_SPOT = re.compile(
    r"cloud\.google\.com/gke-(?:spot|preemptible|provisioning)=(?:true|spot)|eks\.amazonaws\.com/capacityType=SPOT"
    r"|karpenter\.sh/capacity-type=spot|kubernetes\.azure\.com/scalesetpriority=spot|(?:.*/)?(?:lifecycle|capacity)=.*spot"
    r"|(?:.*/)?(?:spot|preemptible)=true",
    re.IGNORECASE,
)
_RESUMES = re.compile(r"resume|checkpoint|ckpt|save|restore|load|snapshot|output[_-]dir", re.IGNORECASE)
_ALLOWED = frozenset(("Never", "OnFailure"))


@rule(
    "KUB013",
    "job-restart-policy-rejected",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no Job of Kubernetes itself starts ranks",
)
def job_restart_policy_rejected(job: Job) -> Iterator[Verdict]:
    """A Job's pods have a restart policy that Kubernetes rejects.

    What it checks: The pod template of a `batch/v1` Job has `restartPolicy: Never` or `OnFailure`.

    Why it matters: The API server rejects any other Job; `Always` is also what a pod template has by default.

    Example: A Job that trains, without `restartPolicy`.

    Fix: `restartPolicy: Never`, with `backoffLimit` for the retries.

    Known limits: A missing policy may come from an overlay or a template, so it is a warning.
    """
    for workload in workloads(job):
        if (workload.group, workload.kind) not in (("batch", "Job"), ("batch", "CronJob")):
            continue
        for role in workload.roles:
            stated = role.in_force("restart_policy")
            if any(isinstance(claim.value, Unresolved) for claim in stated):
                yield unknown(workload.id, f"{quoted(stated[0])} is known only at run time", at=stated[0])
            elif not stated:
                yield failed(
                    workload.id,
                    "The pod template has no restartPolicy, which means `Always` and is not allowed in a Job: the"
                    " API server rejects it.",
                    at=workload.head,
                    remedy="Add `restartPolicy: Never` to the pod's spec.",
                    severity=Severity.WARNING,
                )
            elif not _ALLOWED & set(texts(stated[0].value)):
                yield failed(
                    workload.id,
                    f"{quoted(stated[0])} is not allowed in a Job: expected Never or OnFailure.",
                    at=stated[0],
                    remedy="Write `restartPolicy: Never`.",
                    # Unsafe: whether failed pods are restarted is the user's choice.
                    fix=make_fix("write Never", replace_text(stated[0], texts(stated[0].value)[0], "Never"), safe=False)
                    if texts(stated[0].value)
                    else None,
                )
            else:
                yield passed(workload.id)


@rule(
    "KUB014",
    "completion-index-without-indexed-mode",
    severity=Severity.ERROR,
    otherwise="no Job's launch line uses a completion index",
)
def completion_index_without_indexed_mode(job: Job) -> Iterator[Verdict]:
    """A Job's ranks use a completion index that its pods do not have.

    What it checks: A Job whose launch line uses JOB_COMPLETION_INDEX has `completionMode: Indexed`.

    Why it matters: Without it the variable is empty in every pod: all pods claim the same rank, or the launcher stops
    because the number is empty.

    Example: `torchrun --node_rank=$JOB_COMPLETION_INDEX` in a Job with `parallelism: 4` and no completionMode.

    Fix: `completionMode: Indexed`, and a headless service so that pod 0 has a name.

    Known limits: Only launch lines in the manifest are judged.
    """
    for workload in workloads(job):
        modes = workload.in_force("completion_mode")
        users = [claim for _, scope in workload.launches() if (claim := _uses_index(job, scope.launch)) is not None]
        if not modes or not users:
            continue
        verdict = undecided(workload.id, modes)
        if verdict is None and "Indexed" not in texts(modes[0].value):
            verdict = failed(
                workload.id,
                f"{quoted(users[0])} requires a completion index, but the Job's pods have none: completionMode is"
                f" {texts(modes[0].value)[0]}.",
                at=users[0],
                also=((modes[0], "no `completionMode: Indexed`"),),
                remedy="Add `completionMode: Indexed` to the Job's spec.",
            )
        yield verdict or passed(workload.id)


def _uses_index(job: Job, launch: str) -> Claim | None:
    ranks = [claim for claim in job.about("node_rank") if claim.scope.launch == launch]
    return next((claim for claim in ranks if "JOB_COMPLETION_INDEX" in claim.spelling), None)


@rule(
    "KUB015",
    "single-node-volume-on-several-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no pod mounts a volume claim of these files",
)
def single_node_volume_on_several_pods(job: Job) -> Iterator[Verdict]:
    """Several pods of one job mount a volume that only one node or one pod may mount.

    What it checks: A persistent volume claim that is in the same files with ReadWriteOnce or ReadWriteOncePod is not
    mounted for writing by a role of several pods.

    Why it matters: The pods on the second node stay in ContainerCreating ("Multi-Attach error"), while the first ones
    hold their GPUs and wait.

    Example: `accessModes: [ReadWriteOnce]` and a Worker with `replicas: 4` that mounts the claim.

    Fix: A storage class with ReadWriteMany, or a separate volume for each pod.

    Known limits: Pods that all fit on one node can share a ReadWriteOnce volume.
    """
    modes = {
        text: claim
        for claim in job.about("volume_access")
        for named in job.about("shared_volume")
        if named.scope == claim.scope and not named.scope.role
        for text in texts(named.value)
    }
    for workload in workloads(job):
        for role in workload.roles:
            for mount in role.every("shared_volume"):
                access = next((modes[text] for text in texts(mount.value) if text in modes), None)
                if access is None or not mount.scope.role:
                    continue
                verdict = undecided(workload.id, (access, role.count))
                held = {str(mode) for item in access.alternatives if isinstance(item, tuple) for mode in item}
                holder = "pod" if "ReadWriteOncePod" in held else "node"
                if (
                    verdict is None
                    and held
                    and held <= {"ReadWriteOnce", "ReadWriteOncePod"}
                    and certainly_several(role.count.value)
                ):
                    verdict = failed(
                        workload.id,
                        f"{placed(mount)} is mounted by {max(numbers(role.count.value))} pods ({quoted(role.count)}),"
                        f" but {placed(access)} lets only one {holder} mount it.",
                        at=mount,
                        also=((access, "access modes"), (role.count, "pods")),
                        remedy="Use a claim with ReadWriteMany, or one for each pod.",
                    )
                yield verdict or passed(workload.id)


@rule(
    "KUB016",
    "preemptible-nodes-without-resume",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no training pod is scheduled on preemptible nodes",
    profile="pedantic",
)
def preemptible_nodes_without_resume(job: Job) -> Iterator[Verdict]:
    """A job runs on spot or preemptible nodes, and its launch line names no checkpoint.

    What it checks: If a node selector requests spot or preemptible nodes, some argument of the program is about saving,
    loading, checkpoints, resuming or an output directory.

    Why it matters: The nodes go away with 30 seconds' to two minutes' notice. Without a checkpoint the job starts from
    scratch each time, and every lost hour is paid for.

    Example: `nodeSelector: {cloud.google.com/gke-spot: "true"}` and `torchrun train.py --lr 0.1`.

    Fix: Save checkpoints at an interval shorter than what may be lost, and resume from the last one at start.

    Known limits: A script may save and resume with no argument at all: a warning of medium confidence, a hint where the
    command line is not seen.
    """
    for workload in workloads(job):
        for role in workload.trainers:
            spot = [c for c in role.every("node_label") if any(_SPOT.fullmatch(text) for text in texts(c.value))]
            if not spot:
                continue
            yield _on_spot(workload, spot[0])


def _on_spot(workload: Workload, spot: Claim) -> Verdict:
    launches = [
        launch for _, scope in workload.launches() for launch in workload.job.launches if launch.id == scope.launch
    ]
    arguments = [argument for launch in launches for argument in launch.arguments]
    if not launches or any(argument is None for argument in arguments):
        return unknown(workload.id, "the command line of the program is not completely known", at=spot)
    if any(_RESUMES.search(argument) for argument in arguments if argument) or workload.job.about("checkpoint_written"):
        return passed(workload.id)
    return failed(
        workload.id,
        f"{quoted(spot)} schedules the job on nodes that may be reclaimed, and no argument of the program names"
        " a checkpoint.",
        at=spot,
        also=((launches[0], "starts without a checkpoint argument"),),
        remedy="Save checkpoints and resume from the last one, or use other nodes.",
    )
