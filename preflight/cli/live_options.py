"""Options of the commands that use nodes (check, nodes, smoke), and the code that makes and reports such a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight.cli import options
from preflight.cli.options import F, combine

if TYPE_CHECKING:
    from preflight.engine.report import Report
    from preflight.model.progress import Progress


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
#: What follows for the scheduler of the nodes.
ACT: Callable[[F], F] = combine(
    click.option(
        "--act-on",
        type=click.Choice(["slurm", "kubernetes"]),
        help="Whose nodes these are: print the commands that drain the failing nodes and resume the repaired ones.",
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
    help="Parameter servers: train parameters of the job's own sizes, as far as memory allows, and say how long a step "
    "of the job would communicate.",
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
    from preflight.cli.delivery import deliver_live
    from preflight.model.options import RunOptions, SmokeOptions

    _check_options(chosen, save)
    smoke = SmokeOptions(**_chosen_options(chosen, SmokeOptions.field_names()))
    run_options = RunOptions(**_chosen_options(chosen, RunOptions.field_names()), smoke=smoke)
    configured = api.configure(options.choices(chosen), paths, root=root)

    act = _prepared_act(chosen)
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


def _prepared_act(chosen: dict[str, Any]) -> Callable[[Report], None] | None:
    """What drains and resumes nodes after the report; None if that is not asked for.

    Raises:
        UsageError: the options do not fit together.
    """
    from preflight._util.usage_error import UsageError

    scheduler = chosen.get("act_on")
    if scheduler is None:
        if chosen.get("act"):
            raise UsageError("--act: whose nodes are these? Add --act-on slurm or --act-on kubernetes")
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
    """Open the history before the run, so that a wrong address does not cost one; return what adds a report to it.

    Raises:
        UsageError: the address or the time is wrong, or the database cannot be opened.
    """
    if not address:
        return None
    from preflight.commands.history.database import open_database
    from preflight.commands.history.writer import add_run, check_keep, why_not_kept

    if keep:
        check_keep(keep)
    database = open_database(address)
    # No connection is held during the run.
    database.close()

    def remember(found: Report) -> None:
        if why := why_not_kept(found):
            click.echo(f"preflight: the history does not keep this run: {why}", err=True)
            return
        add_run(database, found, keep=keep)
        database.close()

    return remember


def _chosen_options(chosen: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The options that the user gave, of those with these names."""
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
