"""How a script learns its local rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job
from preflight.judgement import Verdict, dropped, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.outcome import Confidence, Fix, Severity
from preflight_rules.reading import (
    certainly_several,
    distinct,
    job_value,
    numbers,
    quoted,
    spoken,
    texts,
    why_unresolved,
)


@rule(
    "LRK001",
    "local-rank-option-of-old-torch",
    severity=Severity.WARNING,
    fix="safe",
    applies_to="torch >= 2.0",
    evidence=("huggingface/pytorch-image-models#1724", "hkchengrex/XMem#18"),
)
def local_rank_option_of_old_torch(job: Job) -> Iterator[Verdict]:
    """A script that only knows --local_rank is started by torch.distributed.launch.

    What it checks:
        A script started with `python -m torch.distributed.launch` (without `--use_env`) declares `--local-rank`,
        and not `--local_rank` alone.

    Why it matters:
        From torch 2.0 on the launcher passes `--local-rank=N`. argparse does not know it and stops every rank with
        "unrecognized arguments".

    Example:
        `parser.add_argument("--local_rank", type=int)` and `python -m torch.distributed.launch train.py`.

    Fix:
        Start it with torchrun and read LOCAL_RANK from the environment, or declare both spellings.

    Known limits:
        With torch 1.x the script is right; the version is not known from the files. A script that uses
        parse_known_args ignores the option and takes its default.

    Evidence:
        huggingface/pytorch-image-models#1724, hkchengrex/XMem#18.
    """
    met = False
    for launch in job.launches:
        if launch.launcher != "torch.distributed.launch":
            continue
        declared = distinct(job.about("local_rank_argument", launch.scope))
        if not declared:
            yield unknown(launch.id, "the script's options are not known")
            met = True
            continue
        met = True
        spellings = {text for claim in declared for text in texts(claim.value)}
        if spellings == {"--local_rank"}:
            yield failed(
                launch.id,
                f"`--local_rank` is the only spelling the script declares ({declared[0].span.path}:"
                f"{declared[0].span.line}), but from torch 2.0 on torch.distributed.launch passes `--local-rank`.",
                at=declared[0],
                also=((launch, "started here"),),
                remedy="Start it with torchrun and read os.environ['LOCAL_RANK'], or declare both spellings.",
                fix=_both_spellings(declared),
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "nothing is started with torch.distributed.launch")


def _both_spellings(declared: Sequence[Claim]) -> Fix | None:
    """The new spelling in front of the old one: argparse calls the value `local_rank` then, too."""
    edits = []
    for claim in declared:
        quote = claim.span.snippet[claim.span.column - 1 : claim.span.column]
        old = f"{quote}--local_rank{quote}"
        edits.append(reworded(claim, old, f"{quote}--local-rank{quote}, {old}") if quote in ("'", '"') else None)
    return mend("declare --local-rank beside --local_rank", *edits, safe=True)


@rule(
    "LRK002",
    "local-rank-option-not-declared",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("hkchengrex/XMem#18", "https://docs.pytorch.org/docs/stable/elastic/run.html"),
)
def local_rank_option_not_declared(job: Job) -> Iterator[Verdict]:
    """torch.distributed.launch passes --local-rank to a script whose parser does not know it.

    What it checks:
        A script started with `python -m torch.distributed.launch` (without `--use_env`) declares a local-rank option,
        when all its options are declared in it and it takes no others.

    Why it matters:
        The launcher adds `--local-rank=N` to the arguments of every rank. argparse stops each of them with
        "unrecognized arguments" before anything is trained.

    Example:
        `ArgumentParser().parse_args()` and `os.environ["LOCAL_RANK"]`, started by torch.distributed.launch.

    Fix:
        Start it with torchrun, which passes the local rank in the environment alone.

    Known limits:
        Nothing is said of a script with several parsers, with parse_known_args, or whose parser other functions get.

    Evidence:
        hkchengrex/XMem#18; PyTorch documentation, torchrun (transitioning from torch.distributed.launch).
    """
    met = False
    for launch in job.launches:
        strict = distinct(job.about("strict_arguments", launch.scope))
        if launch.launcher != "torch.distributed.launch":
            continue
        met = True
        if job.about("local_rank_argument", launch.scope):
            yield passed(launch.id)
            continue
        if not strict:
            yield unknown(launch.id, "which options the script takes is not known")
            continue
        yield failed(
            launch.id,
            "torch.distributed.launch adds `--local-rank` to the script's arguments, but"
            f" {strict[0].span.path} declares no such option and takes no others: every rank stops.",
            at=launch,
            also=((strict[0], "takes only what the script declares"),),
            remedy="Start it with torchrun, or give the launcher --use_env.",
        )
    if not met:
        yield not_applicable(job.name, "nothing is started with torch.distributed.launch")


@rule(
    "LRK003",
    "local-rank-same-for-all-processes",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#85604",),
)
def local_rank_same_for_all_processes(job: Job) -> Iterator[Verdict]:
    """A launcher of several ranks hands all of them one and the same local rank.

    What it checks:
        No fixed `--local_rank` stands behind the script where the launcher starts several ranks on each node.

    Why it matters:
        Every rank of the node takes the same GPU, or every one behaves as rank 0 and wants to listen on one port.

    Example:
        `torchrun --nproc_per_node=2 train.py --local_rank 0`.

    Fix:
        Leave it out; the launcher sets LOCAL_RANK for each rank.

    Known limits:
        A script that reads LOCAL_RANK and ignores the option is not harmed. A negative value stands for "not given".

    Evidence:
        pytorch/pytorch#85604.
    """
    met = False
    for launch in job.launches:
        given = [c for c in job.about("local_rank", launch.scope) if c.source == "arguments"]
        processes = job.setting("processes_per_node", launch.scope)
        if not given or not processes or launch.launcher == "srun":
            continue
        met = True
        open_end = why_unresolved((*given, *processes), launch)
        fixed = numbers(job_value(given))
        if open_end is not None:
            yield unknown(launch.id, f"{quoted(open_end[0])} is left open: {open_end[1]}", at=open_end[0])
        elif fixed and min(fixed) >= 0 and certainly_several(job_value(processes)):
            yield failed(
                launch.id,
                f"`{given[0].spelling}` is handed to all {spoken(numbers(job_value(processes)))} ranks of the node, so"
                " each takes itself for the same one.",
                at=given[0],
                also=((processes[0], "ranks of each node"),),
                remedy="Leave it out: the launcher sets LOCAL_RANK for each rank.",
                # Unsafe: the script may want the option to be there.
                fix=mend(f"drop {given[0].spelling}", dropped(given[0]), safe=False),
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launcher of several ranks hands them a local rank")


@rule(
    "LRK004",
    "ranked-script-without-launcher",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html", "huggingface/accelerate#1324"),
)
def ranked_script_without_launcher(job: Job) -> Iterator[Verdict]:
    """A script that reads its rank from the environment is started by plain python.

    What it checks:
        A script that a plain `python` line starts does not read `os.environ["RANK"]`, `["LOCAL_RANK"]` or
        `["WORLD_SIZE"]` on every way through it.

    Why it matters:
        No launcher sets them, so the script stops with KeyError; where the variables are left over from an
        interactive session, it waits for ranks that nobody starts.

    Example:
        `python train.py`, where train.py says `local_rank = int(os.environ["LOCAL_RANK"])`.

    Fix:
        Start it with `torchrun --nproc_per_node=<GPUs> train.py`, or give the variables a default.

    Known limits:
        A variable that is read under a condition, or whose error is caught, is not counted. Whoever exports the
        variables outside the script is not seen, so this is a warning.

    Evidence:
        torchrun documentation (which variables it sets); huggingface/accelerate#1324.
    """
    met = False
    for claim in distinct(job.about("plain_program")):
        needed = [c for c in job.about("required_variable") if c.span.path in texts(claim.value)]
        if not needed:
            continue
        met = True
        unresolved = why_unresolved((claim,))
        if unresolved is not None:
            yield unknown(claim.span.path, f"{quoted(claim)} is left open: {unresolved[1]}", at=claim)
            continue
        yield failed(
            claim.span.path,
            f"{quoted(claim)} starts one process and sets no ranks, but the script needs"
            f" {', '.join(str(spoken(c.alternatives)) for c in needed)}: it stops with KeyError.",
            at=claim,
            also=tuple((c, "read here") for c in needed),
            remedy=f"Start it with torchrun --nproc_per_node=<GPUs> {spoken(claim.alternatives)}.",
        )
    for launch in job.launches if not met else ():
        if job.about("required_variable", launch.scope):
            met = True
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no script that needs a rank variable is started here")
