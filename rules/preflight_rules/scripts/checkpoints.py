"""Who writes a checkpoint, and whether two ranks write the same one."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import quoted, texts, undecided
from preflight_rules.scripts.script_reading import is_run, on_several_nodes, stated, surely_on_one_node, surely_one_rank

_EACH_NODE = "the first rank of every node"
_EVERY = "every rank"


@rule(
    "CKP001",
    "checkpoint-written-on-every-node",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/DeepLearningExamples#1092", "huggingface/pytorch-image-models#693"),
)
def checkpoint_written_on_every_node(job: Job) -> Iterator[Verdict]:
    """A checkpoint is written by the first rank of every node, to one and the same path.

    What it checks:
        What guards the writing of a checkpoint is the global rank, not the local one, unless the path names the rank
        or node, or all launches stay on one node.

    Why it matters:
        On several nodes local rank 0 exists once on each. With a shared file system they write, rename and link the
        same files at the same time: FileExistsError, FileNotFoundError, or a checkpoint made of two halves.

    Example:
        `if local_rank == 0: torch.save(state, "output/checkpoint.pt")`.

    Fix:
        Ask for the global rank: `if dist.get_rank() == 0:`.

    Known limits:
        Whether the path is shared, and where nothing starts the script on how many nodes it runs, is not known from
        the files. On local disks one copy a node may be meant; then put the node into the path.

    Evidence:
        NVIDIA/DeepLearningExamples#1092, huggingface/pytorch-image-models#693.
    """
    met = False
    told: set[str] = set()
    for subject, written in stated(job, "checkpoint_written"):
        met = True
        guard = written.because[0] if written.because else written
        if _EACH_NODE not in texts(written.value) or surely_on_one_node(job, written):
            yield passed(subject)
        elif not is_run(job):
            yield unknown(subject, "nothing here runs this, on one node or several", at=written)
        elif written.span.path not in told:
            # A script that asks for the local rank at one place does so at all of them: it is told once.
            told.add(written.span.path)
            nodes = on_several_nodes(job, written)
            where = f"each of the {nodes} nodes has one" if nodes else "started on several nodes, each has one"
            yield failed(
                subject,
                f"{quoted(guard)} lets local rank 0 write {quoted(written)}; {where}, and all write the same path.",
                at=written,
                also=((guard, "true once on every node"),),
                remedy="Ask for the global rank (dist.get_rank() == 0, or RANK), or put the node rank into the path.",
            )
    if not met:
        yield not_applicable(job.name, "no script is seen to write a checkpoint")


@rule(
    "CKP003",
    "folder-made-by-every-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("allenai/allennlp#3841", "facebookresearch/ClassyVision#182", "PaddlePaddle/PaddleNLP#2660"),
)
def folder_made_by_every_rank(job: Job) -> Iterator[Verdict]:
    """Every rank makes the same folder, and fails if another was quicker.

    What it checks:
        In a script for several ranks `os.makedirs` and `mkdir` that every rank comes to have `exist_ok=True`.

    Why it matters:
        Between `if not os.path.exists(path)` and `os.makedirs(path)` another rank makes the folder: FileExistsError
        ends this rank, and the others wait for it. It happens on some runs only, mostly on the first.

    Example:
        `if not os.path.exists(out): os.makedirs(out)` in a script started by torchrun.

    Fix:
        `os.makedirs(out, exist_ok=True)`, best on rank 0 alone.

    Known limits:
        Only where the script itself shows that every rank comes there.

    Evidence:
        allenai/allennlp#3841, facebookresearch/ClassyVision#182, PaddlePaddle/PaddleNLP#2660.
    """
    met = False
    for subject, made in stated(job, "folder_made"):
        met = True
        if surely_one_rank(job, made):
            yield passed(subject)
        elif not is_run(job):
            yield unknown(subject, f"who runs {quoted(made)} is not known", at=made)
        else:
            yield failed(
                subject,
                f"{quoted(made)} stands under no condition on the rank: the rank that comes second ends with"
                " FileExistsError.",
                at=made,
                remedy="Give exist_ok=True, and let rank 0 alone make it.",
            )
    if not met:
        yield not_applicable(job.name, "no script is seen to make a folder on every rank")


@rule(
    "CKP002",
    "checkpoint-written-by-every-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html",),
)
def checkpoint_written_by_every_rank(job: Job) -> Iterator[Verdict]:
    """Every rank writes the same checkpoint file.

    What it checks:
        In a script for several ranks `torch.save` stands under a condition on the rank, or its path names the rank.

    Why it matters:
        All ranks write one file at the same time. It may be made of pieces of several writes, which only shows when it
        is loaded, and on a shared file system the writing takes as many times longer.

    Example:
        `torch.save(model.state_dict(), "model.pt")` at the end of a script that wraps its model in DDP.

    Fix:
        `if dist.get_rank() == 0:` in front of it.

    Known limits:
        Only where the script itself shows that every rank comes there; what a function's unknown caller guards stays
        silent.

    Evidence:
        PyTorch tutorial on DistributedDataParallel, saving and loading checkpoints.
    """
    met = False
    for subject, written in stated(job, "checkpoint_written"):
        met = True
        if _EVERY not in texts(written.value) or surely_one_rank(job, written):
            yield passed(subject)
        elif not is_run(job) or written.condition:
            reason = f"the branch `{written.condition}`" if written.condition else "who runs this"
            yield unknown(subject, f"whether every rank comes to {quoted(written)} is left open: {reason}", at=written)
        else:
            yield failed(
                subject,
                f"{quoted(written)} stands under no condition on the rank: every rank writes the same file at once.",
                at=written,
                remedy="Write it on one rank (if dist.get_rank() == 0:), or put the rank into the path.",
            )
    if not met:
        yield not_applicable(job.name, "no script is seen to write a checkpoint")


@rule(
    "CKP004",
    "checkpoint-read-where-nobody-wrote-it",
    severity=Severity.WARNING,
    evidence=("https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",),
)
def checkpoint_read_where_nobody_wrote_it(job: Job) -> Iterator[Verdict]:
    """Rank 0 writes a checkpoint to the disk of its own node, and ranks on other nodes read it.

    What it checks:
        In a script that runs on several nodes, a file below /tmp, /var/tmp or /dev/shm that `torch.save` writes on
        rank 0 alone is not read by every rank.

    Why it matters:
        The file is there on the first node only. The ranks of all others stop with FileNotFoundError, or go on with
        what an earlier run left behind, and the first node waits for them.

    Example:
        `if rank == 0: torch.save(state, "/tmp/ckpt.pt")`, `dist.barrier()`, `torch.load("/tmp/ckpt.pt")`.

    Fix:
        A folder on a shared file system, or read it on rank 0 and broadcast it.

    Known limits:
        A site whose /tmp is shared, and paths that only run time knows.

    Evidence:
        PyTorch DDP tutorial, which saves on rank 0 and loads on all ranks, of one node.
    """
    met = False
    for subject, read in stated(job, "local_checkpoint_read"):
        met = True
        nodes = on_several_nodes(job, read)
        wrote = read.because[0]
        open_end = undecided(subject, (read,))
        if surely_on_one_node(job, read):
            yield passed(subject)
        elif open_end is not None or not nodes:
            yield open_end or unknown(subject, f"on how many nodes {quoted(read)} runs is not known", at=read)
        else:
            yield failed(
                subject,
                f"{quoted(read)} reads on all {nodes} nodes what {quoted(wrote)} (line {wrote.span.line}) writes on the"
                " disk of the first one alone.",
                at=read,
                also=((wrote, "rank 0 alone"),),
                remedy="Put it into a folder that all nodes share, or read it on rank 0 and broadcast it.",
            )
    if not met:
        yield not_applicable(job.name, "no script hands a checkpoint from rank 0 to all through a local disk")
