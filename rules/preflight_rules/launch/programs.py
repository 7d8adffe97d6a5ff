"""The program that a launcher starts: its file, its arguments and environment, and how it gets its local rank."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import Symbol, items, numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    delete_word,
    failed,
    make_fix,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import definitely_holds, joined, placed, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, launches_with
from preflight_rules.data_tables import table
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned
from preflight_rules.settings.tables import in_range, pinned

#: Launchers that run their first positional argument with Python.
_PYTHON_LAUNCHERS = frozenset(("torchrun", "torch.distributed.launch", "deepspeed", "accelerate", "paddle"))
#: Launchers whose variables for a rank are known.
_TORCH_LAUNCHERS = frozenset(("torchrun", "torch.distributed.launch"))
_OPTION = re.compile(r"--[A-Za-z][\w.-]*")
#: Ends of the names of programs, and of files that Python cannot run.
_PROGRAM_SUFFIXES = frozenset(("py", "pyc", "pyz", "sh", "bash", "exe", "bin", "pex", "jl", "pl", "rb", "out"))
_DATA_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".md", ".csv", ".jsonl", ".parquet")


@rule(
    "LCH019", "configuration-given-as-program", severity=Severity.ERROR, otherwise="no launcher runs a Python program"
)
def configuration_given_as_program(job: Job) -> Iterator[Verdict]:
    """A launcher is given a configuration where it expects the program.

    What it checks: The first word after the options of torchrun, deepspeed, `accelerate launch` or
    `paddle.distributed.launch` does not have the suffix of a configuration or data file (.yaml, .json, .toml, .txt and
    the like), and is not a module name (`src.train`) without -m.

    Why it matters: Every rank runs `python FILE`, which ends with a SyntaxError or NameError at the file's first lines.

    Example: `python -m paddle.distributed.launch --gpus 0,1 configs/yolo.yml`.

    Fix: Put the program before the configuration: `... --gpus 0,1 tools/train.py -c configs/yolo.yml`.

    Known limits: Launches with --no_python or --module are not judged.
    """
    for launch in job.launches:
        if launch.launcher not in _PYTHON_LAUNCHERS:
            continue
        line = launch.span.snippet
        if not launch.program or job.about("unknown_option", launch.scope):
            yield unknown(launch.id, "the program of this launch is unknown", at=launch)
        elif "--no_python" in line or "--no-python" in line:
            yield passed(launch.id)
        elif (script := _program_after(launch)) is not None:
            yield failed(
                launch.id,
                f"{launch.launcher} expects the Python program where `{launch.program}` is, before `{script}`: the "
                "option before it takes only one value.",
                at=launch,
                remedy=f"Join the values of that option (`--option=A,B`), so that `{script}` is the first word after "
                "the options.",
            )
        elif _is_module_name(launch) and not any(file.path.endswith(launch.program) for file in job.files):
            yield failed(
                launch.id,
                f"`{launch.program}` is a module name, but without -m {launch.launcher} treats it as a file.",
                at=launch,
                remedy=f"Write `-m {launch.program}`, or `{launch.program.replace('.', '/')}.py`.",
            )
        elif not launch.program.lower().endswith(_DATA_SUFFIXES):
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{launch.launcher} expects the Python program where `{launch.program}` is: each process would run "
                "that with Python and stop.",
                at=launch,
                remedy=f"Put the program before `{launch.program}`.",
            )


def _is_module_name(launch: Launch) -> bool:
    """Return whether a launch names a module instead of a file: `src.train`."""
    as_module = re.search(r"\s(?:-m|--module)\s", launch.span.snippet) is not None
    name = re.fullmatch(r"[a-z_]\w*(?:\.[a-z_]\w*)*\.(\w+)", launch.program)
    return (
        name is not None
        and not as_module
        and name[1] not in _PROGRAM_SUFFIXES
        and not launch.program.endswith(_DATA_SUFFIXES)
    )


def _program_after(launch: Launch) -> str | None:
    """Return the Python file among a launch's first arguments if its program is a plain word; otherwise None."""
    as_module = re.search(r"\s(?:-m|--module)\s", launch.span.snippet)
    if as_module is not None or not re.fullmatch(r"\w+", launch.program):
        return None
    words = itertools.takewhile(lambda word: word is not None and not word.startswith("-"), launch.arguments)
    return next((word for word in words if word is not None and word.endswith(".py")), None)


@rule(
    "LCH025", "command-line-in-one-word", severity=Severity.ERROR, otherwise="no command line is in quotes as a program"
)
def command_line_in_one_word(job: Job) -> Iterator[Verdict]:
    """A whole command line is in quotes where the name of a program is expected.

    What it checks: The program that srun, mpirun, a container engine, `kubectl exec` or `ray job submit` starts is one
    word without arguments, and so is the script of torchrun and similar launchers.

    Why it matters: No shell splits the word again. `python train.py --lr 1` is searched for as the name of one program:
    "No such file or directory", "not found".

    Example: `ray job submit -- "python train.py --lr 1"`.

    Fix: Remove the quotes around the command line, or write `bash -c "..."`.

    Known limits: An image whose entrypoint is a shell with `-c` takes the word as a command, so `docker run` gets a
    warning. Words that ssh, pdsh and `bash -c` pass to a shell are not judged.
    """
    for claim in job.about("quoted_command"):
        starter = "the container" if claim.source == "container" else claim.source
        subject = f"{claim.span.path}:{claim.span.line}"
        yield undecided(subject, (claim,)) or failed(
            subject,
            f"`{claim.spelling}` is one word, so {starter} looks for a program of this name.",
            at=claim,
            remedy="Remove the quotes around the command line.",
            severity=Severity.WARNING if claim.source == "container" else None,
        )
    for launch in job.launches:
        if launch.launcher not in _PYTHON_LAUNCHERS or not launch.program:
            continue
        if re.match(r"\S+\.py\s+\S", launch.program) is None:
            yield passed(launch.id)
            continue
        yield failed(
            launch.id,
            f"`{launch.program}` is one word, so each process looks for a file of this name.",
            at=launch,
            remedy="Remove the quotes around the program and its arguments.",
        )


@rule("LCH021", "blank-after-backslash", severity=Severity.ERROR, otherwise="the job has no launch line")
def blank_after_backslash(job: Job) -> Iterator[Verdict]:
    """A backslash at the end of a line of a launch is followed by a space, so the command ends there.

    What it checks: No word of a launch line is an escaped space.

    Why it matters: A backslash continues a line only directly before the line's end. Before a space it makes the space
    a word: the launcher gets that word as its program or an argument, and the shell treats the next line as a command.

    Example: `deepspeed --hostfile hosts \\ ` and `train.py` on the next line.

    Fix: Remove the space after the backslash.

    Known limits: A space that is intended as an argument is written in quotes, which is not reported.
    """
    for launch in job.launches:
        blanks = [claim for claim in job.about("blank_word", launch.scope) if claim.scope.launch == launch.id]
        if not blanks:
            yield passed(launch.id)
            continue
        yield undecided(launch.id, (blanks[0],)) or failed(
            launch.id,
            f"{quoted(blanks[0])} is a backslash followed by a space: the {launch.launcher} command ends here, and "
            "the next line is a separate command.",
            at=blanks[0],
            remedy="Remove the space after the backslash.",
        )


@rule("LCH022", "comment-within-command", severity=Severity.ERROR, otherwise="the job has no launch line in a script")
def comment_within_command(job: Job) -> Iterator[Verdict]:
    """A comment is between the lines of a launch, so the command ends there.

    What it checks: No line of a launch that ends in a backslash is followed by a comment and further options.

    Why it matters: The backslash joins the comment to the command. A backslash inside a comment has no effect, so the
    comment ends the command. The options after it are a separate command, which the shell does not find.

    Example: `torchrun --nproc_per_node=8 \\`, then `# --nnodes=2 \\`, then `train.py`.

    Fix: Move the comment above the command.

    Known limits: A comment after the last line of the command is not reported.
    """
    comments = distinct(job.about("comment_in_command"))
    for launch in job.launches:
        first_lines = {claim: numbers(claim.value) for claim in comments if claim.span.path == launch.span.path}
        cutting_comments = [
            claim for claim, first in first_lines.items() if first and first[0] <= launch.span.line < claim.span.line
        ]
        if not cutting_comments:
            yield passed(launch.id)
            continue
        if launch.condition:
            yield unknown(launch.id, f"the command is in the branch `{launch.condition}`", at=launch)
            continue
        yield failed(
            launch.id,
            f"{quoted(cutting_comments[0])} ends the {launch.launcher} command: the lines below it are a separate "
            "command.",
            at=cutting_comments[0],
            also=((launch, "the command"),),
            remedy="Move the comment above the command.",
        )


@rule("LCH020", "program-option-unknown", severity=Severity.ERROR, otherwise="no program's parser is completely known")
def program_option_unknown(job: Job) -> Iterator[Verdict]:
    """A program is given an option that its own parser does not declare, so it stops.

    What it checks: Every option after the program is declared by the program's parser, or abbreviates such an option.
    Judged if the program can be followed to its only parser, which declares all options by name and accepts no others.

    Why it matters: argparse ends every rank with `unrecognized arguments` before training begins. Often the option
    belongs to the launcher and is on the wrong side of the program.

    Example: `python -m paddle.distributed.launch tools/train.py --gpus 0,1 -c c.yml`.

    Fix: Put a launcher option before the program, correct the name, or declare it.

    Known limits: A parser that uses parse_known_args, passes on the rest, or is filled by another function is not
    judged.
    """
    for launch in job.launches:
        declared = distinct(job.about("declared_options", launch.scope))
        if len(declared) != 1:
            continue
        if undecided_verdict := undecided(launch.id, declared[:1]):
            yield undecided_verdict
            continue
        names = {str(name) for value in declared[0].alternatives if isinstance(value, tuple) for name in value}
        options = [text.partition("=")[0] for text in _option_words(launch)]
        unknown_options = [name for name in options if not any(each == name or each.startswith(name) for each in names)]
        if unknown_options:
            yield failed(
                launch.id,
                f"`{unknown_options[0]}` is passed to `{launch.program}`, whose parser ({placed(declared[0])}) "
                "declares no such option: every rank stops with `unrecognized arguments`.",
                at=launch,
                also=((declared[0], "parsed here"),),
                remedy=f"Put `{unknown_options[0]}` before `{launch.program}` if it is a launcher option, or declare "
                "it in the parser.",
            )
        elif None in launch.arguments:
            yield unknown(launch.id, "some of the program's arguments are unknown", at=launch)
        else:
            yield passed(launch.id)


@rule(
    "LCH023",
    "program-refuses-launch",
    severity=Severity.ERROR,
    otherwise="no program checks its own arguments or number of ranks",
)
def program_refuses_launch(job: Job) -> Iterator[Verdict]:
    """A program is given options or a world size that its own checks reject at startup.

    What it checks: The program is simulated from its first statement, through its modules, with the options of the
    launch line, the variables that the launch sets, the JSON and YAML files that the program reads, and the number of
    ranks. It must not reach an `assert` or `raise` that ends it, and its parser must accept the line.

    Why it matters: Every rank stops with the program's own exception, after the nodes are allocated.

    Example: `assert dist.get_world_size() == args.dp * args.tp` with `--dp 4 --tp 4`, started with 8 ranks.

    Fix: Pass options and a number of ranks for which the condition is true.

    Known limits: Return values of libraries are unknown, except ranks, world sizes and files; so are executed strings
    and modules that are imported by computed names.
    """
    for launch in job.launches:
        skips_asserts = re.search(r"\s-OO?\s", launch.span.snippet) or job.setting("env.PYTHONOPTIMIZE", launch.scope)
        for claim in job.about("program_outcome", launch.scope):
            outcome = next(iter(texts(claim.value)), "")
            if isinstance(claim.value, Unresolved):
                yield unknown(launch.id, claim.value.why, at=claim)
            elif not outcome:
                yield passed(launch.id)
            elif not (skips_asserts and claim.source == "assert"):
                yield failed(
                    launch.id,
                    f"`{launch.program}` {outcome} ({claim.span.path}:{claim.span.line}).",
                    at=launch,
                    also=((claim, "checked here"),),
                    remedy="Pass options and a number of ranks that the program accepts.",
                )


def _option_words(launch: Launch) -> Iterator[str]:
    """Yield the options among a program's arguments up to the first unknown one, after which a word may be a value."""
    for text in launch.arguments:
        if text is None or text == "--":
            return
        if _OPTION.fullmatch(text.partition("=")[0]):
            yield text


@rule(
    "LRK005",
    "launcher-option-without-launcher",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no program is started by plain python with `--launcher`",
)
def launcher_option_without_launcher(job: Job) -> Iterator[Verdict]:
    """A program's options name a launcher, but plain python starts the program.

    What it checks: A program that plain python starts without RANK is not passed `--launcher pytorch`.

    Why it matters: The program then reads RANK, which is not set, and stops with KeyError.

    Example: `python tools/train.py config.py --launcher pytorch`.

    Fix: Start it with `torchrun --nproc_per_node=<GPUs>`, or pass `--launcher none`.

    Known limits: Variables that something outside the files sets are not seen, so this is a warning.
    """
    for claim in distinct(job.about("launcher_option")):
        unresolved = why_unresolved((claim,))
        if unresolved is not None:
            yield unknown(claim.span.path, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
        elif claim.alternatives == ("pytorch",):
            yield failed(
                claim.span.path,
                f"{quoted(claim)} tells the program that a launcher started it, but plain python does: RANK is not set,"
                " and the program stops with KeyError.",
                at=claim,
                remedy="Start it with `torchrun --nproc_per_node=<GPUs>`, or give `--launcher none`.",
            )
        else:
            yield passed(claim.span.path)


@rule(
    "LRK006",
    "node-variable-never-set",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no program under torchrun needs a variable for its node",
)
def node_variable_never_set(job: Job) -> Iterator[Verdict]:
    """A program needs a variable of its node that its launcher does not set.

    What it checks: A program that torchrun starts does not read `os.environ["NODE_RANK"]` and the like on every path,
    unless the launch exports the variable.

    Why it matters: torchrun sets GROUP_RANK, RANK and LOCAL_RANK, but not NODE_RANK: every rank stops with KeyError.

    Example: `node_rank = int(os.environ["NODE_RANK"])` and `torchrun --nproc_per_node=8 train.py`.

    Fix: Read GROUP_RANK, give the variable a default, or export it before the launch.

    Known limits: Variables that something outside the files exports are not seen, so this is a warning.
    """
    for launch in job.launches:
        needed_claims = [
            c for c in job.about("required_node_variable", launch.scope) if launch.launcher in _TORCH_LAUNCHERS
        ]
        # The program that starts the launcher is not one of its ranks.
        needed_claims = [claim for claim in needed_claims if claim.span.path != launch.span.path]
        for claim in distinct(needed_claims):
            name = next(iter(texts(claim.value)), "")
            exported = job.about(f"env.{name}", launch.scope)
            if exported:
                yield passed(launch.id)
            elif launch.wrappers:
                yield unknown(launch.id, f"`{launch.wrappers[0]}` may set {name}", at=claim)
            else:
                yield failed(
                    launch.id,
                    f"{quoted(claim)} needs {name}, which {launch.launcher} does not set and no command exports: "
                    "every rank stops with KeyError.",
                    at=claim,
                    also=((launch, "started here"),),
                    remedy="Read GROUP_RANK instead of NODE_RANK, give the variable a default, or export it.",
                )


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

    Why it matters: Since torch 2.0, the launcher passes `--local-rank=N`. argparse does not know this option and stops
    every rank with "unrecognized arguments".

    Example: `parser.add_argument("--local_rank", type=int)` and `python -m torch.distributed.launch train.py`.

    Fix: Start it with torchrun and read LOCAL_RANK from the environment, or declare both spellings.

    Known limits: The finding is an error if the files pin torch 2 or newer and the script's own parser stops at unknown
    options. Otherwise it is a warning, because a script that uses parse_known_args ignores the option and takes its
    default. If the files pin torch 1.x, the script is correct.
    """
    for launch in job.launches:
        if launch.launcher != "torch.distributed.launch":
            continue
        declared = distinct(job.about("local_rank_argument", launch.scope))
        if not declared:
            yield unknown(launch.id, "the options of the script are unknown")
            continue
        spellings = {text for claim in declared for text in texts(claim.value)}
        if spellings == {"--local_rank"} and _torch_majors(job, launch.scope) not in ({0}, {1}, {0, 1}):
            yield failed(
                launch.id,
                "`--local_rank` is the only form that the script declares "
                f"({declared[0].span.path}:{declared[0].span.line}), but torch.distributed.launch passes "
                "`--local-rank` since torch 2.0.",
                at=declared[0],
                also=((launch, "started here"),),
                remedy="Start it with torchrun and read os.environ['LOCAL_RANK'], or declare both spellings.",
                fix=_both_spellings_fix(declared),
                severity=None if _certainly_refused(job, launch.scope) else Severity.WARNING,
            )
        else:
            yield passed(launch.id)


def _torch_majors(job: Job, scope: Scope) -> set[int]:
    """Return the major versions of torch that the files pin; empty unless all are known."""
    pinned = [text for claim in job.about("package", scope) for text in texts(claim.value)]
    releases = [text.partition("==")[2].strip() for text in pinned if text.partition("==")[0].strip() == "torch"]
    majors = [release.partition(".")[0] for release in releases]
    return set(map(int, majors)) if all(major.isdecimal() for major in majors) else set()


def _certainly_refused(job: Job, scope: Scope) -> bool:
    """Return whether the files pin only torch 2 or newer, and the script's parser stops at unknown options."""
    is_new = min(_torch_majors(job, scope), default=0) >= 2
    return is_new and any(claim.alternatives == (True,) for claim in job.about("strict_arguments", scope))


def _both_spellings_fix(declared: Sequence[Claim]) -> Fix | None:
    """Return a fix that adds the new spelling before the old one: argparse still stores it as `local_rank`."""
    edits = []
    for claim in declared:
        quote = claim.span.snippet[claim.span.column - 1 : claim.span.column]
        old = f"{quote}--local_rank{quote}"
        edits.append(replace_text(claim, old, f"{quote}--local-rank{quote}, {old}") if quote in ("'", '"') else None)
    return make_fix("declare --local-rank as well as --local_rank", *edits, safe=True)


#: Launchers that pass the local rank as an argument, with the option that turns this off.
_OPT_OUT_OPTIONS = {"torch.distributed.launch": "--use_env", "deepspeed": "--no_local_rank"}


@rule(
    "LRK002",
    "local-rank-option-not-declared",
    severity=Severity.ERROR,
    otherwise="no launcher passes the local rank as an argument",
)
def local_rank_option_not_declared(job: Job) -> Iterator[Verdict]:
    """The launcher passes the local rank to a script whose parser does not know the option.

    What it checks: A script started with `python -m torch.distributed.launch` (without `--use_env`) or `deepspeed`
    (without `--no_local_rank`) declares a local-rank option. Judged if the script declares all its options itself and
    accepts no others.

    Why it matters: The launcher adds `--local-rank=N` to the arguments of every rank. argparse stops each of them with
    "unrecognized arguments" before anything is trained.

    Example: `ArgumentParser().parse_args()` and `os.environ["LOCAL_RANK"]`, started by torch.distributed.launch.

    Fix: Start it with torchrun, which passes the local rank in the environment alone.

    Known limits: Nothing is reported for a script with several parsers, with parse_known_args, or that passes its
    parser to other functions.
    """
    for launch in job.launches:
        # A script that starts others parses its own arguments, not theirs.
        strict_claims = job.about("strict_arguments", launch.scope)
        strict = distinct([claim for claim in strict_claims if claim.span.path != launch.span.path])
        opt_out = _OPT_OUT_OPTIONS.get(launch.launcher, "")
        passed_options = [c for c in job.about("rank_argument", launch.scope) if c.scope.launch == launch.id]
        if not opt_out or (launch.launcher == "deepspeed" and not passed_options):
            continue
        option_lists = [value for claim in job.about("declared_options", launch.scope) for value in claim.alternatives]
        declared = {name for value in option_lists if isinstance(value, tuple) for name in value}
        if job.about("local_rank_argument", launch.scope) or declared & {"--local_rank", "--local-rank"}:
            yield passed(launch.id)
            continue
        if not strict:
            yield unknown(launch.id, "the options that the script accepts are unknown")
            continue
        unresolved = why_unresolved(passed_options, launch)
        if unresolved is not None:
            yield unknown(launch.id, f"whether {launch.launcher} passes the local rank depends on {unresolved[1]}")
            continue
        # torch.distributed.launch has passed it with a dash since torch 2.0.
        is_old = in_range(pinned(job, "torch"), "", "1.99") is True
        added_option = "--local_rank" if launch.launcher == "deepspeed" or is_old else "--local-rank"
        yield failed(
            launch.id,
            f"{launch.launcher} adds `{added_option}` to the script's arguments, but"
            f" {strict[0].span.path} declares no such option and accepts no others: every rank stops.",
            at=launch,
            also=((strict[0], "accepts only declared options"),),
            remedy=f"Start it with torchrun, or give the launcher {opt_out}.",
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

    Why it matters: All ranks of the node use the same GPU, or all act as rank 0 and try to listen on the same port.

    Example: `torchrun --nproc_per_node=2 train.py --local_rank 0`.

    Fix: Remove it; the launcher sets LOCAL_RANK for each rank.

    Known limits: A program that declares the option but never reads it is not harmed, and is not reported. A negative
    value stands for "not given".
    """
    rank_claims, processes = question.of
    ranks = numbers(job_value(rank_claims))
    if not ranks or min(ranks) < 0 or not certainly_several(job_value(processes)):
        return None
    features = question.of.job.about("script_feature", question.of.scope)
    if any("local_rank_never_read" in texts(claim.value) for claim in features):
        return None
    return failed(
        question.subject,
        f"`{rank_claims[0].spelling}` is passed to all {joined(numbers(job_value(processes)))} ranks of the node,"
        " so all of them act as the same local rank.",
        at=rank_claims[0],
        also=((processes[0], "ranks of each node"),),
        remedy="Remove it: the launcher sets LOCAL_RANK for each rank.",
        # Unsafe: the script may require the option.
        fix=make_fix(f"drop {rank_claims[0].spelling}", delete_word(rank_claims[0]), safe=False),
    )


@rule(
    "LRK004",
    "ranked-script-without-launcher",
    severity=Severity.ERROR,
    otherwise="no launch starts a script that needs a rank variable",
)
def ranked_script_without_launcher(job: Job) -> Iterator[Verdict]:
    """A script that reads its rank from the environment is started without the rank variables.

    What it checks: A script reads `os.environ["RANK"]`, `["LOCAL_RANK"]`, `["WORLD_SIZE"]`, `["LOCAL_WORLD_SIZE"]` and
    the like only if the launcher that starts it, the launch script or the script itself sets them.

    Why it matters: The script stops with KeyError in every rank; if the variables are left over from an interactive
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
        needed_claims = distinct(job.about("required_variable", launch.scope))
        if not needed_claims:
            continue
        row, workload = _rank_variables(job, launch)
        setters = job.about("rank_setter", launch.scope)
        exported = {n: job.about(f"env.{n}", launch.scope) for claim in needed_claims for n in texts(claim.value)}
        set_here = {n for n, claims in exported.items() if any(definitely_holds(c, launch) for c in claims)}
        unset = [
            (name, claim)
            for claim in needed_claims
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
            yield unknown(launch.id, f"whether {name}, which the script needs, is set is unknown: {why}", at=claim)
            continue
        names = [name for name, _ in missing]
        starter, place = (
            (f"`{launch.launcher}`", "launch script") if workload is None else (quoted(workload), "manifest")
        )
        yield failed(
            launch.id,
            f"{starter} does not set {' or '.join(names)}, which the script needs, and neither does the {place}: "
            "every rank stops with KeyError.",
            at=missing[0][1],
            also=((launch, "started here"), *((claim, "read here") for _, claim in missing[1:])),
            remedy=(row or {}).get("remedy", f"Set {names[0]} in each task, or start the script with torchrun."),
            severity=Severity.ERROR if workload is None else Severity.WARNING,
        )


def _rank_variables(job: Job, launch: Launch) -> tuple[dict[str, Any] | None, Claim | None]:
    """Return the table's row for the starter of a launch, and the workload of its pods if the row is about pods.

    Both are None if the table has no row for the starter.
    """
    pods = {claim.span for claim in job.about("workload_launch") if launch.id in texts(claim.value)}
    workloads = [claim for claim in job.about("workload") if claim.span in pods]
    for row in table("rank_variables")["launcher"]:
        if launch.launcher in row["names"]:
            if "workloads" not in row:
                return row, None
            workload = next((claim for claim in workloads if set(texts(claim.value)) & set(row["workloads"])), None)
            if workload is not None:
                return row, workload
    return None, None


#: Variables of a rank, each with the number of the task that has the right value on the first node only.
_OTHER_NUMBERS = {
    "LOCAL_RANK": Symbol.PROCESS_RANK,
    "FLAGS_selected_gpus": Symbol.PROCESS_RANK,
    "CUDA_VISIBLE_DEVICES": Symbol.PROCESS_RANK,
    "RANK": Symbol.LOCAL_RANK,
    "PADDLE_TRAINER_ID": Symbol.LOCAL_RANK,
}


@rule(
    "LCH024",
    "rank-and-local-rank-exchanged",
    severity=Severity.ERROR,
    otherwise="no launch sets a process's rank from its task's numbers",
)
def rank_and_local_rank_exchanged(job: Job) -> Iterator[Verdict]:
    """Two processes of a launch have the same rank, or a local rank that their node does not have.

    What it checks: LOCAL_RANK, FLAGS_selected_gpus and CUDA_VISIBLE_DEVICES do not have the number of the task in the
    whole job (SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK), and RANK and PADDLE_TRAINER_ID not its number on the node
    (SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK). No two processes pass the same `rank=` to `init_process_group`.

    Why it matters: The two numbers are equal only on the first node. Ranks on the other nodes use GPUs that no node has
    ("invalid device ordinal"), or each rank exists once per node and all wait for the missing ranks.

    Example: `export LOCAL_RANK=${OMPI_COMM_WORLD_RANK}` in two pods with two slots each.

    Fix: `LOCAL_RANK=$SLURM_LOCALID` or `$OMPI_COMM_WORLD_LOCAL_RANK`, `RANK=$SLURM_PROCID` or `$OMPI_COMM_WORLD_RANK`.

    Known limits: Numbers that the shell computes (`$((SLURM_PROCID % 8))`) are not judged, nor a `rank=` that the
    program does not take from the launcher's variables.
    """
    for launch in job.launches:
        # CFG002 reports an argument that names a local rank itself.
        is_named = any(c.value == Known("local") for c in job.setting("setting.torch_group.rank.rank", launch.scope))
        for claim in () if is_named else job.setting("rank_taken_twice", launch.scope):
            number, one, other = items(claim.value)
            yield failed(
                launch.id,
                f"{quoted(claim)} gives processes {one} and {other} of the launch rank {number}: all processes wait "
                "for the missing ranks.",
                at=claim,
                also=((launch, "the processes"),),
                remedy="Use each process's number in the whole job: RANK (torchrun), SLURM_PROCID or "
                "OMPI_COMM_WORLD_RANK.",
            )
        for name, symbol in _OTHER_NUMBERS.items():
            claims = job.setting(f"env.{name}", launch.scope)
            if not claims or claims[0].value != Unresolved(symbol.value):
                continue
            nodes, node_claims = nodes_spanned(job, launch)
            ranks = job.setting("processes_per_node", launch.scope)
            if certainly_one(nodes) or (ranks and certainly_one(job_value(ranks))):
                yield passed(launch.id)
            elif not certainly_several(nodes) or not node_claims:
                yield unknown(
                    launch.id, f"the number of nodes that {quoted(claims[0])} applies to is unknown", at=claims[0]
                )
            else:
                several = next((each for each in node_claims if certainly_several(each.value)), node_claims[0])
                yield failed(
                    launch.id,
                    f"{quoted(claims[0])} is {symbol.value}, but {placed(several)} requests several nodes: "
                    + (
                        "only the first node has a GPU with that index."
                        if symbol is Symbol.PROCESS_RANK
                        else "every node starts its own rank 0, and all processes wait for the missing ranks."
                    ),
                    at=claims[0],
                    also=((several, "several nodes"),),
                    remedy=f"Set {name} from the task's other number "
                    f"({' or '.join(_NUMBERS_OF_TASK[symbol is Symbol.PROCESS_RANK])}).",
                )


#: The variables of the number of a task in the whole job, and on its node.
_NUMBERS_OF_TASK = (
    ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
