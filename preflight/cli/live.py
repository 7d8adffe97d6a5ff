"""`preflight nodes` and `preflight smoke`: the checks of nodes without a job, and the smoke run alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from preflight.cli import live_options, options

if TYPE_CHECKING:
    from preflight.commands.as_launched.plan import Relaunch
    from preflight.model.options import InjectedFault


class _WithProperties(click.Command):
    """A command whose help ends with the properties that may be required."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the properties. Their module is imported only here, because it needs more than click."""
        from preflight.model.nodes import PROPERTIES

        with formatter.section("Properties for --expect"):
            formatter.write_dl(list(PROPERTIES.items()))


@click.command(cls=_WithProperties)
@live_options.NODE_OPTIONS
@click.option(
    "--expect",
    "requirements",
    multiple=True,
    metavar="NAME=VALUE",
    help="What every node must have: gpus=8, driver=550, memory>=1000. With = a version may be a part (550 of 550.54) "
    "and a text a part of a longer one; == compares all of it. gpus=N also turns on the checks of GPUs. Repeatable.",
)
@click.option(
    "--golden",
    metavar="NODE|FILE[:NODE]",
    default="",
    help="Every node must have the properties of this one, which is examined as well, or of one in a saved recording.",
)
@live_options.until("link", "a short training run (needs --python)")
@live_options.SAVE
@live_options.HISTORY
@live_options.ACT
@live_options.STEPS
@live_options.STAGE_DEADLINES
@live_options.LINKS
@live_options.SMOKE
@options.JUDGE_OPTIONS
def nodes(save: Path | None, **chosen: Any) -> int:
    """Check nodes and the links between them without a job: before they take work, every night, after a repair.

    Nodes are found and reached as by check: --hosts, --hostfile, --on slurm, kubernetes, ray or mpi. Checks that
    compare something with a job's files do not apply.
    """
    return live_options.run_live("nodes", (), None, save, chosen)


#: Folder for the changed script and the trainer, unless --to gives another.
DEFAULT_FOLDER = "preflight-smoke"
_COUNT = click.IntRange(1, 10_000)
#: Parameters that are valid only with --as-launched, and those that are also valid with it.
_ONLY_AS_LAUNCHED = ("folder", "launch", "runs", "submits", "wait_deadline", "deadline", "queue_deadline")
_ALLOWED_AS_LAUNCHED = (*_ONLY_AS_LAUNCHED, "paths", "as_launched", "trust_job", "steps", "backend", "root")


def _read_fault(context: click.Context, parameter: click.Parameter, text: str | None) -> InjectedFault | None:
    from preflight._util.usage_error import UsageError
    from preflight.model.options import parse_injected_fault

    try:
        return parse_injected_fault(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"--inject-fault {text}: {error}") from None


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@live_options.NODE_OPTIONS
@click.option(
    "--mode",
    type=click.Choice(["sync", "async", "ssp", "geo"]),
    help="How servers apply updates, instead of the job's own mode.",
)
@click.option("--staleness", type=click.IntRange(0, 1000), metavar="N", help="With ssp: the largest lead in steps.")
@click.option("--geo-steps", type=_COUNT, metavar="K", help="With geo: local steps between two exchanges.")
@click.option(
    "--server-device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where servers keep their parameters, instead of the job's own place.",
)
@click.option("--servers", type=_COUNT, default=None, metavar="N", help="Without PATHS: number of parameter servers.")
@click.option("--workers", type=_COUNT, default=None, metavar="M", help="Without PATHS: number of workers.")
@click.option(
    "--inject-fault",
    "--drill",
    "injected_fault",
    metavar="KIND[:TARGET]",
    callback=_read_fault,
    help="Inject a fault (delay, loss, kill, stop, flip or double) into rank2, worker1 or server0 (default: the last "
    "process), from step 3 on with @3, to see how it is reported and how soon.",
)
@live_options.BACKUP
@live_options.PROFILE_MODEL
@live_options.BACKEND
@live_options.STEPS
@live_options.SAVE
@live_options.STAGE_DEADLINES
@live_options.SMOKE
@click.option(
    "--as-launched",
    is_flag=True,
    help="Keep the job's own script and launch line, and replace only its program by the reference trainer. "
    "The options from here to --queue-deadline need it.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the changed script and the trainer to this folder, which all nodes must share.",
)
@click.option("--launch", type=click.IntRange(min=1), metavar="N", help="Replace only launch N of the script.")
@click.option("--run", "runs", is_flag=True, help="Run the changed script here; needs --trust-job.")
@click.option("--submit", "submits", is_flag=True, help="Submit it with sbatch and wait; needs --trust-job.")
@live_options.deadline(
    "--wait-deadline", 60.0, "Time limit for all ranks to join; half of it for each step.", minimum=5, maximum=3600
)
@live_options.deadline("--deadline", 600.0, "Time limit for the whole script once it runs.", minimum=5, maximum=86400)
@live_options.deadline(
    "--queue-deadline", 3600.0, "Time limit for a submitted job to start.", minimum=1, maximum=7 * 86400
)
@options.ROOT
@options.JUDGE_OPTIONS
@click.pass_context
def smoke(
    context: click.Context,
    /,
    paths: tuple[Path, ...],
    as_launched: bool,
    root: Path | None,
    save: Path | None,
    **chosen: Any,
) -> int:
    """Train a few steps with a known result on a job's nodes: only the last stage of check.

    PATHS are the job's files. They are read to see what runs where, and are not judged. Nodes are found and reached as
    by check, and only the facts that the run needs are collected. Without PATHS the run uses the nodes of --hosts or
    --hostfile: one rank per node, or a parameter-server run with --servers and --workers.

    With --as-launched the training program in the job's script, with its arguments, is replaced by the reference
    trainer; srun, torchrun, containers, the environment and everything else stay byte for byte. Without --to, --run or
    --submit the changed script is printed and no file is written.
    """
    from preflight._util.usage_error import UsageError

    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    misplaced = [
        name for name in given if (name not in _ALLOWED_AS_LAUNCHED if as_launched else name in _ONLY_AS_LAUNCHED)
    ]
    if misplaced:
        listed = ", ".join(_option_name(context, name) for name in misplaced)
        raise UsageError(f"{listed}: {'not valid with' if as_launched else 'only valid with'} --as-launched")
    if as_launched:
        return _smoke_as_launched(paths, root, chosen)
    if not paths and not chosen["hosts"] and not chosen["hostfile"]:
        raise UsageError("no nodes to run on: name the job's files, or give the nodes with --hosts or --hostfile")

    return live_options.run_live("smoke", paths, root, save, chosen)


def _option_name(context: click.Context, name: str) -> str:
    return next(option.opts[-1] for option in context.command.params if option.name == name)


def _smoke_as_launched(paths: tuple[Path, ...], root: Path | None, chosen: dict[str, Any]) -> int:
    from preflight._util.usage_error import UsageError
    from preflight.commands.as_launched.script_edits import Refusal

    if len(paths) != 1:
        raise UsageError("--as-launched takes exactly one script: the one that is submitted or run")
    if chosen["runs"] and chosen["submits"]:
        raise UsageError("--run and --submit exclude each other")
    if (chosen["runs"] or chosen["submits"]) and not chosen["trust_job"]:
        what = "--run" if chosen["runs"] else "--submit"
        raise UsageError(f"{what} also runs everything else in the job's script; add --trust-job to allow this")
    chosen["steps"] = chosen["steps"] or 10
    try:
        return _as_launched(paths[0], root, chosen)
    except Refusal as refusal:
        raise UsageError(str(refusal)) from None


def _as_launched(script: Path, root: Path | None, chosen: dict[str, Any]) -> int:
    from preflight.commands.as_launched import execution, plan
    from preflight.commands.as_launched.execution import trainer_file
    from preflight.commands.as_launched.script_edits import Refusal
    from preflight.config.selection import jobs_in
    from preflight.sources.discovery.walk import root_of

    top = root_of((script,), root)
    acts = chosen["runs"] or chosen["submits"]
    folder = (chosen["folder"] or Path(DEFAULT_FOLDER)).absolute()
    path = script.absolute().relative_to(top.absolute()).as_posix()
    made = plan.plan(top, path, folder, launch=chosen["launch"])
    jobs = jobs_in((script,), root=root)
    plan.refuse_servers(jobs, made.replaced)
    _describe(made, folder)
    if chosen["folder"] is None and not acts:
        if len(made.copies) > 1:
            others = ", ".join(copy.path for copy in made.copies[1:])
            raise Refusal(f"{others} must change as well; use --to DIR to write all of them")
        _show(execution.encoded(top, made.copies[0]), made.copies[0].path)
        return 0
    if chosen["submits"] and not made.batch:
        raise Refusal(f"--submit needs a script with #SBATCH lines, and {path} has none; use --run to run it here")
    reports = folder / "reports" / (f"{time.time_ns():x}" if acts else "")
    settings = {
        "report_dir": str(reports),
        "steps": chosen["steps"],
        "timeout_s": chosen["wait_deadline"],
        "deadline_s": chosen["deadline"],
    }
    ranks, backends = plan.ranks_of(jobs), plan.backends_of(jobs)
    trainers = {
        Path(launch.trainer).name: trainer_file(
            {
                **settings,
                "launch": launch.number,
                "expected_ranks": ranks.get(launch.launch),
                **({"spawn": plan.spawned_by(jobs, launch)} if launch.spawns else {}),
                "backend": chosen["backend"] or backends.get(launch.launch, "auto"),
            }
        )
        for launch in made.replaced
    }
    for launch in made.replaced:
        asked = backends.get(launch.launch)
        if chosen["backend"] and asked and asked != chosen["backend"]:
            _print_error(
                f"launch {launch.number} asks for {asked}, which is not tested: --smoke-backend {chosen['backend']}"
            )
    written = execution.write(top, made, trainers, folder)
    _print_error(f"wrote:  {', '.join(map(str, written))}")
    if chosen["runs"]:
        ended = execution.run(written[0], made.interpreter, deadline_s=chosen["deadline"])
    elif chosen["submits"]:
        ended = execution.submit(
            written[0], deadline_s=chosen["deadline"], queue_deadline_s=chosen["queue_deadline"], report=_print_error
        )
    else:
        return 0
    execution.await_reports(ended, reports)
    verdict = execution.judge(ended, reports, {launch.number: launch.condition for launch in made.replaced})
    _print_error(verdict.line)
    return verdict.exit_code


def _describe(made: Relaunch, folder: Path) -> None:
    for launch in made.replaced:
        removed = " ".join(launch.removed)
        _print_error(
            f"launch {launch.number} at {launch.place} ({launch.launcher}): `{removed}` becomes {launch.trainer}"
        )
        if launch.kept:
            _print_error(f"  its arguments are kept, and the trainer ignores them: `{' '.join(launch.kept)}`")
        if launch.image:
            _print_error(f"  it runs in the container {launch.image}: {folder} must be visible there at the same path")
    for left in made.not_replaced:
        _print_error(f"not replaced, so it would really run: {left}")


def _show(data: bytes, path: str) -> None:
    """Print a script. If it contains secrets, print it only to a terminal, with the secrets hidden."""
    from preflight._util.sanitize import clean
    from preflight.commands.as_launched.script_edits import Refusal
    from preflight.reporters.output import print_bytes
    from preflight.sources.base import SourceFile
    from preflight.sources.secrets import shown_lines

    text = data.decode("utf-8", "replace")
    shown = shown_lines(SourceFile(path, text, "", len(data)))(text)
    if sys.stdout.isatty():
        data = clean(shown, keep_newlines=True).encode("utf-8", "replace")
    elif shown != text:
        raise Refusal(
            f"{path} appears to contain a secret, which is not written to standard output because logs keep it; "
            "use --to DIR to write the script to a folder"
        )
    print_bytes(data)


def _print_error(text: str) -> None:
    from preflight._util.redaction import scrub
    from preflight._util.sanitize import clean, neutralize_commands

    click.echo(neutralize_commands(f"preflight: {clean(scrub(text))}"), err=True)
