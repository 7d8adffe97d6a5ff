"""The setup of Paddle scripts: required modules, the parallel environment, closing the executor, and the order in which
static programs are built, cloned and run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, SubjectQuestion, claims_about, launches_with, subjects
from preflight_rules.launches import certainly_one, ranks_started
from preflight_rules.paddle.fleet import distinct_claims, is_started_manually

#: The first release without paddle.fluid.
_FIRST_WITHOUT_FLUID = "2.5.0"
#: The first release with Executor.close().
_FIRST_WITH_CLOSE = "0.15"


@rule(
    "FLU009",
    "fluid-missing-in-paddle",
    severity=Severity.ERROR,
    applies_to="paddlepaddle >= 2.5",
    otherwise="no script imports paddle.fluid",
    each=claims_about("imports_fluid", also=(lambda job, scope: job.value_claims("paddle_version", scope),)),
)
def fluid_missing_in_paddle(question: SubjectQuestion) -> Verdict | None:
    """A script imports paddle.fluid, but the job installs a Paddle release that no longer has it.

    What it checks: If a script imports paddle.fluid, the PaddlePaddle release that the job's files name is older than
    2.5.

    Why it matters: The import fails on every rank, after the job has been scheduled and placed.

    Example: `import paddle.fluid as fluid` and `paddlepaddle-gpu==2.6.1` in requirements.txt.

    Fix: Pin an older release, or use paddle.static and paddle.distributed.fleet.

    Known limits: Only a release that the job's files name is known. An import inside `try` is not judged.
    """
    (claim,), versions = question.of
    releases = [text for version in versions for text in texts(version.value)]
    if not releases:
        return unknown(question.subject, "the PaddlePaddle release is not given", at=claim)
    if not all(is_at_least_release(_FIRST_WITHOUT_FLUID, text) for text in releases):
        return None
    return failed(
        question.subject,
        f"{quoted(claim)}: {placed(versions[0])} is PaddlePaddle {releases[0]}, but paddle.fluid was removed in "
        f"{_FIRST_WITHOUT_FLUID}.",
        at=claim,
        also=((versions[0], "the release"),),
        remedy="Pin a release before 2.5, or use paddle.static and paddle.distributed.fleet.",
    )


def is_at_least_release(first: str, text: str) -> bool:
    """Return whether `text` is the version `first` or a later one; False if it is not a version."""
    from packaging.version import Version

    try:
        return Version(text) >= Version(first)
    # ValueError is also raised for a number of thousands of digits.
    except ValueError:
        return False


@rule(
    "FLU010",
    "executor-never-closed",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no script trains a transpiled program with an executor that it creates",
)
def executor_never_closed(job: Job) -> Iterator[Verdict]:
    """A trainer of the transpiler ends without notifying its servers.

    What it checks: A script that transpiles for parameter servers and trains with an Executor calls its `close()`.

    Why it matters: `close()` notifies the servers that this trainer has finished. Without it they never end: the job
    occupies its hosts until someone kills it, although training succeeded.

    Example: `exe.run(t.get_trainer_program(), ...)` in a loop, and nothing after it.

    Fix: Call `exe.close()` when training has ended.

    Known limits: Releases before 0.15 have no `close()`, and are not judged; nor is a script that passes the program to
    another script, or to a trainer class. Unless the processes are started manually, the finding is only a hint: a
    controller may end the servers.
    """
    for subject, scope, claim in distinct_claims(job, "executor_closed"):
        owner = next((c for c in job.about("transpiler", scope) if c.span.path == claim.span.path), None)
        if owner is None:
            continue
        modes = set(texts(owner.value))
        versions = [text for each in job.value_claims("paddle_version", scope) for text in texts(each.value)]
        is_older = bool(versions) and not any(is_at_least_release(_FIRST_WITH_CLOSE, text) for text in versions)
        if claim.alternatives == (True,) or modes - {"pserver"} or is_older:
            yield passed(subject)
        elif not modes or claim.condition:
            yield unknown(subject, f"{quoted(owner)}: its mode is known only at run time", at=owner)
        else:
            yield failed(
                subject,
                f"{quoted(claim)} is never closed: the servers of {placed(owner)} never learn that training has "
                "ended, and do not exit.",
                at=claim,
                also=((owner, "the transpiler"),),
                remedy="Call `close()` on the executor when training has ended.",
                severity=None if is_started_manually(job) else Severity.INFO,
            )


@rule(
    "PDL008",
    "parallel-environment-never-made",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script that Paddle's launcher starts wraps its model",
)
def parallel_environment_never_made(job: Job) -> Iterator[Verdict]:
    """A model is wrapped in paddle.DataParallel but the parallel environment is never initialized.

    What it checks: A script that Paddle's launcher starts and that wraps its model in paddle.DataParallel calls
    init_parallel_env, fleet.init or prepare_context, itself or in its own module.

    Why it matters: DataParallel then warns once and trains alone: every process trains its own model, and they
    overwrite each other's checkpoints.

    Example: `model = paddle.DataParallel(model)` without `paddle.distributed.init_parallel_env()`.

    Fix: Call `paddle.distributed.init_parallel_env()` first.

    Known limits: A call in a library is not recognized.
    """
    judged_lines: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        wrappers = [c for c in job.about("uses_ddp", scope) if c.spelling.startswith(("paddle.DataParallel", "fluid."))]
        if launch is None or launch.launcher != "paddle" or not wrappers:
            continue
        if (wrappers[0].span.path, wrappers[0].span.line) in judged_lines:
            continue
        judged_lines.add((wrappers[0].span.path, wrappers[0].span.line))
        is_alone = certainly_one(ranks_started(job, scope)[0])
        if is_alone or job.about("parallel_environment", scope) or job.about("training_framework", scope):
            yield passed(subject)
        else:
            yield undecided(subject, (wrappers[0],)) or failed(
                subject,
                f"{quoted(wrappers[0])}: nothing calls init_parallel_env or fleet.init, so each process trains alone.",
                at=wrappers[0],
                also=((launch, "starts the processes"),),
                remedy="Call `paddle.distributed.init_parallel_env()` first.",
            )


@rule(
    "PDL001",
    "distributed-option-with-one-trainer",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch with PADDLE_TRAINERS_NUM requests distributed training",
    each=launches_with(
        "env.PADDLE_TRAINERS_NUM",
        where=lambda stated: stated.launch.launcher == "python" and bool(_distributed_option(stated.launch)),
    ),
)
def distributed_option_with_one_trainer(question: LaunchQuestion) -> Verdict | None:
    """The program has an option for distributed training, but the job has one trainer.

    What it checks: A program that is started manually with `--dist`, `--distributed`, `--is_distributed` or
    `--use_dist` is given more than one trainer where PADDLE_TRAINERS_NUM is set.

    Why it matters: The program waits for peers that do not exist, and hangs.

    Example: `export PADDLE_TRAINERS_NUM=1` and `python tools/train.py -c c.yml --dist`.

    Fix: Omit the option with one trainer, or start the program with `python -m paddle.distributed.launch`.

    Known limits: The option is recognized only by its name.
    """
    (counts,), launch = question.of, question.of.launch
    if set(numbers(job_value(counts))) != {1}:
        return None
    option = _distributed_option(launch)
    return failed(
        question.subject,
        f"`{option}` requests distributed training, but {placed(counts[0])} sets one trainer:"
        " the program waits for peers that are never started.",
        at=launch,
        also=((counts[0], "one trainer"),),
        remedy=f"Remove `{option}` if there is only one trainer.",
    )


_DISTRIBUTED_OPTIONS = re.compile(r"--(?:use_|is_)?dist(?:ributed)?(?:=(?:1|true|True))?")


def _distributed_option(launch: Launch) -> str:
    for index, text in enumerate(launch.arguments):
        if text is None or not _DISTRIBUTED_OPTIONS.fullmatch(text):
            continue
        following = launch.arguments[index + 1] if index + 1 < len(launch.arguments) else "--"
        if following is not None and following.lower() not in ("false", "0", "no"):
            return text
    return ""


@rule(
    "PDL017",
    "gpu-launch-with-cpu-wheel",
    severity=Severity.ERROR,
    applies_to="paddlepaddle 2.0 to 2.2",
    otherwise="no job that uses Paddle's launcher installs Paddle",
)
def gpu_launch_with_cpu_wheel(job: Job) -> Iterator[Verdict]:
    """Paddle's launcher starts a GPU job, but the files install the CPU wheel.

    What it checks: If the files of a paddle.distributed.launch job without servers install Paddle, they install
    paddlepaddle-gpu, and the job does not run in Paddle's CPU image (`paddlepaddle/paddle:2.6.2`).

    Why it matters: The launcher of 2.0 to 2.2 finds no GPU support, treats it as a parameter-server job and stops:
    `The setting of Parameter-Server must has server_num or servers`. Newer launchers train on the CPU.

    Example: `python -m paddle.distributed.launch --gpus 0,1 train.py` and `paddlepaddle==2.1.0` in requirements.txt.

    Fix: Install paddlepaddle-gpu of the same release.

    Known limits: For releases outside 2.0 to 2.2 this is a warning, and only if the launch names GPUs, unless the
    program uses Fluid's collective Fleet, which trains only on GPUs. Since 3.0, both kinds of wheels may come from
    Paddle's own index and are not judged.
    """
    for launch in job.launches:
        wheels = [c for c in job.about("package", launch.scope) if any("paddlepaddle" in t for t in texts(c.value))]
        if launch.launcher != "paddle" or not wheels:
            continue
        claim = wheels[0]
        release = next(iter(texts(claim.value)), "").partition("==")[2]
        devices = job.setting("selected_devices", launch.scope)
        if any(re.search(r"paddle[-_]gpu", wheel.spelling) for wheel in wheels) or _starts_servers(job, launch):
            yield passed(launch.id)
        elif not release:
            yield unknown(launch.id, f"{quoted(claim)} does not name a release", at=claim)
        elif _OLD_LAUNCHER_RELEASES.match(release) and not _MODE_OPTIONS.search(launch.span.snippet):
            yield failed(
                launch.id,
                f"{quoted(claim)} is Paddle without CUDA: the launcher finds no GPU, assumes a parameter-server job "
                "and stops, because no server is given.",
                at=claim,
                also=((launch, "started here"),),
                remedy="Install this release of paddlepaddle-gpu.",
            )
        elif collective_claim := _fluid_collective(job, launch):
            yield failed(
                launch.id,
                f"{quoted(claim)} is Paddle without CUDA, but {placed(collective_claim)} selects Fluid's collective "
                "Fleet, which needs NCCL: every rank stops (`Operator gen_nccl_id has not been registered`).",
                at=claim,
                also=((collective_claim, "the collective role"),),
                remedy="Install this release of paddlepaddle-gpu.",
            )
        elif devices and not release.startswith("3"):
            yield failed(
                launch.id,
                f"{quoted(claim)} is Paddle without CUDA, but {placed(devices[0])} names GPUs.",
                at=claim,
                also=((devices[0], "GPUs"),),
                remedy="Install this release of paddlepaddle-gpu."
                if "paddlepaddle=" in claim.spelling
                else "Use the GPU image, whose tag contains -gpu.",
                severity=Severity.WARNING,
            )
        else:
            yield passed(launch.id)


def _fluid_collective(job: Job, launch: Launch) -> Claim | None:
    """Return the argument that makes a role of Fluid's Fleet collective; None if there is no such role."""
    functions = texts(job_value(job.about("setting.paddle_role.function", launch.scope)))
    claims = [c for c in job.about("setting.paddle_role.is_collective", launch.scope) if c.alternatives == (True,)]
    return claims[0] if claims and functions and all("fluid" in name for name in functions) else None


#: Releases whose launcher chooses its mode by the wheel, and options by which a launch chooses the mode.
_OLD_LAUNCHER_RELEASES = re.compile(r"2\.[012](?:\.|$)")
_MODE_OPTIONS = re.compile(
    r"--(?:servers|server_num|workers|worker_num|ips|nproc_per_node|run_mode|backend|http_port)\b"
)


def _starts_servers(job: Job, launch: Launch) -> bool:
    return any(claim.alternatives == (True,) for claim in job.about("ps_mode", launch.scope))


@rule(
    "PDL002",
    "test-program-cloned-after-minimize",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no function both clones a program for testing and minimizes it",
)
def test_program_cloned_after_minimize(job: Job) -> Iterator[Verdict]:
    """The program for evaluation is cloned after the optimizer has been added to it.

    What it checks: `clone(for_test=True)` comes before `minimize` in the same function.

    Why it matters: Before Fluid 1.6 the clone keeps the backward and optimizer operators: evaluation changes the
    parameters. With parameter servers it also sends gradients of the test data.

    Example: `sgd.minimize(loss)` and then `test_program = main_program.clone(for_test=True)`.

    Fix: Clone first, then minimize.

    Known limits: Since 1.6, the clone is pruned; a script that does not use `paddle.fluid` gets only a hint.
    """
    for subject, scope, claim in distinct_claims(job, "test_program_cloned"):
        if claim.alternatives != ("after",):
            yield (
                passed(subject)
                if claim.alternatives
                else unknown(subject, f"{quoted(claim)}: the order of the calls is unknown")
            )
            continue
        minimize = claim.because[0]
        uses_fluid = "fluid" in claim.spelling + minimize.spelling or bool(job.about("transpiler", scope))
        yield undecided(subject, (claim,)) or failed(
            subject,
            f"{quoted(claim)} comes after {quoted(minimize)} ({where(minimize)}): before Fluid 1.6 the test program"
            " still holds the optimizer and changes the parameters.",
            at=claim,
            also=((minimize, "minimize"),),
            remedy="Clone the program before minimize.",
            severity=None if uses_fluid else Severity.INFO,
        )


@rule(
    "PDL004",
    "startup-program-never-run",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script trains a static program",
)
def startup_program_never_run(job: Job) -> Iterator[Verdict]:
    """A static program is trained without running its startup program.

    What it checks: A script that minimizes a static program and feeds it to an Executor also runs a startup program, or
    loads parameters.

    Why it matters: The parameters have no memory: the first step stops with "Tensor holds no memory", on every rank,
    after the whole job has been placed and started.

    Example: `exe.run(main_program, feed=..., fetch_list=[loss])` without `exe.run(startup_program)`.

    Fix: `exe.run(paddle.static.default_startup_program())` before the first step.

    Known limits: A program run under another name, without feed and fetch, is treated as the startup program.
    """
    for subject, _, claim in distinct_claims(job, "startup_program_run"):
        if claim.alternatives != (False,):
            yield passed(subject)
        else:
            yield undecided(subject, (claim,)) or failed(
                subject,
                f"{quoted(claim)} trains a program whose startup program is never run: its parameters are empty.",
                at=claim,
                remedy="Run the startup program first: `exe.run(startup_program)`.",
            )


@rule(
    "PDL029",
    "evaluation-clone-keeps-training-mode",
    severity=Severity.WARNING,
    otherwise="no program is cloned for evaluation",
    passes_with=("test_program_cloned",),
    each=claims_about("evaluation_clone_trains"),
)
def evaluation_clone_keeps_training_mode(question: SubjectQuestion) -> Verdict | None:
    """A program is cloned for evaluation without `for_test=True`.

    What it checks: If the name of the variable or function suggests evaluation, `clone` is called with `for_test=True`.

    Why it matters: The clone keeps dropout, the batch statistics of BatchNorm, and after `minimize` the optimizer:
    evaluation gives random results and trains on the evaluation data.

    Example: `test_program = fluid.default_main_program().clone()`.

    Fix: `test_program = main_program.clone(for_test=True)`, before `minimize`.

    Known limits: The purpose is recognized only by names: test, eval, infer, valid or pred. A computed `for_test` is
    not judged.
    """
    (claim,) = question.claims
    return failed(
        question.subject,
        f"{quoted(claim)} is used for evaluation, but without for_test=True it is a training program.",
        at=claim,
        remedy="Clone with for_test=True, before minimize.",
    )


@rule(
    "PDL030",
    "program-input-not-fed",
    severity=Severity.ERROR,
    otherwise="no script trains a static program",
    passes_with=("startup_program_run",),
)
def program_input_not_fed(job: Job) -> Iterator[Verdict]:
    """A run of a static program does not feed an input that its loss needs.

    What it checks: Each `Executor.run` that fetches the loss, and each data set of `train_from_dataset`, feeds every
    data layer from which the loss is computed.

    Why it matters: The input has no memory: the first step stops with "Tensor holds no memory" or "feed ... not found",
    on every rank, after the whole job has been placed and started.

    Example: `exe.run(feed={"x": image}, fetch_list=[loss])`, where the loss also needs `y`.

    Fix: Feed all inputs, under the names of their data layers.

    Known limits: Judged only if layers, loss and feed are in one script, with literal names. A program that reads
    through `py_reader` or a generator is not judged.
    """
    for subject, _, claim in distinct_claims(job, "inputs_not_fed"):
        names = joined(name for value in claim.alternatives if isinstance(value, tuple) for name in value)
        if claim.condition and not _tests_role(claim.condition):
            yield unknown(subject, f"{quoted(claim)} is given under `{claim.condition}`", at=claim)
            continue
        yield failed(
            subject,
            f"{quoted(claim)} leaves out {names}, from which the loss is computed: the first step fails.",
            at=claim,
            remedy=f"Also feed {names}, under the name of its data layer.",
        )


def _tests_role(condition: str) -> bool:
    """Return whether a condition tests only the role of the process, so that trainers take its branch."""
    words = ("is_worker", "is_server", "PSERVER", "TRAINER", "role")
    return " and " not in condition and any(word in condition for word in words)


@rule(
    "PDL031",
    "served-table-without-servers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script runs a program with a table on parameter servers",
)
def served_table_without_servers(job: Job) -> Iterator[Verdict]:
    """A table that exists only on parameter servers is used in a program that runs without servers.

    What it checks: A script with `sparse_embedding`, or an embedding with `is_distributed=True`, starts Fleet or
    transpiles its program.

    Why it matters: The trainer has no such table: rows are fetched from a server. Run locally, the program stops at its
    first step or looks up a table that is never initialized.

    Example: `paddle.static.nn.sparse_embedding(ids, size=[1000000, 16])` in a script started by `python train.py`.

    Fix: Locally: `paddle.static.nn.embedding(ids, size, is_sparse=True)`. Otherwise start it with servers.

    Known limits: Judged only if the script itself minimizes and runs its program, and no other file of the job starts
    Fleet.
    """
    for subject, scope, table in distinct_claims(job, "served_table"):
        program_runs = [
            claim for claim in job.about("startup_program_run", scope) if claim.span.path == table.span.path
        ]
        if not program_runs:
            continue
        if job.about("waits_for_servers", scope) or job.about("transpiler", scope) or job.about("ps_mode", scope):
            yield passed(subject)
        elif table.condition or len(job.files) > _FEW_FILES:
            yield unknown(subject, f"another file may start servers for {quoted(table)}", at=table)
        else:
            yield failed(
                subject,
                f"{quoted(table)} keeps its table on parameter servers, but nothing starts Fleet or transpiles the"
                " program.",
                at=table,
                remedy="Run the program with parameter servers, or use embedding(..., is_sparse=True) without "
                "is_distributed.",
            )


#: With more files than this, another file may start servers.
_FEW_FILES = 6
