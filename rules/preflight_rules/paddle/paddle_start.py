"""What a script of Paddle needs before it can train in several processes: the framework's parts, and its set-up."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Launch
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.paddle.fleet import once, started_by_hand
from preflight_rules.reading import deciding, job_value, numbers, placed, quoted, subjects, texts, undecided

#: The first release without paddle.fluid.
_FIRST_WITHOUT_FLUID = "2.5.0"


@rule(
    "FLU009",
    "fluid-missing-in-paddle",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle >= 2.5",
    evidence=("https://github.com/PaddlePaddle/Paddle/releases/tag/v2.5.0",),
)
def fluid_missing_in_paddle(job: Job) -> Iterator[Verdict]:
    """A script imports paddle.fluid, and the job installs a Paddle that no longer has it.

    What it checks:
        Where a script imports paddle.fluid, the PaddlePaddle release that the job's files name is older than 2.5.

    Why it matters:
        The import fails on every rank, after the job has been scheduled and placed.

    Example:
        `import paddle.fluid as fluid` and `paddlepaddle-gpu==2.6.1` in requirements.txt.

    Fix:
        Pin an older release, or use paddle.static and paddle.distributed.fleet.

    Known limits:
        Only a release that the job's files name is known. An import inside `try` is not judged.

    Evidence:
        Release notes of PaddlePaddle 2.5.0 (paddle.fluid removed).
    """
    met = False
    for subject, scope, claim in once(job, "imports_fluid"):
        met = True
        versions = deciding(job, "paddle_version", scope)
        open_end = undecided(subject, (claim, *versions))
        found = [text for version in versions for text in texts(version.value)]
        if open_end is not None or not found:
            yield open_end or unknown(subject, "nothing says which PaddlePaddle release runs it", at=claim)
        elif all(_without_fluid(text) for text in found):
            yield failed(
                subject,
                f"{quoted(claim)}: {placed(versions[0])} is PaddlePaddle {found[0]}, which has no paddle.fluid (since"
                f" {_FIRST_WITHOUT_FLUID}).",
                at=claim,
                also=((versions[0], "the release"),),
                remedy="Pin a release before 2.5, or use paddle.static and paddle.distributed.fleet.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no script imports paddle.fluid")


def _without_fluid(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text) >= Version(_FIRST_WITHOUT_FLUID)
    except InvalidVersion:
        return False


@rule(
    "FLU010",
    "executor-never-closed",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    evidence=("PaddlePaddle/Paddle#13519", "PaddlePaddle/Paddle#8662", "PaddlePaddle/Paddle#17805"),
)
def executor_never_closed(job: Job) -> Iterator[Verdict]:
    """A trainer of the transpiler ends without telling its servers.

    What it checks:
        A script that transpiles for parameter servers and trains by an Executor calls its `close()`.

    Why it matters:
        `close()` tells the servers that this trainer is done. Without it they never end: the job holds its hosts until
        somebody kills it, although training succeeded.

    Example:
        `exe.run(t.get_trainer_program(), ...)` in a loop, and nothing behind it.

    Fix:
        Call `exe.close()` when training has ended.

    Known limits:
        A script that hands the program to another one, or to a trainer class, is not judged. Where nothing says that
        the processes are started by hand it is a hint only: a controller may end the servers.

    Evidence:
        PaddlePaddle/Paddle#13519 (the answer), PaddlePaddle/Paddle#8662 and #17805.
    """
    met = False
    for subject, scope, claim in once(job, "executor_closed"):
        owner = next((c for c in job.about("transpiler", scope) if c.span.path == claim.span.path), None)
        if owner is None:
            continue
        met = True
        modes = set(texts(owner.value))
        if claim.alternatives == (True,) or modes - {"pserver"}:
            yield passed(subject)
        elif not modes or claim.condition:
            yield unknown(subject, f"{quoted(owner)}: its mode is known only at run time", at=owner)
        else:
            yield failed(
                subject,
                f"{quoted(claim)} is never closed: the servers of {placed(owner)} do not learn that training has ended,"
                " and never exit.",
                at=claim,
                also=((owner, "the transpiler"),),
                remedy="Call `close()` on the executor when training has ended.",
                severity=None if started_by_hand(job) else Severity.INFO,
            )
    if not met:
        yield not_applicable(job.name, "no script trains a transpiled program by an executor of its own")


@rule(
    "PDL008",
    "parallel-environment-never-made",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://github.com/PaddlePaddle/Paddle/blob/v2.6.2/python/paddle/distributed/parallel.py",),
)
def parallel_environment_never_made(job: Job) -> Iterator[Verdict]:
    """A model is wrapped in paddle.DataParallel and nothing connects the processes.

    What it checks:
        A script that Paddle's launcher starts and that wraps its model in paddle.DataParallel calls
        init_parallel_env, fleet.init or prepare_context, itself or in a module of its own.

    Why it matters:
        DataParallel then warns once and trains alone: every process trains a model of its own, and they overwrite
        each other's checkpoints.

    Example:
        `model = paddle.DataParallel(model)` without `paddle.distributed.init_parallel_env()`.

    Fix:
        Call `paddle.distributed.init_parallel_env()` first.

    Known limits:
        A library that does it is not seen.

    Evidence:
        paddle/distributed/parallel.py of 2.6.2 (DataParallel).
    """
    met = False
    judged: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        wrapped = [c for c in job.about("uses_ddp", scope) if c.spelling.startswith(("paddle.DataParallel", "fluid."))]
        if launch is None or launch.launcher != "paddle" or not wrapped:
            continue
        if (wrapped[0].span.path, wrapped[0].span.line) in judged:
            continue
        judged.add((wrapped[0].span.path, wrapped[0].span.line))
        met = True
        if job.about("parallel_environment", scope) or job.about("training_framework", scope):
            yield passed(subject)
        elif wrapped[0].condition:
            yield unknown(subject, f"{quoted(wrapped[0])} holds under `{wrapped[0].condition}`", at=wrapped[0])
        else:
            yield failed(
                subject,
                f"{quoted(wrapped[0])}: nothing calls init_parallel_env or fleet.init, so each process trains alone.",
                at=wrapped[0],
                also=((launch, "starts the processes"),),
                remedy="Call `paddle.distributed.init_parallel_env()` before it.",
            )
    if not met:
        yield not_applicable(job.name, "no script of Paddle's launcher wraps its model")


@rule(
    "PDL001",
    "distributed-option-with-one-trainer",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/PaddleDetection#1232",),
)
def distributed_option_with_one_trainer(job: Job) -> Iterator[Verdict]:
    """The program is told to train distributed, and the job has one trainer.

    What it checks:
        A program started by hand with `--dist`, `--distributed`, `--is_distributed` or `--use_dist` is given more
        than one trainer where PADDLE_TRAINERS_NUM says how many there are.

    Why it matters:
        The program prepares for peers that no variable names, and waits for them: on one machine it hangs.

    Example:
        `export PADDLE_TRAINERS_NUM=1` and `python tools/train.py -c c.yml --dist`.

    Fix:
        Leave the option out on one trainer, or start the program with `python -m paddle.distributed.launch`.

    Known limits:
        What the option does is the program's own matter; only its name is known.

    Evidence:
        PaddlePaddle/PaddleDetection#1232.
    """
    met = False
    for launch in job.launches:
        counts = job.about("env.PADDLE_TRAINERS_NUM", launch.scope)
        option = _distributed_option(launch)
        if launch.launcher != "python" or not counts or not option:
            continue
        met = True
        found = job.setting("env.PADDLE_TRAINERS_NUM", launch.scope)
        open_end = undecided(launch.id, found, launch)
        if open_end is not None:
            yield open_end
        elif set(numbers(job_value(found))) == {1}:
            yield failed(
                launch.id,
                f"`{option}` asks for distributed training, but {placed(found[0])} says there is one trainer: the"
                " program waits for peers that nobody starts.",
                at=launch,
                also=((found[0], "one trainer"),),
                remedy=f"Leave `{option}` out for one trainer.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch with PADDLE_TRAINERS_NUM asks for distributed training")


_DISTRIBUTED = lazy_pattern(r"--(?:use_|is_)?dist(?:ributed)?(?:=(?:1|true|True))?")


def _distributed_option(launch: Launch) -> str:
    for index, text in enumerate(launch.arguments):
        if text is None or not _DISTRIBUTED.fullmatch(text):
            continue
        following = launch.arguments[index + 1] if index + 1 < len(launch.arguments) else "--"
        if following is not None and following.lower() not in ("false", "0", "no"):
            return text
    return ""
