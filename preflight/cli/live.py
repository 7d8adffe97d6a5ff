"""`preflight nodes` and `preflight smoke`, and the options of all commands that use nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from preflight.cli import options
from preflight.cli.options import F, combine

if TYPE_CHECKING:
    from preflight.commands.as_launched.plan import Relaunch
    from preflight.engine.report import Report
    from preflight.model.configuration import InjectedFault
    from preflight.model.progress import Progress
    from preflight.reporters.base import Style
    from preflight.reporters.events import EventStream
    from preflight.reporters.output import Output


def deadline(name: str, default: float, help: str, *, minimum: float = 0.5, maximum: float = 600) -> Callable[[F], F]:
    """Make an option for a time limit in seconds."""
    kind = click.FloatRange(minimum, maximum)
    return click.option(name, type=kind, default=default, show_default=True, metavar="S", help=help)


def until(default: str, last: str) -> Callable[[F], F]:
    """Make the options for the last stage to run; `last` describes the smoke stage."""
    return combine(
        click.option(
            "--until",
            type=click.Choice(["node", "link", "smoke"]),
            default=default,
            show_default=True,
            help=f"The last stage to run: facts of nodes, links between them, or {last}.",
        ),
        click.option(
            "--keep-going", is_flag=True, help="Run the smoke stage even after errors that are certain to stop it."
        ),
    )


TRUST_JOB = click.option(
    "--trust-job", is_flag=True, help="Use the hosts, interpreter and environment that the job's files name."
)
#: Which nodes to use, how to reach them, and how ranks run on them.
NODE_OPTIONS: Callable[[F], F] = combine(
    click.option("--hosts", metavar="HOSTS", help="The job's nodes in rank order: node[1-4] or a,b,c."),
    click.option(
        "--hostfile",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Read the nodes from this file.",
    ),
    click.option(
        "--on",
        "executor",
        metavar="EXECUTOR",
        help="How to reach nodes: ssh, local, slurm, mpi ... Default: the allocation this runs in, else ssh.",
    ),
    click.option(
        "--on-option",
        "executor_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the executor; docs/executors lists them. Repeatable.",
    ),
    TRUST_JOB,
    click.option("--python", metavar="PATH", help="Python interpreter of the ranks on the nodes."),
    click.option("--directory", metavar="DIR", help="Working directory of the ranks on the nodes."),
    click.option(
        "--prelude", is_flag=True, help="Run the job's setup lines (module load ...) on the nodes; needs --trust-job."
    ),
)
SAVE = click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), help="Save the recording to this file, for judge."
)
HISTORY_ADDRESS = click.option(
    "--history",
    metavar="URL",
    envvar="PREFLIGHT_HISTORY",
    help="Database that remembers each run: sqlite:///FILE or postgresql://HOST/NAME. Also the environment variable "
    "PREFLIGHT_HISTORY, which does not show a password in the list of processes.",
)
#: Where the run is remembered, and how long.
HISTORY: Callable[[F], F] = combine(
    HISTORY_ADDRESS,
    click.option(
        "--history-keep",
        metavar="TIME",
        help="Remove older runs from the history: 180d, or all but the newest 500runs. Default: keep all.",
    ),
)
#: Actions in the scheduler of the nodes.
ACT: Callable[[F], F] = combine(
    click.option(
        "--act-on",
        type=click.Choice(["slurm", "kubernetes"]),
        help="Scheduler of the nodes: print the commands that drain the failing nodes and resume the repaired ones.",
    ),
    click.option("--act", is_flag=True, help="Run these commands."),
    click.option(
        "--act-at-most",
        default="10%",
        show_default=True,
        metavar="SHARE",
        help="Drain no node if preflight would then have taken more than this share of the nodes out of service.",
    ),
    click.option(
        "--act-log",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Append each of these commands, with its reason and result, to this file as a line of JSON.",
    ),
)
BACKUP = click.option(
    "--backup",
    is_flag=True,
    help="Parameter servers: keep a backup worker to replace one that is lost or lags (not in sync mode), and report "
    "the result.",
)
PROFILE_MODEL = click.option(
    "--profile-model",
    is_flag=True,
    help="Parameter servers: train parameters of the job's own sizes, as far as memory allows, and report how long a "
    "step of the job would communicate.",
)
BACKEND = click.option(
    "--smoke-backend",
    "backend",
    type=click.Choice(["nccl", "gloo"]),
    help="Backend of the ranks in the smoke run, instead of the one that the job asks for.",
)
STEPS = click.option("--steps", type=click.IntRange(1, 100_000), help="Number of training steps of the smoke run.")
#: Time limits of the stages before the smoke run.
STAGE_DEADLINES: Callable[[F], F] = combine(
    deadline("--gather-deadline", 30.0, "Time limit for asking a scheduler for the nodes.", maximum=86400),
    deadline("--open-deadline", 8.0, "Time limit for reaching a node."),
    deadline("--node-deadline", 10.0, "Time limit for the facts of a node."),
)
LINKS = deadline("--link-deadline", 10.0, "Time limit for one round of links.")
SMOKE = deadline("--smoke-deadline", 60.0, "Time limit for the smoke run.", minimum=1, maximum=3600)


def run_live(
    command: str, paths: tuple[Path, ...], root: Path | None, save: Path | None, chosen: dict[str, Any]
) -> int:
    """Make a live run, save its recording if requested, write the report and return its exit code.

    Args:
        command: `check`, `nodes` or `smoke`.
        chosen: the values of the command line by option.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.model.configuration import RunOptions, SmokeOptions

    _check_options(chosen, save)
    smoke = SmokeOptions(**_chosen_options(chosen, SmokeOptions.field_names()))
    run_options = RunOptions(**_chosen_options(chosen, RunOptions.field_names()), smoke=smoke)
    configured = api.configure(options.choices(chosen), paths, root=root)

    act = _prepare_act(chosen)
    memory = _open_history(
        chosen.get("history") or configured.history, chosen.get("history_keep") or configured.history_keep
    )
    problems: list[UsageError] = []
    made: list[Report] = []

    def report(events: Progress | None) -> Report:
        from preflight.model.progress import tee
        from preflight.model.recording_io import save as dump
        from preflight.reporters.live.display import live_progress
        from preflight.reporters.output import write

        with live_progress(sys.stderr, color=chosen["color"], quiet=chosen["quiet"]) as progress:
            common: dict[str, Any] = {"configuration": configured.configuration, "progress": tee(progress, events)}
            if command == "nodes":
                required = {"requirements": chosen["requirements"], "golden": chosen["golden"]}
                recording, found = api.nodes(run_options, **required, **common)
            else:
                make = api.check if command == "check" else api.smoke
                recording, found = make(paths, run_options, root=root, **common)
        if save is not None:
            write(save, dump(recording, compressed=save.suffix == ".gz"))
        if memory is not None:
            try:
                memory(found)
            except UsageError as error:
                problems.append(error)
        made.append(found)
        return found

    code = deliver_live(
        command, chosen, report, output=configured.output, price_per_gpu_hour=configured.price_per_gpu_hour
    )
    if act is not None and made:
        try:
            act(made[0])
        except UsageError as error:
            if not problems:
                raise
            click.echo(f"preflight: {error}", err=True)
    for problem in problems:
        # The report is written all the same; the run can be added when the database is back.
        add = (
            f"preflight history --add {save}" if save is not None else "runs that are saved (--save) can be added later"
        )
        raise UsageError(f"this run is not in the history: {problem}; {add}")
    return code


def _prepare_act(chosen: dict[str, Any]) -> Callable[[Report], None] | None:
    """Return a function that drains and resumes nodes after the report; None if the options do not request it.

    Raises:
        UsageError: the options do not fit together.
    """
    from preflight._util.usage_error import UsageError

    scheduler = chosen.get("act_on")
    if scheduler is None:
        if chosen.get("act"):
            raise UsageError("--act needs --act-on slurm or --act-on kubernetes, which manages the nodes")
        return None
    from preflight.commands.drain import share_of

    try:
        at_most = share_of(chosen["act_at_most"])
    except ValueError as error:
        raise UsageError(f"--act-at-most {error}") from None

    def act(report: Report) -> None:
        from preflight.commands.drain import act_on

        act_on(
            report,
            scheduler,
            really=chosen["act"],
            at_most=at_most,
            say=lambda line: click.echo(f"preflight: {line}", err=True),
            log_file=chosen["act_log"],
        )

    return act


def _open_history(address: str, keep: str) -> Callable[[Report], None] | None:
    """Open the history before the run, so that a wrong address does not waste a run; return a function that adds a
    report.

    Raises:
        UsageError: the address or the time is wrong, or the database cannot be opened.
    """
    if not address:
        return None
    from preflight.commands.history.database import open_database
    from preflight.commands.history.past import add_run, check_keep, why_not_kept

    if keep:
        check_keep(keep)
    database = open_database(address)
    # No connection is held during the run.
    database.close()

    def remember(found: Report) -> None:
        if why := why_not_kept(found):
            click.echo(f"preflight: the history does not store this run: {why}", err=True)
            return
        add_run(database, found, keep=keep)
        database.close()

    return remember


def _chosen_options(chosen: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: chosen[name] for name in names if chosen.get(name) is not None}


def _check_options(chosen: dict[str, Any], save: Path | None) -> None:
    """Reject options that would only fail after minutes of running.

    Raises:
        UsageError: options contradict each other, or the recording cannot be written where requested.
    """
    from preflight._util.usage_error import UsageError

    if chosen["prelude"] and not chosen["trust_job"]:
        raise UsageError("--prelude runs setup lines of the job's files on the nodes; add --trust-job")
    if save is not None and not save.parent.is_dir():
        raise UsageError(f"--save {save}: the folder {save.parent} does not exist")


class _WithProperties(click.Command):
    """A command whose help ends with the properties that may be required."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the properties. Their module is imported only here, because it needs more than click."""
        from preflight.model.recording import PROPERTIES

        with formatter.section("Properties for --expect"):
            formatter.write_dl(list(PROPERTIES.items()))


@click.command(cls=_WithProperties)
@NODE_OPTIONS
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
@until("link", "a short training run (needs --python)")
@SAVE
@HISTORY
@ACT
@STEPS
@STAGE_DEADLINES
@LINKS
@SMOKE
@options.JUDGE_OPTIONS
def nodes(save: Path | None, **chosen: Any) -> int:
    """Check nodes and the links between them without a job: before they take work, every night, after a repair.

    Nodes are found and reached as by check: --hosts, --hostfile, --on slurm, kubernetes, ray or mpi. Checks that
    compare something with a job's files do not apply.
    """
    return run_live("nodes", (), None, save, chosen)


#: Folder for the changed script and the trainer, unless --to gives another.
DEFAULT_FOLDER = "preflight-smoke"
_COUNT = click.IntRange(1, 10_000)
#: Parameters that are valid only with --as-launched, and those that are also valid with it.
_ONLY_AS_LAUNCHED = ("folder", "launch", "runs", "submits", "wait_deadline", "deadline", "queue_deadline")
_ALLOWED_AS_LAUNCHED = (*_ONLY_AS_LAUNCHED, "paths", "as_launched", "trust_job", "steps", "backend", "root")


def _read_fault(context: click.Context, parameter: click.Parameter, text: str | None) -> InjectedFault | None:
    from preflight._util.usage_error import UsageError
    from preflight.model.configuration import parse_injected_fault

    try:
        return parse_injected_fault(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"--inject-fault {text}: {error}") from None


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@NODE_OPTIONS
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
@BACKUP
@PROFILE_MODEL
@BACKEND
@STEPS
@SAVE
@STAGE_DEADLINES
@SMOKE
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
@deadline(
    "--wait-deadline", 60.0, "Time limit for all ranks to join; half of it for each step.", minimum=5, maximum=3600
)
@deadline("--deadline", 600.0, "Time limit for the whole script once it runs.", minimum=5, maximum=86400)
@deadline("--queue-deadline", 3600.0, "Time limit for a submitted job to start.", minimum=1, maximum=7 * 86400)
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

    return run_live("smoke", paths, root, save, chosen)


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
    from preflight._util.roots import root_of
    from preflight.commands.as_launched import execution, plan
    from preflight.commands.as_launched.execution import trainer_file
    from preflight.commands.as_launched.script_edits import Refusal
    from preflight.config.resolve import jobs_in

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
        _show(execution.encode_copy(top, made.copies[0]), made.copies[0].path)
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


# Writes the result of a command in every requested format; a report even after a bug in preflight.


def deliver_report(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Make the report, write it in every requested format (default: `output`), and return its exit code."""
    return deliver_live(verb, chosen, lambda _: make(), output=output, price_per_gpu_hour=price_per_gpu_hour)


def deliver_live(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[Progress | None], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Like `deliver_report`, for a run that reports progress: `make` gets the event stream, if there is one.

    `output` and `price_per_gpu_hour` come from the configuration and apply if the command line does not set them.
    After a bug in preflight a report is written as well, so that a program waiting for the file always gets one.
    """
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    outputs = _outputs(chosen, output)
    style = _style(chosen)
    with _event_stream(chosen["events"], verb) as events:

        def write(report: Report) -> int:
            if events is not None:
                events.report(report)
            report_output.deliver(report, outputs, color=chosen["color"], style=style)
            return report.exit_code

        try:
            report = make(events)
        except (UsageError, click.ClickException):
            raise
        except Exception as error:
            from preflight import api

            write(api.crashed(error, verb=verb))
            raise
        return write(_add_price(report, chosen["price_per_gpu_hour"], price_per_gpu_hour))


def deliver_document(
    document: object,
    targets: Iterable[tuple[str, Path | None]],
    render: Callable[[str, Style], str | bytes],
    *,
    color: bool | None,
    verbosity: int = 0,
    bulk: tuple[str, ...] = (),
) -> None:
    """Write what is not a report in every requested format: as JSON, or as `render` gives the named format.

    Args:
        bulk: lists of which each item is one line of JSON.
    """
    from preflight._util.json_output import to_bytes
    from preflight._util.terminal import encoded
    from preflight.reporters import output

    for name, path in targets:
        style = output.style_of(path, color, verbosity)
        content = to_bytes(document, indent=2, bulk=bulk) if name == "json" else render(name, style)
        output.put(content if isinstance(content, bytes) else encoded(content, style.encoding), name, path)


def _add_price(report: Report, chosen: float | None, configured: float | None) -> Report:
    """Add the avoided cost in money if a cost was avoided and a price is known."""
    price = chosen if chosen is not None else configured
    if report.avoided_cost is None or price is None:
        return report
    from preflight.engine.report import with_price

    return replace(report, avoided_cost=with_price(report.avoided_cost, price))


def _outputs(chosen: dict[str, Any], output: str) -> tuple[Output, ...]:
    """Return where the report goes. Standard output accepts either the report or events, not both."""
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    if chosen["events"] != "-":
        return report_output.outputs(chosen["outputs"] or ((output,) if output else ()))
    found = report_output.outputs(chosen["outputs"]) if chosen["outputs"] else ()
    if any(item.path is None for item in found):
        raise UsageError("--events - writes to standard output; write the report to a file: --output text:report.txt")
    return found


def _event_stream(target: str | None, verb: str) -> AbstractContextManager[EventStream | None]:
    if target is None:
        return nullcontext()
    from preflight.reporters.events import open_event_stream

    return open_event_stream(target, verb)


def _style(chosen: dict[str, Any]) -> Style:
    """Return the amount of detail that the options request."""
    from preflight._util.usage_error import UsageError
    from preflight.reporters.base import Style

    if chosen["concise"] and chosen["statistics"]:
        raise UsageError("--concise and --statistics exclude each other: one lists findings, the other counts them")
    if chosen["quiet"] and chosen["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    verbosity = -1 if chosen["quiet"] else chosen["verbose"]
    return Style(verbosity=verbosity, statistics=chosen["statistics"], concise=chosen["concise"])
