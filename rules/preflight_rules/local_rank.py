"""How a script learns its local rank."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import distinct, texts


@rule(
    "LRK001",
    "local-rank-option-of-old-torch",
    severity=Severity.WARNING,
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
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "nothing is started with torch.distributed.launch")
