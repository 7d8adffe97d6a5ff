"""Lightning: precisions and strategies that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted

#: What each family of strategies takes (`_PRECISION_INPUT` in lightning/fabric/plugins/precision/{deepspeed,fsdp}.py,
#: `mp_precision_supported` in fabric/connector.py), in lightning 2.6.6.
_SUPPORTED_PRECISIONS = {
    "deepspeed": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "fsdp": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "modelparallel": ("32-true", "16-true", "bf16-true", "bf16-mixed"),
}
#: New in 2.1.0; 2.0.0 to 2.0.9 refuse them with DeepSpeed.
_SINCE_2_1 = ("16-true", "bf16-true")
#: Older spellings of the same (lightning/fabric/connector.py, `_convert_precision_to_unified_args`).
_OLD = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
_VERSION = re.compile(r"(?:lightning|pytorch-lightning)(?:==|>=|~=|>)(\d{1,9})\.(\d{1,9})")


@rule(
    "LIT001",
    "lightning-precision-not-for-strategy",
    severity=Severity.ERROR,
    otherwise="no script passes both a strategy and a precision to Lightning",
)
def lightning_precision_not_for_strategy(job: Job) -> Iterator[Verdict]:
    """Lightning is given a precision that its strategy does not support.

    What it checks: precision and strategy of one `Fabric(...)` or `Trainer(...)`: DeepSpeed and FSDP accept 32-true,
    16-true, bf16-true, 16-mixed and bf16-mixed; model parallelism does not accept 16-mixed.

    Why it matters: Lightning fails at startup: "precision=... is not supported in DeepSpeed".

    Example: `Fabric(strategy="deepspeed", precision="64-true")`, or before Lightning 2.1 with `precision="bf16-true"`.

    Fix: Use one of the precisions that the message lists: bf16-mixed works with all of them in every version.

    Known limits: 16-true and bf16-true with DeepSpeed are new in Lightning 2.1, so they are a warning, and not reported
    if the job's files pin 2.1 or a later version. Precision plugins are not checked.
    """
    strategies = {claim.span.path: claim for claim in job.about("lightning_strategy")}
    for precision in job.about("lightning_precision"):
        strategy = strategies.get(precision.span.path)
        several = sum(claim.span.path == precision.span.path for claim in job.about("lightning_strategy")) > 1
        if strategy is None or several:
            continue
        undecided_verdict = undecided(precision.span.path, (precision, strategy))
        yield undecided_verdict if undecided_verdict is not None else _judged(job, precision, strategy)


def _judged(job: Job, precision: Claim, strategy: Claim) -> Verdict:
    names = [_OLD.get(text, text) for text in texts(precision.value)]
    family = next(iter(texts(strategy.value)), "")
    takes = _SUPPORTED_PRECISIONS.get(family, ())
    subject = precision.span.path
    if not takes or not names:
        return passed(subject)
    if all(name not in takes for name in names):
        return failed(
            subject,
            f"{quoted(precision)} is not supported with {placed(strategy)}: Lightning fails at startup.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy=f"Use one of {', '.join(takes)}.",
        )
    if family == "deepspeed" and all(name in _SINCE_2_1 for name in names) and not _is_new(job):
        return failed(
            subject,
            f"{quoted(precision)} with {placed(strategy)} requires Lightning 2.1; earlier versions stop with 'not "
            "supported in DeepSpeed', and no file of the job pins a version.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy="Pin lightning>=2.1, or use bf16-mixed, which every version supports.",
            severity=Severity.WARNING,
        )
    return passed(subject)


def _is_new(job: Job) -> bool:
    """Whether a file of the job requests Lightning 2.1 or later."""
    for claim in job.about("package"):
        for text in texts(claim.value):
            match = _VERSION.match(text)
            if match is not None and (int(match[1]), int(match[2])) >= (2, 1):
                return True
    return False


@rule("LIT002", "lightning-accumulation-in-deepspeed-file", severity=Severity.ERROR)
def lightning_accumulation_in_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """Lightning's Trainer is given a DeepSpeed configuration with gradient_accumulation_steps.

    What it checks: A DeepSpeed configuration that a script gives to `DeepSpeedStrategy(config=...)` beside a `Trainer`
    has no gradient_accumulation_steps.

    Why it matters: The Trainer sets the key itself, from accumulate_grad_batches, and stops if it is already present:
    "Do not set `gradient_accumulation_steps` in the DeepSpeed config".

    Example: `Trainer(strategy=DeepSpeedStrategy(config="ds.json"))` with `"gradient_accumulation_steps": 4` in ds.json.

    Fix: Remove the key and give `accumulate_grad_batches` to the Trainer.

    Known limits: Fabric leaves the key alone, and so does this rule.
    """
    trainers = [
        claim
        for claim in job.about("training_framework")
        if {"lightning", "pytorch_lightning"} & set(claim.alternatives) and "Trainer(" in claim.spelling
    ]
    strategies = [claim for claim in job.about("lightning_strategy") if claim.alternatives == ("deepspeed",)]
    steps = [claim for claim in job.about("gradient_accumulation_steps") if claim.source == "deepspeed"]
    if not trainers or not strategies:
        yield not_applicable(job.name, "no Lightning Trainer with DeepSpeed")
        return
    for claim in strategies:
        if undecided_verdict := undecided(claim.span.path, (claim,)):
            yield undecided_verdict
            return
    if not steps:
        yield passed(trainers[0].span.path)
        return
    yield failed(
        trainers[0].span.path,
        f"{placed(steps[0])} is in the DeepSpeed configuration: Lightning's Trainer sets it itself and stops.",
        at=steps[0],
        also=((strategies[0], "the strategy"),),
        remedy="Remove gradient_accumulation_steps and give accumulate_grad_batches to the Trainer.",
    )


@rule(
    "LIT009",
    "lightning-nodes-not-allocated",
    severity=Severity.ERROR,
    otherwise="srun starts no Lightning Trainer for several nodes",
)
def lightning_nodes_not_allocated(job: Job) -> Iterator[Verdict]:
    """A Lightning Trainer waits for several nodes, and the batch script asks for no number of nodes.

    What it checks: Where srun starts a Trainer or Fabric with `num_nodes` above 1, the header of the batch script (or
    srun) gives a number of nodes or of tasks.

    Why it matters: sbatch allocates one node where neither `--nodes` nor `--ntasks` is given, also with
    `--ntasks-per-node`. The ranks of the first node wait for the others until the rendezvous times out.

    Example: `#SBATCH --ntasks-per-node=4` and `Trainer(devices=4, num_nodes=2)`.

    Fix: Add `#SBATCH --nodes=2`.

    Known limits: A script whose header is completed by options of sbatch on the command line is reported, too.
    """
    header = [claim for claim in job.about("batch_directive") if claim.source == "slurm"]
    for launch in job.launches:
        asked = [claim for claim in job.requiring("nodes", launch.scope) if claim.source == "lightning"]
        if launch.launcher != "srun" or not asked or not header:
            continue
        given = [*job.setting("nodes", launch.scope), *job.setting("tasks", launch.scope)]
        counts = numbers(job_value(asked))
        if undecided_verdict := undecided(launch.id, asked, launch):
            yield undecided_verdict
        elif given or not counts or max(counts) < 2:
            yield passed(launch.id)
        elif min(counts) < 2:
            yield unknown(launch.id, f"{quoted(asked[0])} may ask for one node", at=asked[0])
        else:
            yield failed(
                launch.id,
                f"{quoted(asked[0])} makes Lightning wait for {counts[0]} nodes, but the batch script asks for no"
                " number of nodes, so that it gets one.",
                at=asked[0],
                also=((header[0], "the header"), (launch, "started here")),
                remedy=f"Add `#SBATCH --nodes={counts[0]}`.",
                waits_at="rendezvous",
            )


#: Names of a job in which Lightning ignores Slurm (`SLURMEnvironment.detect` of lightning 2.6.6).
_INTERACTIVE = frozenset(("job-name", name) for name in ("bash", "interactive"))


@rule(
    "LIT011",
    "lightning-started-once-in-an-allocation",
    severity=Severity.ERROR,
    otherwise="no batch script starts a Lightning Trainer by python alone",
)
def lightning_started_once_in_an_allocation(job: Job) -> Iterator[Verdict]:
    """A batch script starts a Lightning Trainer for several nodes or tasks by python, without srun.

    What it checks: Where the header of a batch script of Slurm asks for several nodes or tasks, and the Trainer of a
    program has `num_nodes` or `devices` above 1, srun starts the program.

    Why it matters: sbatch runs the script on the first node alone. Lightning sees Slurm's variables, expects that srun
    has started every rank, and waits for the others until the rendezvous times out.

    Example: `#SBATCH --nodes=4 --ntasks-per-node=8` and `python train.py` with `Trainer(devices=8, num_nodes=4)`.

    Fix: `srun python train.py`.

    Known limits: Only sizes that are written in the program are known. On one node Lightning starts the ranks itself
    where it does not look at Slurm: with a job name of `bash` or `interactive`, without SLURM_NTASKS, or as a plugin
    says.
    """
    header = [claim for claim in job.about("batch_directive") if claim.source == "slurm"]
    tasks = [claim for claim in job.setting("tasks") if claim.source == "slurm"]
    named = [claim for claim in header if _INTERACTIVE.intersection(claim.alternatives)]
    for plain in distinct(job.about("plain_program")) if header else ():
        nodes, devices = (
            [claim for claim in job.about(f"setting.lightning.{key}") if claim.span.path in texts(plain.value)]
            for key in ("num_nodes", "devices")
        )
        if not nodes and not devices:
            continue
        across = [claim for claim in nodes if min(numbers(claim.value), default=1) > 1]
        local = [claim for claim in devices if min(numbers(claim.value), default=1) > 1]
        waits = across or (local if tasks and min(numbers(tasks[0].value), default=1) > 1 else [])
        plugins = [claim for claim in job.about("setting.lightning.plugins") if claim.span.path in texts(plain.value)]
        ignored = (*named, *job.about("slurm_hidden"), *plugins)
        if undecided_verdict := undecided(plain.span.path, (plain, *nodes, *devices)):
            yield undecided_verdict
        elif waits and not across and ignored:
            yield unknown(plain.span.path, f"{quoted(ignored[0])} may make Lightning ignore Slurm", at=ignored[0])
        elif not waits:
            yield passed(plain.span.path)
        else:
            yield failed(
                plain.span.path,
                f"{quoted(plain)} starts one process on the first node, but {placed(waits[0])} makes Lightning wait for"
                " the ranks that srun would start.",
                at=plain,
                also=((waits[0], "waits for them"), (header[0], "the header")),
                remedy="Start it with srun.",
                waits_at="rendezvous",
            )
