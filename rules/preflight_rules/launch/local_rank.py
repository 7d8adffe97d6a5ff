"""The local rank of a script: its option or its variable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Scope
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    delete_word,
    failed,
    make_fix,
    passed,
    replace_text,
    rule,
    unknown,
)
from preflight.plugins.claim_text import definitely_holds, joined, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, launches_with
from preflight_rules.data_tables import table
from preflight_rules.launches import certainly_several


@rule(
    "LRK001",
    "local-rank-option-of-old-torch",
    severity=Severity.ERROR,
    profile="default",
    fix="safe",
    applies_to="torch >= 2.0",
    otherwise="nothing is started with torch.distributed.launch",
)
def local_rank_option_of_old_torch(job: Job) -> Iterator[Verdict]:
    """torch.distributed.launch starts a script that declares only `--local_rank`.

    What it checks: A script started with `python -m torch.distributed.launch` (without `--use_env`) declares
    `--local-rank`, not only `--local_rank`.

    Why it matters: From torch 2.0 on the launcher passes `--local-rank=N`. argparse does not know it and stops every
    rank with "unrecognized arguments".

    Example: `parser.add_argument("--local_rank", type=int)` and `python -m torch.distributed.launch train.py`.

    Fix: Start it with torchrun and read LOCAL_RANK from the environment, or declare both spellings.

    Known limits: It is an error where the files pin torch 2 or newer and the script's own parser stops at unknown
    options. Otherwise it is a warning, because a script that uses parse_known_args ignores the option and takes its
    default. Where the files pin torch 1.x, the script is right.
    """
    for launch in job.launches:
        if launch.launcher != "torch.distributed.launch":
            continue
        declared = distinct(job.about("local_rank_argument", launch.scope))
        if not declared:
            yield unknown(launch.id, "the options of the script are unknown")
            continue
        spellings = {text for claim in declared for text in texts(claim.value)}
        if spellings == {"--local_rank"} and _majors(job, launch.scope) not in ({0}, {1}, {0, 1}):
            yield failed(
                launch.id,
                f"`--local_rank` is the only form that the script declares ({declared[0].span.path}:"
                f"{declared[0].span.line}), but from torch 2.0 on torch.distributed.launch passes `--local-rank`.",
                at=declared[0],
                also=((launch, "started here"),),
                remedy="Start it with torchrun and read os.environ['LOCAL_RANK'], or declare both spellings.",
                fix=_both_spellings(declared),
                severity=None if _definitely_refused(job, launch.scope) else Severity.WARNING,
            )
        else:
            yield passed(launch.id)


def _majors(job: Job, scope: Scope) -> set[int]:
    """The major versions of torch that the files pin; empty unless all are known."""
    pinned = [text for claim in job.about("package", scope) for text in texts(claim.value)]
    releases = [text.partition("==")[2].strip() for text in pinned if text.partition("==")[0].strip() == "torch"]
    majors = [release.partition(".")[0] for release in releases]
    return set(map(int, majors)) if all(major.isdecimal() for major in majors) else set()


def _definitely_refused(job: Job, scope: Scope) -> bool:
    """Whether the files pin torch 2 or newer only, and the script's parser stops at options that it does not know."""
    new = min(_majors(job, scope), default=0) >= 2
    return new and any(claim.alternatives == (True,) for claim in job.about("strict_arguments", scope))


def _both_spellings(declared: Sequence[Claim]) -> Fix | None:
    """The new spelling before the old one: argparse still stores the value as `local_rank`."""
    edits = []
    for claim in declared:
        quote = claim.span.snippet[claim.span.column - 1 : claim.span.column]
        old = f"{quote}--local_rank{quote}"
        edits.append(replace_text(claim, old, f"{quote}--local-rank{quote}, {old}") if quote in ("'", '"') else None)
    return make_fix("declare --local-rank as well as --local_rank", *edits, safe=True)


#: Launchers that pass the local rank as an argument, with the option that keeps them from it.
_PASSING = {"torch.distributed.launch": "--use_env", "deepspeed": "--no_local_rank"}


@rule(
    "LRK002",
    "local-rank-option-not-declared",
    severity=Severity.ERROR,
    otherwise="no launcher passes the local rank as an argument",
)
def local_rank_option_not_declared(job: Job) -> Iterator[Verdict]:
    """The launcher passes the local rank to a script whose parser does not know the option.

    What it checks: A script started with `python -m torch.distributed.launch` (without `--use_env`) or `deepspeed`
    (without `--no_local_rank`) declares a local-rank option, when all its options are declared in it and it takes no
    others.

    Why it matters: The launcher adds `--local-rank=N` to the arguments of every rank. argparse stops each of them with
    "unrecognized arguments" before anything is trained.

    Example: `ArgumentParser().parse_args()` and `os.environ["LOCAL_RANK"]`, started by torch.distributed.launch.

    Fix: Start it with torchrun, which passes the local rank in the environment alone.

    Known limits: Nothing is reported for a script with several parsers, with parse_known_args, or that passes its
    parser to other functions.
    """
    for launch in job.launches:
        # A script that starts others parses its own arguments, not theirs.
        own = job.about("strict_arguments", launch.scope)
        strict = distinct([claim for claim in own if claim.span.path != launch.span.path])
        passing = _PASSING.get(launch.launcher, "")
        added = [c for c in job.about("rank_argument", launch.scope) if c.scope.launch == launch.id]
        if not passing or (launch.launcher == "deepspeed" and not added):
            continue
        lists = [value for claim in job.about("declared_options", launch.scope) for value in claim.alternatives]
        declared = {name for value in lists if isinstance(value, tuple) for name in value}
        if job.about("local_rank_argument", launch.scope) or declared & {"--local_rank", "--local-rank"}:
            yield passed(launch.id)
            continue
        if not strict:
            yield unknown(launch.id, "the options that the script accepts are unknown")
            continue
        unsure = why_unresolved(added, launch)
        if unsure is not None:
            yield unknown(launch.id, f"whether {launch.launcher} passes the local rank depends on {unsure[1]}")
            continue
        added_option = "--local_rank" if launch.launcher == "deepspeed" else "--local-rank"
        yield failed(
            launch.id,
            f"{launch.launcher} adds `{added_option}` to the script's arguments, but"
            f" {strict[0].span.path} declares no such option and accepts no others: every rank stops.",
            at=launch,
            also=((strict[0], "accepts only declared options"),),
            remedy=f"Start it with torchrun, or give the launcher {passing}.",
        )


@rule(
    "LRK003",
    "local-rank-same-for-all-processes",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    otherwise="no launcher of several ranks passes a local rank",
    each=launches_with(
        lambda job, scope: [c for c in job.about("local_rank", scope) if c.source == "arguments"],
        "processes_per_node",
        where=lambda stated: stated.launch.launcher != "srun",
    ),
)
def local_rank_same_for_all_processes(question: LaunchQuestion) -> Verdict | None:
    """A launcher of several ranks gives all of them the same local rank.

    What it checks: No fixed `--local_rank` comes after the script where the launcher starts several ranks on each node.

    Why it matters: Every rank of the node uses the same GPU, or every one behaves as rank 0 and tries to listen on the
    same port.

    Example: `torchrun --nproc_per_node=2 train.py --local_rank 0`.

    Fix: Remove it; the launcher sets LOCAL_RANK for each rank.

    Known limits: A program that names the option only where it declares it is not harmed, and is not reported. A
    negative value stands for "not given".
    """
    given, processes = question.of
    fixed = numbers(job_value(given))
    if not fixed or min(fixed) < 0 or not certainly_several(job_value(processes)):
        return None
    features = question.of.job.about("script_feature", question.of.scope)
    if any("local_rank_never_read" in texts(claim.value) for claim in features):
        return None
    return failed(
        question.subject,
        f"`{given[0].spelling}` is passed to all {joined(numbers(job_value(processes)))} ranks of the node,"
        " so all of them act as the same local rank.",
        at=given[0],
        also=((processes[0], "ranks of each node"),),
        remedy="Remove it: the launcher sets LOCAL_RANK for each rank.",
        # Unsafe: the script may require the option.
        fix=make_fix(f"drop {given[0].spelling}", delete_word(given[0]), safe=False),
    )


@rule(
    "LRK004",
    "ranked-script-without-launcher",
    severity=Severity.ERROR,
    otherwise="no script that needs a rank variable is started here",
)
def ranked_script_without_launcher(job: Job) -> Iterator[Verdict]:
    """A script that reads its rank from the environment is started by what sets no such variable.

    What it checks: A script reads `os.environ["RANK"]`, `["LOCAL_RANK"]`, `["WORLD_SIZE"]`, `["LOCAL_WORLD_SIZE"]` and
    the like only if the launcher that starts it, the launch script or the script itself sets them.

    Why it matters: The script stops with KeyError in every rank; where the variables are left over from an interactive
    session, it waits for ranks that are never started.

    Example: `srun python train.py`, where train.py contains `local_rank = int(os.environ["LOCAL_RANK"])`: Slurm sets
    SLURM_LOCALID.

    Fix: Start it with torchrun, set the variables from those of the scheduler in each task, or give them a default.

    Known limits: A variable that is read under a condition, or whose error is caught, is not counted. Variables that
    something outside the script exports are not seen, so a plain `python` line is only a warning.
    """
    applicable = False
    for claim in distinct(job.about("plain_program")):
        needed = [c for c in job.about("required_variable") if c.span.path in texts(claim.value)]
        if not needed:
            continue
        applicable = True
        unresolved = why_unresolved((claim,))
        if unresolved is not None:
            yield unknown(claim.span.path, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
            continue
        yield failed(
            claim.span.path,
            f"{quoted(claim)} starts one process without rank variables, but the script needs"
            f" {', '.join(str(joined(c.alternatives)) for c in needed)}: it stops with KeyError.",
            at=claim,
            also=tuple((c, "read here") for c in needed),
            remedy=f"Start it with torchrun --nproc_per_node=<GPUs> {joined(claim.alternatives)}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    for launch in job.launches if not applicable else ():
        read = distinct(job.about("required_variable", launch.scope))
        if not read:
            continue
        row = next((row for row in table("rank_variables")["launcher"] if launch.launcher in row["names"]), None)
        setters = job.about("rank_setter", launch.scope)
        exported = {n: job.about(f"env.{n}", launch.scope) for claim in read for n in texts(claim.value)}
        set_here = {n for n, claims in exported.items() if any(definitely_holds(c, launch) for c in claims)}
        unset = [
            (name, claim)
            for claim in read
            for name in texts(claim.value)
            if name not in set_here
            and not any(c.alternatives for c in setters)
            and (row is None or not {"all", name}.intersection(row["sets"]))
        ]
        missing = [(name, claim) for name, claim in unset if row is not None and not exported[name] and not setters]
        if not unset:
            yield passed(launch.id)
            continue
        if not missing:
            name, claim = unset[0]
            branch = why_unresolved((*exported[name], *setters), launch)
            why = branch[1] if branch is not None else f"`{launch.launcher}` may set it"
            yield unknown(launch.id, f"whether {name} is set, which the script needs, is not known: {why}", at=claim)
            continue
        names = [name for name, _ in missing]
        yield failed(
            launch.id,
            f"`{launch.launcher}` sets no {' and no '.join(names)}, which the script needs, and neither does the launch"
            " script: every rank stops with KeyError.",
            at=missing[0][1],
            also=((launch, "started here"), *((claim, "read here") for _, claim in missing[1:])),
            remedy=(row or {}).get("remedy", f"Set {names[0]} in each task, or start the script with torchrun."),
        )
