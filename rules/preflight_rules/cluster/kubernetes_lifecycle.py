"""How pods end and come back: restart policy, indices, volumes of one node, nodes that may be taken away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.cluster.workloads import Workload, workloads
from preflight_rules.reading import certainly_several, numbers, placed, quoted, texts, undecided

#: Labels of nodes that their owner takes back at will.
_SPOT = lazy_pattern(
    r"cloud\.google\.com/gke-(?:spot|preemptible|provisioning)=(?:true|spot)|eks\.amazonaws\.com/capacityType=SPOT"
    r"|karpenter\.sh/capacity-type=spot|kubernetes\.azure\.com/scalesetpriority=spot|(?:.*/)?(?:lifecycle|capacity)=.*spot"
    r"|(?:.*/)?(?:spot|preemptible)=true",
    re.IGNORECASE,
)
_RESUMES = lazy_pattern(r"resume|checkpoint|ckpt|save|restore|load|snapshot|output[_-]dir", re.IGNORECASE)
_ALLOWED = frozenset(("Never", "OnFailure"))


@rule(
    "KUB013",
    "job-restart-policy-rejected",
    severity=Severity.ERROR,
    fix="unsafe",
    profile="gate",
    evidence=("https://kubernetes.io/docs/concepts/workloads/controllers/job/",),
)
def job_restart_policy_rejected(job: Job) -> Iterator[Verdict]:
    """A Job's pods have a restart policy that Kubernetes refuses.

    What it checks:
        The pod template of a `batch/v1` Job says `restartPolicy: Never` or `OnFailure`.

    Why it matters:
        The API server rejects any other Job; `Always` is also what a pod template has when nothing is said.

    Example:
        A Job that trains, without `restartPolicy`.

    Fix:
        `restartPolicy: Never`, with `backoffLimit` for the retries.

    Known limits:
        A missing policy may come from an overlay or a template, so it is a warning.

    Evidence:
        Kubernetes documentation, "Jobs" ("Only a RestartPolicy equal to Never or OnFailure is allowed").
    """
    met = False
    for workload in workloads(job):
        if (workload.group, workload.kind) not in (("batch", "Job"), ("batch", "CronJob")):
            continue
        for role in workload.roles:
            met = True
            said = role.say("restart_policy")
            if any(isinstance(claim.value, Unresolved) for claim in said):
                yield unknown(workload.id, f"{quoted(said[0])} is filled in later", at=said[0])
            elif not said:
                yield failed(
                    workload.id,
                    "The pod template has no restartPolicy and so `Always`, which a Job may not have: the API server"
                    " rejects it.",
                    at=workload.head,
                    remedy="Add `restartPolicy: Never` to the pod's spec.",
                    severity=Severity.WARNING,
                )
            elif not _ALLOWED & set(texts(said[0].value)):
                yield failed(
                    workload.id,
                    f"{quoted(said[0])} is refused for a Job: expected Never or OnFailure.",
                    at=said[0],
                    remedy="Write `restartPolicy: Never`.",
                    # Unsafe: whether failed pods shall be started again is for the user to say.
                    fix=mend("write Never", reworded(said[0], texts(said[0].value)[0], "Never"), safe=False)
                    if texts(said[0].value)
                    else None,
                )
            else:
                yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no Job of Kubernetes itself starts ranks")


@rule(
    "KUB014",
    "completion-index-without-indexed-mode",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/",),
)
def completion_index_without_indexed_mode(job: Job) -> Iterator[Verdict]:
    """A Job's ranks take their number from an index that its pods do not have.

    What it checks:
        A Job whose launch line uses JOB_COMPLETION_INDEX has `completionMode: Indexed`.

    Why it matters:
        Without it the variable is empty in every pod: all claim the same rank, or the launcher stops at an empty
        number.

    Example:
        `torchrun --node_rank=$JOB_COMPLETION_INDEX` in a Job with `parallelism: 4` and no completionMode.

    Fix:
        `completionMode: Indexed`, and a headless service so that pod 0 has a name.

    Known limits:
        Only launch lines that stand in the manifest.

    Evidence:
        Kubernetes documentation, "Indexed Job for parallel processing with static work assignment".
    """
    met = False
    for workload in workloads(job):
        modes = workload.say("completion_mode")
        users = [claim for _, scope in workload.launches() if (claim := _uses_index(job, scope.launch)) is not None]
        if not modes or not users:
            continue
        met = True
        open_end = undecided(workload.id, modes)
        if open_end is not None:
            yield open_end
        elif "Indexed" in texts(modes[0].value):
            yield passed(workload.id)
        else:
            yield failed(
                workload.id,
                f"{quoted(users[0])} needs an index, and the Job's pods have none: completionMode is"
                f" {texts(modes[0].value)[0]}.",
                at=users[0],
                also=((modes[0], "no `completionMode: Indexed`"),),
                remedy="Add `completionMode: Indexed` to the Job's spec.",
            )
    if not met:
        yield not_applicable(job.name, "no Job's launch line uses a completion index")


def _uses_index(job: Job, launch: str) -> Claim | None:
    ranks = [claim for claim in job.about("node_rank") if claim.scope.launch == launch]
    return next((claim for claim in ranks if "JOB_COMPLETION_INDEX" in claim.spelling), None)


@rule(
    "KUB015",
    "single-node-volume-on-several-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes",),
)
def single_node_volume_on_several_pods(job: Job) -> Iterator[Verdict]:
    """Pods of one job on several nodes mount a volume that only one node, or one pod, may mount.

    What it checks:
        A persistent volume claim that stands in the same files with ReadWriteOnce or ReadWriteOncePod is not mounted
        for writing by a role of several pods.

    Why it matters:
        The pods on the second node stay in ContainerCreating ("Multi-Attach error"), while the first ones hold their
        GPUs and wait.

    Example:
        `accessModes: [ReadWriteOnce]` and a Worker with `replicas: 4` that mounts the claim.

    Fix:
        A storage class with ReadWriteMany, or a volume of its own for each pod.

    Known limits:
        Pods that all fit on one node can share a ReadWriteOnce volume.

    Evidence:
        Kubernetes documentation, "Persistent volumes: access modes".
    """
    met = False
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
                met = True
                open_end = undecided(workload.id, (access, role.count))
                held = {str(mode) for item in access.alternatives if isinstance(item, tuple) for mode in item}
                holder = "pod" if "ReadWriteOncePod" in held else "node"
                if open_end is not None:
                    yield open_end
                elif held and held <= {"ReadWriteOnce", "ReadWriteOncePod"} and certainly_several(role.count.value):
                    yield failed(
                        workload.id,
                        f"{placed(mount)} is mounted by {max(numbers(role.count.value))} pods ({quoted(role.count)}),"
                        f" but {placed(access)} lets only one {holder} mount it.",
                        at=mount,
                        also=((access, "access modes"), (role.count, "pods")),
                        remedy="Use a claim with ReadWriteMany, or one for each pod.",
                    )
                else:
                    yield passed(workload.id)
    if not met:
        yield not_applicable(job.name, "no pod mounts a claim whose access modes are in these files")


@rule(
    "KUB016",
    "preemptible-nodes-without-resume",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms",
        "https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)
def preemptible_nodes_without_resume(job: Job) -> Iterator[Verdict]:
    """A job is sent to nodes that may be taken away, and its launch line names no checkpoint.

    What it checks:
        Where a node selector asks for spot or preemptible nodes, some argument of the program speaks of saving,
        loading, checkpoints, resuming or an output directory.

    Why it matters:
        The nodes go away with 30 seconds' to two minutes' notice. Without a checkpoint the job starts again from
        nothing each time, and every lost hour is paid for.

    Example:
        `nodeSelector: {cloud.google.com/gke-spot: "true"}` and `torchrun train.py --lr 0.1`.

    Fix:
        Save checkpoints at an interval shorter than what may be lost, and resume from the last one at start.

    Known limits:
        A script may save and resume with no argument at all: a warning of medium confidence, a hint where the
        command line is not seen.

    Evidence:
        GKE documentation, "Spot VMs"; torchrun documentation ("checkpoint").
    """
    met = False
    for workload in workloads(job):
        for role in workload.trainers:
            spot = [c for c in role.every("node_label") if any(_SPOT.fullmatch(text) for text in texts(c.value))]
            if not spot:
                continue
            met = True
            yield _on_spot(workload, spot[0])
    if not met:
        yield not_applicable(job.name, "no training pod is sent to preemptible nodes")


def _on_spot(workload: Workload, spot: Claim) -> Verdict:
    launches = [
        launch for _, scope in workload.launches() for launch in workload.job.launches if launch.id == scope.launch
    ]
    arguments = [argument for launch in launches for argument in launch.arguments]
    if not launches or any(argument is None for argument in arguments):
        return unknown(workload.id, "how the program is started is not seen in full", at=spot)
    if any(_RESUMES.search(argument) for argument in arguments if argument) or workload.job.about("checkpoint_written"):
        return passed(workload.id)
    return failed(
        workload.id,
        f"{quoted(spot)} sends the job to nodes that may be taken away, and no argument of the program speaks of a"
        " checkpoint.",
        at=spot,
        also=((launches[0], "starts without one"),),
        remedy="Save checkpoints and resume from the last one, or use other nodes.",
    )
