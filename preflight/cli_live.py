"""What verbs that go to nodes have in common: how nodes are reached, for how long, and what is kept of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight import options
from preflight.options import F, together

if TYPE_CHECKING:
    from preflight.check_options import CheckOptions
    from preflight.configuration import Configuration
    from preflight.progress import Progress
    from preflight.recording import Recording
    from preflight.report import Report


def _deadline(name: str, default: float, help: str, *, least: float = 0.5, most: float = 600) -> Callable[[F], F]:
    """An option for how many seconds something may take."""
    kind = click.FloatRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, metavar="S", help=help)


TRUST_JOB = click.option(
    "--trust-job", is_flag=True, help="Use hosts, interpreter and environment that the job's files name."
)
#: Which nodes, on which way, and in which context of theirs.
REACHING: Callable[[F], F] = together(
    click.option("--hosts", metavar="HOSTS", help="The job's nodes in rank order: node[1-4] or a,b,c."),
    click.option(
        "--hostfile",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Take the nodes from here.",
    ),
    click.option(
        "--on",
        "executor",
        metavar="EXECUTOR",
        help="How nodes are reached: ssh, local, slurm, mpi ... Default: the allocation this runs in, else ssh.",
    ),
    click.option(
        "--on-option",
        "executor_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Something to tell that executor; docs/executors has what each takes. Repeatable.",
    ),
    TRUST_JOB,
    click.option("--python", metavar="PATH", help="Interpreter on the nodes that the ranks run with."),
    click.option("--directory", metavar="DIR", help="Working directory of the ranks on the nodes."),
    click.option(
        "--prelude",
        is_flag=True,
        help="Run the job's set-up lines (module load ...) on the nodes; needs --trust-job.",
    ),
)
SAVE = click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False), help="Keep the recording here, for judge."
)
BACKUP = click.option(
    "--backup",
    is_flag=True,
    help="Parameter servers: have a spare worker wait, which takes the place of one that is lost or lags (not in sync "
    "mode), and say how that went.",
)
STEPS = click.option("--steps", type=click.IntRange(1, 100_000), help="Training steps of the smoke run.")
#: Up to where nodes have been found and asked.
BEFORE: Callable[[F], F] = together(
    _deadline(
        "--gather-deadline", 30.0, "For finding out which nodes there are, where a scheduler is asked.", most=86400
    ),
    _deadline("--open-deadline", 8.0, "For reaching a node."),
    _deadline("--node-deadline", 10.0, "For the facts of a node."),
)
LINKS = _deadline("--link-deadline", 10.0, "For one round of links.")
SMOKE = _deadline("--smoke-deadline", 60.0, "For the smoke run.", least=1, most=3600)

#: What carries a run out: with these options, this configuration, and somebody to tell how it goes.
Carry = Callable[["CheckOptions", "Configuration", "Progress"], "tuple[Recording, Report]"]


def run_live(
    verb: str, carry: Carry, paths: tuple[Path, ...], root: Path | None, save: Path | None, chosen: dict[str, Any]
) -> int:
    """Carry a run out, keep its recording where that is wanted, and write the report; its exit code."""
    from preflight import api
    from preflight.check_options import CheckOptions
    from preflight.cli_deliver import deliver_live

    _possible(chosen, save)
    names = CheckOptions.field_names()
    wanted = CheckOptions(**{name: chosen[name] for name in names if chosen.get(name) is not None})
    configured = api.configure(options.choices(chosen), paths, root=root)

    def report(events: Progress | None) -> Report:
        from preflight.deliver import write
        from preflight.progress import both
        from preflight.reporters.live import live_progress
        from preflight.saved import save as dump

        with live_progress(sys.stderr, color=chosen["color"], quiet=chosen["quiet"]) as progress:
            recording, found = carry(wanted, configured.configuration, both(progress, events))
        if save is not None:
            write(save, dump(recording, compressed=save.suffix == ".gz"))
        return found

    return deliver_live(
        verb, chosen, report, output=configured.output, price_per_gpu_hour=configured.price_per_gpu_hour
    )


def _possible(chosen: dict[str, Any], save: Path | None) -> None:
    """Refuse before a run of minutes what would only fail behind it.

    Raises:
        UsageError: options that contradict each other, or a file that cannot be where it shall be.
    """
    from preflight.errors import UsageError

    if chosen["prelude"] and not chosen["trust_job"]:
        raise UsageError("--prelude runs set-up lines of the job's files on the nodes; it needs --trust-job too")
    if save is not None and not save.parent.is_dir():
        raise UsageError(f"--save {save}: there is no folder {save.parent}")
