"""Checkpoints and folders: the ranks that write them, the nodes that read them, and how often they are written."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import LaunchQuestion, each_claim, launches_with
from preflight_rules.launches import (
    certainly_several,
    definitely_on_one_node,
    definitely_one_rank,
    nodes_spanned,
    not_on_several_ranks,
    on_several_nodes,
    runs_program,
    subject_claims,
)
from preflight_rules.sizes.parallel_sizes import setups

_FIRST_RANK_OF_EACH_NODE = "the first rank of every node"
_EVERY_RANK = "every rank"


@rule(
    "CKP001",
    "checkpoint-written-on-every-node",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script writes a checkpoint",
)
def checkpoint_written_on_every_node(job: Job) -> Iterator[Verdict]:
    """The first rank of every node writes a checkpoint to the same path.

    What it checks: The condition for writing a checkpoint uses the global rank, not the local one, unless the path
    names the rank or node, or all launches run on one node.

    Why it matters: On several nodes, each node has a local rank 0. With a shared file system they write, rename and
    link the same files at the same time: FileExistsError, FileNotFoundError, or a checkpoint mixed from two writes.

    Example: `if local_rank == 0: torch.save(state, "output/checkpoint.pt")`.

    Fix: Use the global rank: `if dist.get_rank() == 0:`.

    Known limits: The files do not show whether the path is shared, nor the number of nodes if no launch runs the
    script. With local disks, one copy per node may be intended; then put the node into the path.
    """
    reported_paths: set[str] = set()
    for subject, write in subject_claims(job, "checkpoint_written"):
        guard = write.because[0] if write.because else write
        if _FIRST_RANK_OF_EACH_NODE not in texts(write.value) or definitely_on_one_node(job, write):
            yield passed(subject)
        elif not runs_program(job):
            yield unknown(subject, "no launch runs this script", at=write)
        elif write.span.path not in reported_paths:
            # A script that uses the local rank in one place does so in all: one finding is enough.
            reported_paths.add(write.span.path)
            nodes = on_several_nodes(job, write)
            node_text = (
                f"each of the {nodes} nodes has a local rank 0"
                if nodes
                else ("if there are several nodes, each has a local rank 0")
            )
            yield failed(
                subject,
                f"{quoted(guard)} makes local rank 0 write {quoted(write)}; {node_text}, and all write to the same "
                "path.",
                at=write,
                also=((guard, "true once on every node"),),
                remedy="Use the global rank (dist.get_rank() == 0, or RANK), or put the node rank into the path.",
            )


@rule(
    "CKP003",
    "folder-made-by-every-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script creates a folder on every rank",
)
def folder_made_by_every_rank(job: Job) -> Iterator[Verdict]:
    """Every rank creates the same folder and fails if another rank was faster.

    What it checks: In a script for several ranks, `os.makedirs` and `mkdir` calls that every rank reaches have
    `exist_ok=True`.

    Why it matters: Between `if not os.path.exists(path)` and `os.makedirs(path)` another rank creates the folder:
    FileExistsError ends this rank, and the others wait for it. This happens only in some runs, mostly in the first.

    Example: `if not os.path.exists(out): os.makedirs(out)` in a script started by torchrun.

    Fix: `os.makedirs(out, exist_ok=True)`, preferably only on rank 0.

    Known limits: Reported only if the script itself shows that every rank reaches the call.
    """
    for subject, creation in subject_claims(job, "folder_made"):
        yield not_on_several_ranks(job, subject, creation, f"which ranks run {quoted(creation)} is unknown") or failed(
            subject,
            f"{quoted(creation)} is not under a condition on the rank: if two ranks run it at the same time, one "
            "fails with FileExistsError.",
            at=creation,
            remedy="Add exist_ok=True, or create it only on rank 0.",
        )


#: The effect and remedy of a race at a path, by kind of claim.
_RACES = {
    "removed by every rank": (
        "runs on every rank: one removes files while another lists them, which fails with FileNotFoundError",
        "Remove it only on rank 0, and add a barrier afterwards.",
    ),
    "removed too early": (
        "runs on one rank only, and nothing before it waits for the ranks that may still read the files",
        "Add a barrier before it.",
    ),
    "written by one rank": (
        "runs on one rank only, and the others read the result without waiting",
        "Add a barrier after it.",
    ),
    "made by one rank": (
        "runs on one rank only, and the others write to the folder without waiting",
        "Let every rank create the folder with exist_ok=True, or add a barrier after it.",
    ),
}


@rule(
    "CKP005",
    "path-used-while-another-rank-changes-it",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script removes or creates a path that other ranks use",
)
def path_used_while_another_rank_changes_it(job: Job) -> Iterator[Verdict]:
    """One rank removes or creates a path while other ranks use it.

    What it checks: In a program for several ranks, not every rank calls `shutil.rmtree` on the same folder; rank 0
    waits for the others before it removes a file that every rank has read; and if only rank 0 creates a folder, or
    writes or downloads a file, the others wait before they write or read there.

    Why it matters: The ranks race. The slower rank finds that the file or folder no longer exists, or does not exist
    yet: it stops with FileNotFoundError, and the others wait for it. This happens only in some runs.

    Example: `if overwrite: shutil.rmtree(checkpoint_dir)` in a script started by torchrun.

    Fix: `if rank == 0: shutil.rmtree(...)`, then `dist.barrier()`.

    Known limits: Calls between the two whose names suggest that they wait, save or train count as a barrier.
    """
    for subject, change in subject_claims(job, "shared_path"):
        kind = next(iter(texts(change.value)), "")
        if not change.alternatives:
            yield unknown(
                subject, f"whether other ranks read what {quoted(change)} writes is known only at run time", at=change
            )
            continue
        if verdict := not_on_several_ranks(job, subject, change, f"which ranks run {quoted(change)} is unknown"):
            yield verdict
            continue
        fault, remedy = _RACES[kind]
        yield failed(
            subject,
            f"{quoted(change)} {fault}.",
            at=change,
            also=tuple((claim, "used here by every rank") for claim in change.because),
            remedy=remedy,
        )


@rule(
    "CKP002",
    "checkpoint-written-by-every-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script writes a checkpoint",
)
def checkpoint_written_by_every_rank(job: Job) -> Iterator[Verdict]:
    """Every rank writes the same checkpoint file.

    What it checks: In a script for several ranks, `torch.save` is under a condition on the rank, or its path names the
    rank.

    Why it matters: All ranks write one file at the same time. It may contain parts of several writes, which shows only
    when it is loaded, and on a shared file system writing takes many times longer.

    Example: `torch.save(model.state_dict(), "model.pt")` at the end of a script that wraps its model in DDP.

    Fix: `if dist.get_rank() == 0:` before it.

    Known limits: Reported only if the script itself shows that every rank reaches it; a call in a function whose
    callers are unknown is not reported.
    """
    for subject, write in subject_claims(job, "checkpoint_written"):
        if _EVERY_RANK not in texts(write.value) or definitely_one_rank(job, write):
            yield passed(subject)
        elif not runs_program(job) or write.condition:
            reason = f"the branch `{write.condition}`" if write.condition else "which ranks run this"
            yield unknown(subject, f"whether every rank runs {quoted(write)} is unknown: {reason}", at=write)
        else:
            yield failed(
                subject,
                f"{quoted(write)} is not under a condition on the rank: all ranks write the same file at the same "
                "time.",
                at=write,
                remedy="Write it on only one rank (if dist.get_rank() == 0:), or put the rank into the path.",
            )


@rule(
    "CKP006",
    "weights-of-wrapped-model-read-into-bare-one",
    severity=Severity.ERROR,
    otherwise="no script saves and loads weights of a model that it wraps",
)
def weights_of_wrapped_model_read_into_bare_one(job: Job) -> Iterator[Verdict]:
    """Weights are saved from a wrapped model and loaded into an unwrapped model, or vice versa.

    What it checks: A file that one launch or line writes with `torch.save(model.state_dict(), path)` and another reads
    with `load_state_dict(torch.load(path))` has the keys of both models: either both are wrapped in
    DistributedDataParallel or DataParallel, or neither is.

    Why it matters: The wrapper puts `module.` before each key. load_state_dict stops with missing and unexpected keys
    in every rank, at the start of the second stage or when the job resumes.

    Example: `torch.save(ddp.state_dict(), "warm.pt")`, and in the next launch `net.load_state_dict(torch.load(
    "warm.pt"))` before `DDP(net)`.

    Fix: Save `ddp.module.state_dict()`.

    Known limits: Paths known only at run time are not compared. If the load is under a condition, such as for resuming,
    the finding is a warning. A script that handles the prefix, or passes strict=False, is not judged.
    """
    saves = [claim for claim in distinct(job.about("saved_weights")) if claim.because]
    for subject, _, launch, load in each_claim(job, "loaded_weights"):
        paths = {posixpath.normpath(text) for text in texts(load.value)}
        writes = [c for c in saves if paths & {posixpath.normpath(text) for text in texts(c.value)}]
        if not writes:
            yield undecided(subject, (load,), launch) or passed(subject)
            continue
        written_kinds = {texts(claim.because[0].value) for claim in writes}
        read_kind = texts(load.because[0].value)
        if read_kind in written_kinds:
            yield passed(subject)
            continue
        key_text, model = ("begin with", "bare") if read_kind == ("bare",) else ("lack", "wrapped")
        yield failed(
            subject,
            f"{quoted(load)} reads the file that {placed(writes[0])} writes, whose keys {key_text} the wrapper's "
            f"prefix `module.`: the {model} model accepts none of them.",
            at=load,
            also=((writes[0], "written here"),),
            remedy="Save model.module.state_dict(), and load it before the model is wrapped.",
            severity=Severity.WARNING if load.condition else None,
        )


@rule(
    "CKP004",
    "checkpoint-read-where-nobody-wrote-it",
    severity=Severity.WARNING,
    otherwise="no script passes a file from rank 0 to all ranks through a local disk",
)
def checkpoint_read_where_nobody_wrote_it(job: Job) -> Iterator[Verdict]:
    """Rank 0 writes a file to a local disk, but ranks on other nodes read it.

    What it checks: In a program that runs on several nodes, a file on a disk of the node (/tmp, /dev/shm, /raid,
    /local_nvme ...) that only rank 0 writes is not read by the ranks of other nodes.

    Why it matters: The file exists only on the first node. The ranks of all others stop with FileNotFoundError, or
    continue with a file of an earlier run, and the first node waits for them.

    Example: `if rank == 0: torch.save(state, "/tmp/ckpt.pt")`, `dist.barrier()`, `torch.load("/tmp/ckpt.pt")`.

    Fix: Use a folder on a shared file system, or read the file on rank 0 and broadcast it.

    Known limits: A shared /tmp is not recognized; paths known only at run time are not judged.
    """
    for subject, read in subject_claims(job, "local_checkpoint_read"):
        nodes = on_several_nodes(job, read)
        write = read.because[0]
        undecided_verdict = undecided(subject, (read,))
        if definitely_on_one_node(job, read):
            yield passed(subject)
        elif undecided_verdict is not None or not nodes:
            yield undecided_verdict or unknown(
                subject, f"the number of nodes that run {quoted(read)} is unknown", at=read
            )
        else:
            yield failed(
                subject,
                f"{quoted(read)} reads a file on all {nodes} nodes, but {quoted(write)} (line {write.span.line}) "
                "writes it only to the first node's disk.",
                at=read,
                also=((write, "rank 0 alone"),),
                remedy="Put it in a folder that all nodes share, or read it on rank 0 and broadcast it.",
            )


#: Usual names of partitions whose jobs may be preempted.
_PREEMPTIBLE = re.compile(
    r"(?:^|[-_.])(?:preempt(?:ible|able|ed)?|spot|scaveng(?:e|er)?|interruptible|lowprio)(?:$|[-_.])"
)
_SPOT_LABELS = (
    re.compile(r"cloud\.google\.com/gke-(?:spot|preemptible)=true"),
    re.compile(r"eks\.amazonaws\.com/capacityType=SPOT"),
    re.compile(r"karpenter\.sh/capacity-type=spot"),
    re.compile(r"kubernetes\.azure\.com/scalesetpriority=spot"),
)
#: Words of a command line for a checkpoint to resume from.
_RESUME_WORDS = re.compile(r"resum|restor|load|ckpt|checkpoint|restart|auto_|requeue|snapshot|--save", re.IGNORECASE)


@rule(
    "FLT007",
    "nothing-saved-before-the-end",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch sets both its number of steps and its checkpoint interval",
)
def nothing_saved_before_the_end(job: Job) -> Iterator[Verdict]:
    """The interval between checkpoints is longer than the whole training.

    What it checks: Megatron-LM's `--save-interval` is at most `--train-iters`, and gpt-neox's checkpoint_factor at most
    train_iters.

    Why it matters: Any failure before the last step loses everything. On 16,384 GPUs, Meta saw a failure every three
    hours.

    Example: `--train-iters 5000 --save-interval 10000`.

    Fix: Save at an interval no longer than the work that you can afford to lose.

    Known limits: On one node, or on an unknown number of nodes, the finding is informational.
    """
    for setup in setups(job):
        interval, steps = setup.claims("save_interval"), setup.claims("train_steps")
        if not interval or not steps:
            continue
        verdict = undecided(setup.subject, (*interval, *steps), setup.launch)
        save_interval, train_steps = setup.number("save_interval"), setup.number("train_steps")
        if verdict is None and save_interval and train_steps and save_interval > train_steps > 1000:
            is_multi_node = setup.launch is not None and certainly_several(nodes_spanned(job, setup.launch)[0])
            verdict = failed(
                setup.subject,
                f"{quoted(interval[0])} is longer than the training ({placed(steps[0])}): nothing is saved before "
                "the end.",
                at=interval[0],
                also=((steps[0], "the length of the whole run"),),
                remedy="Choose an interval no longer than the amount of work that you can afford to lose.",
                severity=None if is_multi_node else Severity.INFO,
            )
        yield verdict or passed(setup.subject)


@rule(
    "FLT008",
    "preemptible-nodes-without-resuming",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no file requests preemptible nodes",
    each=launches_with(lambda job, scope: _preemptible_claims(job, scope)[:1]),
)
def preemptible_nodes_without_resuming(question: LaunchQuestion) -> Verdict | None:
    """The job runs on preemptible nodes, but its launch names no checkpoint to resume from.

    What it checks: If a partition is called preempt, spot, scavenge ..., or a label selects spot nodes, the launch's
    known arguments name a checkpoint to load or resume from.

    Why it matters: The job is requeued with the same command line and starts over each time. Training that takes longer
    than the usual time between two preemptions never finishes.

    Example: `#SBATCH --partition=preempt` and `torchrun train.py --epochs 90`.

    Fix: Save often, and make the launch resume from the newest checkpoint.

    Known limits: A program that finds its last checkpoint itself is correct, but reported.
    """
    claims, launch = question.claims, question.of.launch
    if _may_resume(launch) or question.of.job.setting("hand_off_signal", launch.scope):
        return None
    return failed(
        question.subject,
        f"{quoted(claims[0])} requests preemptible nodes, but the launch names no checkpoint to resume from.",
        at=claims[0],
        also=((launch, "starts from scratch"),),
        remedy="Save often, and let the launch resume from the newest checkpoint.",
        severity=None if launch.program else Severity.INFO,
    )


def _preemptible_claims(job: Job, scope: Scope) -> tuple[Claim, ...]:
    claims = [
        claim
        for claim in job.setting("partition", scope)
        if any(_PREEMPTIBLE.search(text.lower()) for text in texts(claim.value)) or not claim.alternatives
    ]
    claims.extend(
        claim
        for claim in job.about("node_label")
        if any(pattern.fullmatch(text) for text in texts(claim.value) for pattern in _SPOT_LABELS)
    )
    return tuple(claims)


def _may_resume(launch: Launch) -> bool:
    return any(word is None or _RESUME_WORDS.search(word) for word in launch.arguments)


@rule(
    "BAT021",
    "training-length-given-twice",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no launch sets a training length for Megatron-LM",
)
def training_length_given_twice(job: Job) -> Iterator[Verdict]:
    """Megatron-LM is given the training length in both steps and samples.

    What it checks: `--train-iters` and `--train-samples` are not given together.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: `--train-iters 500000 --train-samples 300000000`.

    Fix: Keep one; with `--rampup-batch-size` it must be `--train-samples`.

    Known limits: Only Megatron-LM's own option names are recognized.
    """
    for setup in setups(job):
        steps, samples = setup.claims("train_steps"), setup.claims("train_samples")
        if setup.source != "arguments" or not (steps or samples):
            continue
        verdict = undecided(setup.subject, (*steps, *samples), setup.launch)
        if verdict is None and steps and samples and setup.has("--train-iters") and numbers(job_value(samples)):
            verdict = failed(
                setup.subject,
                f"{quoted(steps[0])} and {placed(samples[0])} both set the training length: Megatron-LM accepts only"
                f" one.",
                at=steps[0],
                also=((samples[0], "the other"),),
                remedy="Keep either --train-iters or --train-samples.",
                severity=Severity.WARNING if setup.has("--deepspeed") else None,
            )
        yield verdict or passed(setup.subject)
