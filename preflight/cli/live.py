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


def deadline_option(
    name: str, default: float, help: str, *, minimum: float = 0.5, maximum: float = 600
) -> Callable[[F], F]:
    """Return an option for a time limit in seconds."""
    kind = click.FloatRange(minimum, maximum)
    return click.option(name, type=kind, default=default, show_default=True, metavar="S", help=help)


def stage_options(default: str, last: str) -> Callable[[F], F]:
    """Return the options for the last stage to run; `last` describes the smoke stage."""
    return combine(
        click.option(
            "--until",
            type=click.Choice(["node", "link", "smoke"]),
            default=default,
            show_default=True,
            help=f"The last stage to run: node facts, links between nodes, or {last}.",
        ),
        click.option(
            "--keep-going", is_flag=True, help="Run the smoke stage even after errors that certainly make it fail."
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
        help="How to reach nodes: ssh, local, slurm, mpi ... Default: the current allocation, or else ssh.",
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
    help="Database in which to store the run: sqlite:///FILE or postgresql://HOST/NAME. The environment variable "
    "PREFLIGHT_HISTORY does the same, without showing a password in the process list.",
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
        help="Scheduler that manages the nodes: print the commands that drain failing nodes and resume repaired ones.",
    ),
    click.option("--act", is_flag=True, help="Run the commands of --act-on."),
    click.option(
        "--act-at-most",
        default="10%",
        show_default=True,
        metavar="SHARE",
        help="Drain no nodes if more than this share of the nodes would then be out of service because of preflight.",
    ),
    click.option(
        "--act-log",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Append each command of --act-on, with its reason and result, to this file as a line of JSON.",
    ),
)
BACKUP = click.option(
    "--backup",
    is_flag=True,
    help="Parameter servers: keep a backup worker to replace a worker that is lost or slow (not in sync mode), and "
    "report the result.",
)
PROFILE_MODEL = click.option(
    "--profile-model",
    is_flag=True,
    help="Parameter servers: train parameters with the job's sizes, as far as memory allows, and report how long "
    "each step of the job would communicate.",
)
BACKEND = click.option(
    "--smoke-backend",
    "backend",
    type=click.Choice(["nccl", "gloo"]),
    help="Backend of the ranks in the smoke run, instead of the job's own.",
)
STEPS = click.option("--steps", type=click.IntRange(1, 100_000), help="Number of training steps of the smoke run.")
#: Time limits of the stages before the smoke run.
STAGE_DEADLINES: Callable[[F], F] = combine(
    deadline_option(
        "--gather-deadline", 30.0, "Time limit for getting the list of nodes from a scheduler.", maximum=86400
    ),
    deadline_option("--open-deadline", 8.0, "Time limit for reaching a node."),
    deadline_option("--node-deadline", 10.0, "Time limit for the facts of a node."),
)
LINKS = deadline_option("--link-deadline", 10.0, "Time limit for one round of links.")
SMOKE = deadline_option("--smoke-deadline", 60.0, "Time limit for the smoke run.", minimum=1, maximum=3600)


def run_live(
    command: str, paths: tuple[Path, ...], root: Path | None, save: Path | None, option_values: dict[str, Any]
) -> int:
    """Make a live run (`check`, `nodes` or `smoke`), save its recording and report, and return its exit code."""
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.model.configuration import RunOptions, SmokeOptions

    _check_options(option_values, save)
    smoke = SmokeOptions(**_given_options(option_values, SmokeOptions.field_names()))
    run_options = RunOptions(**_given_options(option_values, RunOptions.field_names()), smoke=smoke)
    run_settings = api.configure(options.choices(option_values), paths, root=root)

    drain_nodes = _prepare_act(option_values)
    store_report = _open_history(
        option_values.get("history") or run_settings.history,
        option_values.get("history_keep") or run_settings.history_keep,
    )
    history_errors: list[UsageError] = []
    reports: list[Report] = []

    def report(events: Progress | None) -> Report:
        from preflight.model.progress import tee
        from preflight.model.recording_io import save as dump
        from preflight.reporters.live.display import live_progress
        from preflight.reporters.output import write

        with live_progress(sys.stderr, color=option_values["color"], quiet=option_values["quiet"]) as progress:
            common: dict[str, Any] = {"configuration": run_settings.configuration, "progress": tee(progress, events)}
            if command == "nodes":
                node_options = {"requirements": option_values["requirements"], "golden": option_values["golden"]}
                recording, new_report = api.nodes(run_options, **node_options, **common)
            else:
                make_recording = api.check if command == "check" else api.smoke
                recording, new_report = make_recording(paths, run_options, root=root, **common)
        if save is not None:
            write(save, dump(recording, compressed=save.suffix == ".gz"))
        if store_report is not None:
            try:
                store_report(new_report)
            except UsageError as error:
                history_errors.append(error)
        reports.append(new_report)
        return new_report

    code = deliver_live(
        command, option_values, report, output=run_settings.output, price_per_gpu_hour=run_settings.price_per_gpu_hour
    )
    if drain_nodes is not None and reports:
        try:
            drain_nodes(reports[0])
        except UsageError as error:
            if not history_errors:
                raise
            click.echo(f"preflight: {error}", err=True)
    for problem in history_errors:
        # The report is written nevertheless; the run can be added when the database is available again.
        add_hint = (
            f"preflight history --add {save}" if save is not None else "a run that is saved (--save) can be added later"
        )
        raise UsageError(f"this run is not in the history: {problem}; {add_hint}")
    return code


def _prepare_act(option_values: dict[str, Any]) -> Callable[[Report], None] | None:
    """Return a function that drains and resumes nodes after the report, or None. Raises UsageError."""
    from preflight._util.usage_error import UsageError

    scheduler = option_values.get("act_on")
    if scheduler is None:
        if option_values.get("act"):
            raise UsageError("--act needs --act-on slurm or --act-on kubernetes, which manages the nodes")
        return None
    from preflight.commands.drain import share_of

    try:
        largest_share = share_of(option_values["act_at_most"])
    except ValueError as error:
        raise UsageError(f"--act-at-most {error}") from None

    def act_after_report(report: Report) -> None:
        from preflight.commands.drain import act_on

        act_on(
            report,
            scheduler,
            really=option_values["act"],
            at_most=largest_share,
            say=lambda line: click.echo(f"preflight: {line}", err=True),
            log_file=option_values["act_log"],
        )

    return act_after_report


def _open_history(address: str, keep: str) -> Callable[[Report], None] | None:
    """Open the history before the run; return a function that adds a report, or None. Raises UsageError."""
    if not address:
        return None
    from preflight.commands.history.database import open_database
    from preflight.commands.history.past import add_run, check_keep, why_not_kept

    if keep:
        check_keep(keep)
    database = open_database(address)
    # No connection is open during the run.
    database.close()

    def store_report(run_report: Report) -> None:
        if reason := why_not_kept(run_report):
            click.echo(f"preflight: the history does not store this run: {reason}", err=True)
            return
        add_run(database, run_report, keep=keep)
        database.close()

    return store_report


def _given_options(option_values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: option_values[name] for name in names if option_values.get(name) is not None}


def _check_options(option_values: dict[str, Any], save: Path | None) -> None:
    """Raise UsageError for options that would otherwise fail only after minutes."""
    from preflight._util.usage_error import UsageError

    if option_values["prelude"] and not option_values["trust_job"]:
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
    help="What every node must have: gpus=8, driver=550, memory>=1000. With =, a part of a version (550 of 550.54) "
    "or of a text is enough; == compares the whole value. gpus=N also enables the GPU checks. Repeatable.",
)
@click.option(
    "--golden",
    metavar="NODE|FILE[:NODE]",
    default="",
    help="Every node must have the properties of this node, which is also examined, or of a node in a saved recording.",
)
@stage_options("link", "a short training run (needs --python)")
@SAVE
@HISTORY
@ACT
@STEPS
@STAGE_DEADLINES
@LINKS
@SMOKE
@options.JUDGE_OPTIONS
def nodes(save: Path | None, **option_values: Any) -> int:
    """Check nodes and the links between them without a job: before they take work, every night, after a repair.

    Nodes are found and reached as by check: --hosts, --hostfile, --on slurm, kubernetes, ray or mpi. Checks that
    compare something with a job's files do not apply.
    """
    return run_live("nodes", (), None, save, option_values)


#: The folder for the changed script and the trainer, unless --to names another folder.
DEFAULT_FOLDER = "preflight-smoke"
_COUNT = click.IntRange(1, 10_000)
#: The parameters that are valid only with --as-launched, and all parameters that are valid with it.
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
@click.option("--geo-steps", type=_COUNT, metavar="K", help="With geo: local steps between exchanges.")
@click.option(
    "--server-device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where servers keep their parameters, instead of the job's own choice.",
)
@click.option("--servers", type=_COUNT, default=None, metavar="N", help="Without PATHS: number of parameter servers.")
@click.option("--workers", type=_COUNT, default=None, metavar="M", help="Without PATHS: number of workers.")
@click.option(
    "--inject-fault",
    "--drill",
    "injected_fault",
    metavar="KIND[:TARGET]",
    callback=_read_fault,
    help="Inject a fault (delay, loss, kill, stop, flip or double) into rank2, worker1 or server0 (default: the "
    "last process), from step 3 with @3, to see how and how soon it is reported.",
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
    help="Keep the job's own script and launch line, and replace only its program with the reference trainer. The "
    "options from here to --queue-deadline require this.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the changed script and the trainer to this folder, which all nodes must share.",
)
@click.option("--launch", type=click.IntRange(min=1), metavar="N", help="Replace only launch N of the script.")
@click.option("--run", "runs", is_flag=True, help="Run the changed script here; needs --trust-job.")
@click.option(
    "--submit", "submits", is_flag=True, help="Submit the changed script with sbatch and wait; needs --trust-job."
)
@deadline_option(
    "--wait-deadline", 60.0, "Time limit for all ranks to join; half of it for each step.", minimum=5, maximum=3600
)
@deadline_option("--deadline", 600.0, "Time limit for the whole script once it is running.", minimum=5, maximum=86400)
@deadline_option("--queue-deadline", 3600.0, "Time limit for a submitted job to start.", minimum=1, maximum=7 * 86400)
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
    **option_values: Any,
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

    command_line_names = [
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    misplaced = [
        name
        for name in command_line_names
        if (name not in _ALLOWED_AS_LAUNCHED if as_launched else name in _ONLY_AS_LAUNCHED)
    ]
    if misplaced:
        names_text = ", ".join(_option_name(context, name) for name in misplaced)
        raise UsageError(f"{names_text}: {'not valid with' if as_launched else 'only valid with'} --as-launched")
    if as_launched:
        return _smoke_as_launched(paths, root, option_values)
    if not paths and not option_values["hosts"] and not option_values["hostfile"]:
        raise UsageError("no nodes to run on: name the job's files, or pass the nodes with --hosts or --hostfile")

    return run_live("smoke", paths, root, save, option_values)


def _option_name(context: click.Context, name: str) -> str:
    return next(option.opts[-1] for option in context.command.params if option.name == name)


def _smoke_as_launched(paths: tuple[Path, ...], root: Path | None, option_values: dict[str, Any]) -> int:
    from preflight._util.usage_error import UsageError
    from preflight.commands.as_launched.script_edits import Refusal

    if len(paths) != 1:
        raise UsageError("--as-launched takes exactly one script: the one that is submitted or run")
    if option_values["runs"] and option_values["submits"]:
        raise UsageError("--run and --submit are mutually exclusive")
    if (option_values["runs"] or option_values["submits"]) and not option_values["trust_job"]:
        option = "--run" if option_values["runs"] else "--submit"
        raise UsageError(f"{option} also runs everything else in the job's script; add --trust-job to allow this")
    option_values["steps"] = option_values["steps"] or 10
    try:
        return _as_launched(paths[0], root, option_values)
    except Refusal as refusal:
        raise UsageError(str(refusal)) from None


def _as_launched(script: Path, root: Path | None, option_values: dict[str, Any]) -> int:
    from preflight._util.roots import root_of
    from preflight.commands.as_launched import execution, plan
    from preflight.commands.as_launched.execution import trainer_file
    from preflight.commands.as_launched.script_edits import Refusal
    from preflight.config.resolve import jobs_in

    root_folder = root_of((script,), root)
    runs_script = option_values["runs"] or option_values["submits"]
    folder = (option_values["folder"] or Path(DEFAULT_FOLDER)).absolute()
    path = script.absolute().relative_to(root_folder.absolute()).as_posix()
    relaunch = plan.plan(root_folder, path, folder, launch=option_values["launch"])
    jobs = jobs_in((script,), root=root)
    plan.refuse_servers(jobs, relaunch.replaced)
    _print_relaunch(relaunch, folder)
    if option_values["folder"] is None and not runs_script:
        if len(relaunch.copies) > 1:
            other_paths = ", ".join(copy.path for copy in relaunch.copies[1:])
            raise Refusal(f"{other_paths} must also change; use --to DIR to write all of them")
        _print_script(execution.encode_copy(root_folder, relaunch.copies[0]), relaunch.copies[0].path)
        return 0
    if option_values["submits"] and not relaunch.batch:
        raise Refusal(f"--submit needs a script with #SBATCH lines, but {path} has none; use --run to run it here")
    reports = folder / "reports" / (f"{time.time_ns():x}" if runs_script else "")
    settings = {
        "report_dir": str(reports),
        "steps": option_values["steps"],
        "timeout_s": option_values["wait_deadline"],
        "deadline_s": option_values["deadline"],
    }
    ranks, backends = plan.ranks_of(jobs), plan.backends_of(jobs)
    trainers = {
        Path(launch.trainer).name: trainer_file(
            {
                **settings,
                "launch": launch.number,
                "expected_ranks": ranks.get(launch.launch),
                **({"spawn": plan.spawned_by(jobs, launch)} if launch.spawns else {}),
                "backend": option_values["backend"] or backends.get(launch.launch, "auto"),
            }
        )
        for launch in relaunch.replaced
    }
    for launch in relaunch.replaced:
        requested_backend = backends.get(launch.launch)
        if option_values["backend"] and requested_backend and requested_backend != option_values["backend"]:
            _print_error(
                f"launch {launch.number} requests {requested_backend}, which is not tested: --smoke-backend "
                f"{option_values['backend']}"
            )
    written_files = execution.write(root_folder, relaunch, trainers, folder)
    _print_error(f"wrote:  {', '.join(map(str, written_files))}")
    if option_values["runs"]:
        script_run = execution.run(written_files[0], relaunch.interpreter, deadline_s=option_values["deadline"])
    elif option_values["submits"]:
        script_run = execution.submit(
            written_files[0],
            deadline_s=option_values["deadline"],
            queue_deadline_s=option_values["queue_deadline"],
            report=_print_error,
        )
    else:
        return 0
    execution.await_reports(script_run, reports)
    verdict = execution.judge(script_run, reports, {launch.number: launch.condition for launch in relaunch.replaced})
    _print_error(verdict.line)
    return verdict.exit_code


def _print_relaunch(relaunch: Relaunch, folder: Path) -> None:
    for launch in relaunch.replaced:
        removed_text = " ".join(launch.removed)
        _print_error(
            f"launch {launch.number} at {launch.place} ({launch.launcher}): `{removed_text}` becomes {launch.trainer}"
        )
        if launch.kept:
            _print_error(f"  its arguments are kept, but the trainer ignores them: `{' '.join(launch.kept)}`")
        if launch.image:
            _print_error(f"  it runs in the container {launch.image}: {folder} must be visible there at the same path")
    for other_launch in relaunch.not_replaced:
        _print_error(f"not replaced, so it would really run: {other_launch}")


def _print_script(data: bytes, path: str) -> None:
    """Print a script. If it contains secrets, print it only to a terminal, with the secrets hidden."""
    from preflight._util.sanitize import clean
    from preflight.commands.as_launched.script_edits import Refusal
    from preflight.reporters.output import print_bytes
    from preflight.sources.base import SourceFile
    from preflight.sources.secrets import shown_lines

    text = data.decode("utf-8", "replace")
    redacted_text = shown_lines(SourceFile(path, text, "", len(data)))(text)
    if sys.stdout.isatty():
        data = clean(redacted_text, keep_newlines=True).encode("utf-8", "replace")
    elif redacted_text != text:
        raise Refusal(
            f"{path} appears to contain a secret, which is not written to standard output because logs would keep "
            "it; use --to DIR to write the script to a folder"
        )
    print_bytes(data)


def _print_error(text: str) -> None:
    from preflight._util.redaction import scrub
    from preflight._util.sanitize import clean, neutralize_commands

    click.echo(neutralize_commands(f"preflight: {clean(scrub(text))}"), err=True)


# Writes the result of a command in every requested format. A report is written even after a bug in preflight.


def deliver_report(
    verb: str,
    option_values: dict[str, Any],
    make: Callable[[], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Make the report, write it in every requested format (default: `output`), and return its exit code."""
    return deliver_live(verb, option_values, lambda _: make(), output=output, price_per_gpu_hour=price_per_gpu_hour)


def deliver_live(
    verb: str,
    option_values: dict[str, Any],
    make: Callable[[Progress | None], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Make the report of a run that reports progress, write it in every requested format, and return its exit code.

    After a bug in preflight a report is written as well, so that a program that waits for the file always gets one.
    `make` gets the event stream, or None; `output` and `price_per_gpu_hour` are those of the configuration.
    """
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    outputs = _report_targets(option_values, output)
    style = _style(option_values)
    with _event_stream(option_values["events"], verb) as events:

        def write(report: Report) -> int:
            if events is not None:
                events.report(report)
            report_output.deliver(report, outputs, color=option_values["color"], style=style)
            return report.exit_code

        try:
            report = make(events)
        except (UsageError, click.ClickException):
            raise
        except Exception as error:
            from preflight import api

            write(api.crashed(error, verb=verb))
            raise
        return write(_add_price(report, option_values["price_per_gpu_hour"], price_per_gpu_hour))


def deliver_document(
    document: object,
    targets: Iterable[tuple[str, Path | None]],
    render: Callable[[str, Style], str | bytes],
    *,
    color: bool | None,
    verbosity: int = 0,
    bulk: tuple[str, ...] = (),
) -> None:
    """Write a document in every requested format: as JSON, with the items of `bulk` on one line each, or by
    `render`.
    """
    from preflight._util.json_output import to_bytes
    from preflight._util.terminal import encoded
    from preflight.reporters import output

    for name, path in targets:
        style = output.style_of(path, color, verbosity)
        content = to_bytes(document, indent=2, bulk=bulk) if name == "json" else render(name, style)
        output.put(content if isinstance(content, bytes) else encoded(content, style.encoding), name, path)


def _add_price(report: Report, chosen_price: float | None, configured_price: float | None) -> Report:
    """Return the report with the avoided cost in money, if a cost was avoided and a price is known."""
    price = chosen_price if chosen_price is not None else configured_price
    if report.avoided_cost is None or price is None:
        return report
    from preflight.engine.report import with_price

    return replace(report, avoided_cost=with_price(report.avoided_cost, price))


def _report_targets(option_values: dict[str, Any], output: str) -> tuple[Output, ...]:
    """Return the formats and files of the report. Standard output accepts either the report or events, but not both."""
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    if option_values["events"] != "-":
        return report_output.outputs(option_values["outputs"] or ((output,) if output else ()))
    targets = report_output.outputs(option_values["outputs"]) if option_values["outputs"] else ()
    if any(item.path is None for item in targets):
        raise UsageError("--events - uses standard output; write the report to a file: --output text:report.txt")
    return targets


def _event_stream(target: str | None, verb: str) -> AbstractContextManager[EventStream | None]:
    if target is None:
        return nullcontext()
    from preflight.reporters.events import open_event_stream

    return open_event_stream(target, verb)


def _style(option_values: dict[str, Any]) -> Style:
    from preflight._util.usage_error import UsageError
    from preflight.reporters.base import Style

    if option_values["concise"] and option_values["statistics"]:
        raise UsageError("--concise and --statistics are mutually exclusive: one lists findings, the other counts them")
    if option_values["quiet"] and option_values["verbose"]:
        raise UsageError("--quiet and --verbose are mutually exclusive")
    verbosity = -1 if option_values["quiet"] else option_values["verbose"]
    return Style(verbosity=verbosity, statistics=option_values["statistics"], concise=option_values["concise"])
