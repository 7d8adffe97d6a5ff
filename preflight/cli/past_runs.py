"""`preflight diagnose`, `diff` and `history`: what logs, reports and databases of earlier runs show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preflight.cli import live as live_options
from preflight.cli import options
from preflight.cli.live import deliver_document

if TYPE_CHECKING:
    from preflight.reporters.base import Style

FORMATS = ("text", "json")


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@options.output("the diagnosis as text (default) or json")
@click.option(
    "--symptoms",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Also use the symptoms of this TOML file; they take precedence. Repeatable.",
)
@click.option("-v", "--verbose", count=True, help="Also list the logs that were read; -vv lists all of them.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@options.COLOR
def diagnose(
    logs: tuple[Path, ...],
    outputs: tuple[str, ...],
    symptoms: tuple[Path, ...],
    verbose: int,
    quiet: bool,
    color: bool | None,
) -> int:
    """Read the logs of a failed run: which rank failed first, why, and which check would have caught it.

    LOGS are files or folders with the output of ranks, launchers and schedulers, plain or compressed with gzip; or -
    for standard input. Name all logs: the first failure is often in a different log from the last message.

    Exit codes: 0 the run completed, 1 a cause is named, 3 the run failed or ended and no line says why, 4 the logs are
    empty, binary or truncated, 6 a cause is suspected.
    """
    from preflight import api
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters import output
    from preflight.reporters.live.display import live_progress

    targets = output.targets(outputs or ("text",), FORMATS)
    with live_progress(sys.stderr, color=color, quiet=quiet, after_s=SHOW_WAIT_AFTER_S) as progress:
        found = api.diagnose(logs, symptoms=symptoms, given=sys.stdin.buffer, progress=progress)

    def render(_: str, style: Style) -> str:
        from preflight.commands.diagnose.diagnosis_text import page

        return page(found, style)

    deliver_document(found, targets, render, color=color, verbosity=verbose)
    return found.exit_code


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@options.output("the comparison as text (default) or json")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    help="The lowest severity that makes the exit code 1. Default: the --fail-on that NEW was checked with.",
)
@click.option("--allow-incomplete", is_flag=True, help="Exit 0 instead of 3 if a required check became unknown.")
@click.option("-v", "--verbose", count=True, help="List everything that drifted or became unknown.")
@click.option("-q", "--quiet", is_flag=True, help="Show only what is worse and the summary line.")
@options.COLOR
@options.PLUGIN
def diff(
    old: Path,
    new: Path,
    outputs: tuple[str, ...],
    fail_on: str | None,
    allow_incomplete: bool,
    verbose: int,
    quiet: bool,
    color: bool | None,
) -> int:
    """Compare two reports: new, fixed and changed findings, version drift, slower links and steps.

    OLD and NEW are reports (-o json:FILE) or recordings (--save FILE). Recordings are judged first.

    Exit codes: 0 nothing is worse, 1 NEW is worse, 3 a required check became unknown.
    """
    from preflight import api
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    found = api.diff(old, new, fail_on=fail_on or "", allow_incomplete=allow_incomplete)

    def render(_: str, style: Style) -> str:
        from preflight.commands.diff.difference_text import page

        return page(found, style)

    deliver_document(found, targets, render, color=color, verbosity=-1 if quiet else verbose)
    return found.exit_code


HISTORY_FORMATS = ("text", "json", "hosts")


@click.command()
@live_options.HISTORY_ADDRESS
@click.option(
    "--since",
    metavar="TIME",
    default="90d",
    show_default=True,
    help="Only runs up to this long before the newest run, such as 30d; `all` for every run.",
)
@click.option("--hosts", metavar="HOSTS", help="Only what concerns these nodes: node[1-4] or a,b,c.")
@click.option(
    "--add",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="First add this run: a saved recording (--save) or a report (-o json:FILE). Repeatable; a run that is "
    "already stored is not added again.",
)
@options.output(
    f"the history in one of the formats {', '.join(HISTORY_FORMATS)}. Default: text. `hosts` lists the nodes to exclude"
)
@click.option(
    "-v", "--verbose", count=True, help="Also list all changes with their times, and every node that ever failed."
)
@click.option("-q", "--quiet", is_flag=True, help="Show only the main results.")
@options.COLOR
@options.CONFIG
@options.PLUGIN
def history(
    history: str | None,
    since: str,
    hosts: str | None,
    add: tuple[Path, ...],
    outputs: tuple[str, ...],
    verbose: int,
    quiet: bool,
    color: bool | None,
    config: Path | None,
    no_config: bool,
) -> int:
    """Show what many runs have in common: nodes that fail again and again, measurements that drift, counters that grow.

    Runs are stored by preflight nodes --history URL and preflight check --history URL.

    Exit codes: 0 nothing to report, 1 at least one story, 4 no runs.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.config.resolve import Choices
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), HISTORY_FORMATS)
    address = history or api.configure(Choices(file=config, use_file=not no_config), ()).history
    if not address:
        raise UsageError("no history was given; pass --history sqlite:///FILE or postgresql://HOST/NAME")
    found = api.history(address, days=_days(since), hosts=hosts or "", add=add)

    from preflight.commands.history.account import BULK

    def render(name: str, style: Style) -> str:
        from preflight.commands.history.text import page

        return "".join(f"{node}\n" for node in found.blamed_nodes) if name == "hosts" else page(found, style)

    deliver_document(found, targets, render, color=color, verbosity=-1 if quiet else verbose, bulk=BULK)
    if not found.runs:
        return 4
    return 1 if found.stories else 0


def _days(text: str) -> int | None:
    from preflight._util.usage_error import UsageError

    if text == "all":
        return None
    number, unit = text[:-1], text[-1:]
    if unit != "d" or not number.isdecimal() or not 1 <= int(number) <= 100_000:
        raise UsageError(f"--since {text}: expected a number of days, as in 30d, or all")
    return int(number)
