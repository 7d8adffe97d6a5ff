"""`preflight smoke`: the smoke run by itself, over preflight's own agents or as the job launches itself."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from preflight import cli_live, options

if TYPE_CHECKING:
    from preflight.check_options import CheckOptions
    from preflight.configuration import Configuration
    from preflight.progress import Progress
    from preflight.recording import Recording
    from preflight.relaunch.plan import Relaunch
    from preflight.report import Report
    from preflight.wish import Drill

#: Where the changed script and the trainer go unless --to says so.
DEFAULT_FOLDER = "preflight-smoke"
_COUNT = click.IntRange(1, 10_000)
#: Parameters that have a meaning with --as-launched alone, and those that have one with it, too.
_AS_LAUNCHED = ("folder", "launch", "runs", "submits", "wait_deadline", "deadline", "queue_deadline")
_ALSO_AS_LAUNCHED = (*_AS_LAUNCHED, "paths", "as_launched", "trust_job", "steps", "root")


def _drill(context: click.Context, parameter: click.Parameter, text: str | None) -> Drill | None:
    from preflight.errors import UsageError
    from preflight.wish import read_drill

    try:
        return read_drill(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"--drill {text}: {error}") from None


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@cli_live.REACHING
@click.option(
    "--mode",
    type=click.Choice(["sync", "async", "ssp", "geo"]),
    help="How servers apply what workers push, instead of the job's own way.",
)
@click.option("--staleness", type=click.IntRange(0, 1000), metavar="N", help="With ssp: so many steps ahead at most.")
@click.option("--geo-steps", type=_COUNT, metavar="K", help="With geo: local steps between two exchanges.")
@click.option("--servers", type=_COUNT, default=None, metavar="N", help="Without a JOB: so many parameter servers.")
@click.option("--workers", type=_COUNT, default=None, metavar="M", help="Without a JOB: their workers.")
@click.option(
    "--drill",
    metavar="KIND[:TARGET]",
    callback=_drill,
    help="Have one process of the run play a fault: delay, loss, kill, stop, flip or double, by rank2, worker1 or "
    "server0 (the last one unless said), from step 3 on with @3. Shows how it looks and how fast it is named.",
)
@cli_live.BACKUP
@cli_live.STEPS
@cli_live.SAVE
@cli_live.BEFORE
@cli_live.SMOKE
@click.option(
    "--as-launched",
    is_flag=True,
    help="Keep the job's own script and launch line, and put the reference trainer in the place of its program. "
    "The options from here to --queue-deadline go with it.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the changed script and the trainer into this folder, which all nodes must see.",
)
@click.option("--launch", type=click.IntRange(min=1), metavar="N", help="Replace only launch N of the script.")
@click.option("--run", "runs", is_flag=True, help="Run the changed script here; needs --trust-job.")
@click.option("--submit", "submits", is_flag=True, help="Submit it by sbatch and wait; needs --trust-job.")
@click.option(
    "--wait-deadline",
    type=click.FloatRange(5, 3600),
    default=60.0,
    show_default=True,
    metavar="S",
    help="For the ranks to meet; half of it for any single step.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(5, 86400),
    default=600.0,
    show_default=True,
    metavar="S",
    help="For the whole script, once it runs.",
)
@click.option(
    "--queue-deadline",
    type=click.FloatRange(1, 7 * 86400),
    default=3600.0,
    show_default=True,
    metavar="S",
    help="For a submitted job to start.",
)
@options.ROOT
@options.JUDGING
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
    """Train a few steps, whose right result is known, on the nodes of a job: the last stage of check by itself.

    PATHS are the job's files. They are read, for what runs where, and not judged; nodes are found and reached as by
    check, and asked only what the run itself needs. Without PATHS the run is over the nodes that --hosts or --hostfile
    name: one rank a node, or with --servers and --workers a parameter-server run.

    With --as-launched the job's script is read, and its training program and that program's arguments are replaced by
    the reference trainer; srun, torchrun, containers, environment and everything else stay byte for byte. Without
    --to, --run or --submit the changed script is printed and nothing is written.
    """
    from preflight.errors import UsageError

    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    strange = [name for name in given if (name not in _ALSO_AS_LAUNCHED if as_launched else name in _AS_LAUNCHED)]
    if strange:
        spelled = ", ".join(_spelled(context, name) for name in strange)
        raise UsageError(f"{spelled}: {'not together with' if as_launched else 'only together with'} --as-launched")
    if as_launched:
        return _with_its_launch_line(paths, root, chosen)
    if not paths and not chosen["hosts"] and not chosen["hostfile"]:
        raise UsageError("name the job's files, or with --hosts or --hostfile the nodes for a run without a job")

    def carry(wanted: CheckOptions, configuration: Configuration, progress: Progress) -> tuple[Recording, Report]:
        from preflight import api
        from preflight.recording import Wish

        wish = Wish(
            chosen["servers"] or 0,
            chosen["workers"] or 0,
            chosen["mode"] or "",
            chosen["staleness"],
            chosen["geo_steps"],
            drill=chosen["drill"],
            backup=chosen["backup"],
        )
        return api.smoke(paths, wanted, wish=wish, root=root, configuration=configuration, progress=progress)

    return cli_live.run_live("smoke", carry, paths, root, save, chosen)


def _spelled(context: click.Context, name: str) -> str:
    return next(option.opts[-1] for option in context.command.params if option.name == name)


def _with_its_launch_line(paths: tuple[Path, ...], root: Path | None, chosen: dict[str, Any]) -> int:
    from preflight.errors import UsageError
    from preflight.relaunch.edits import Refusal

    if len(paths) != 1:
        raise UsageError("--as-launched takes one script: the one that is submitted or run")
    if chosen["runs"] and chosen["submits"]:
        raise UsageError("--run and --submit exclude each other")
    if (chosen["runs"] or chosen["submits"]) and not chosen["trust_job"]:
        what = "--run" if chosen["runs"] else "--submit"
        raise UsageError(f"{what} lets everything else in the job's script run; it needs --trust-job")
    chosen["steps"] = chosen["steps"] or 10
    try:
        return _as_launched(paths[0], root, chosen)
    except Refusal as refusal:
        raise UsageError(str(refusal)) from None


def _as_launched(script: Path, root: Path | None, chosen: dict[str, Any]) -> int:
    from preflight import api
    from preflight.relaunch import plan, running, writing
    from preflight.relaunch.edits import Refusal
    from preflight.relaunch.trainer_file import trainer_file
    from preflight.roots import root_of

    top = root_of((script,), root)
    acts = chosen["runs"] or chosen["submits"]
    folder = (chosen["folder"] or Path(DEFAULT_FOLDER)).absolute()
    path = script.absolute().relative_to(top.absolute()).as_posix()
    made = plan.plan(top, path, folder, launch=chosen["launch"])
    _tell(made, folder)
    if chosen["folder"] is None and not acts:
        if len(made.copies) > 1:
            others = ", ".join(copy.path for copy in made.copies[1:])
            raise Refusal(f"{others} would have to change, too; --to DIR writes all of them")
        _show(writing.encoded(top, made.copies[0]))
        return 0
    if chosen["submits"] and not made.batch:
        raise Refusal(f"{path} has no #SBATCH line; --submit calls sbatch, and --run runs a script here")
    reports = folder / "reports" / (f"{time.time_ns():x}" if acts else "")
    settings = {
        "report_dir": str(reports),
        "steps": chosen["steps"],
        "timeout_s": chosen["wait_deadline"],
        "deadline_s": chosen["deadline"],
    }
    ranks = plan.ranks_of(api.jobs_in((script,), root=root))
    trainers = {
        Path(each.trainer).name: trainer_file(
            {**settings, "launch": each.number, "expected_ranks": ranks.get(each.launch)}
        )
        for each in made.replaced
    }
    written = writing.write(top, made, trainers, folder)
    _say(f"written: {', '.join(str(each) for each in written)}")
    if chosen["runs"]:
        ended = running.run(written[0], made.interpreter, deadline_s=chosen["deadline"])
    elif chosen["submits"]:
        ended = running.submit(
            written[0], deadline_s=chosen["deadline"], queue_deadline_s=chosen["queue_deadline"], say=_say
        )
    else:
        return 0
    verdict = running.judge(ended, reports, [each.number for each in made.replaced])
    _say(verdict.line)
    return verdict.exit_code


def _tell(made: Relaunch, folder: Path) -> None:
    for each in made.replaced:
        shown = " ".join(each.removed)
        _say(f"launch {each.number} at {each.place} ({each.launcher}): `{shown}` becomes {each.trainer}")
        if each.kept:
            _say(f"  its arguments stay, and the trainer ignores them: `{' '.join(each.kept)}`")
        if each.image:
            _say(f"  it runs in the container {each.image}: {folder} must be visible there under the same name")
    for left in made.left:
        _say(f"left as it is, so it would run for real: {left}")


def _show(data: bytes) -> None:
    from preflight.deliver import print_bytes
    from preflight.reporters.clean import clean

    if sys.stdout.isatty():
        data = clean(data.decode("utf-8", "replace"), keep_newlines=True).encode("utf-8", "replace")
    print_bytes(data)


def _say(text: str) -> None:
    from preflight.redact import scrub
    from preflight.reporters.clean import clean

    click.echo(f"preflight: {clean(scrub(text))}", err=True)
