"""The options of the verbs that judge, and what they come to; nothing heavier than click until a verb runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight import completing

if TYPE_CHECKING:
    from preflight.config_file import Choices

F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


OUTPUT = click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write the report as text (default), html, json, sarif, junit, github, github-summary, gitlab, openmetrics, "
    "ctrf, or a list: passing-hosts, failing-hosts, untold-hosts. Repeatable.",
)
EVENTS = click.option(
    "--events",
    metavar="TARGET",
    help="Tell how the run goes while it does, a JSON object a line: into a file, - (standard output) or fd:N.",
)
_VERBOSE = click.option(
    "-v", "--verbose", count=True, help="Also list what passed and what could not be told; -vv everything."
)
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Findings and the verdict alone.")
_COLOR = click.option(
    "--color/--no-color",
    default=None,
    help="Colours; without it, on a terminal unless NO_COLOR is set, and wherever FORCE_COLOR is.",
)
_ALLOW_INCOMPLETE = click.option(
    "--allow-incomplete", is_flag=True, help="Exit 0 instead of 3 when something could not be told."
)
_STATISTICS = click.option(
    "--statistics", is_flag=True, help="Count the findings of each rule instead of listing them."
)
_CONCISE = click.option(
    "--concise", is_flag=True, help="One line for each finding, for grep and editors: path:line:col: error[ID] message."
)
_PRICE = click.option(
    "--price-per-gpu-hour",
    type=click.FloatRange(0),
    metavar="PRICE",
    help="What an hour of a GPU costs, to tell in money what a no-go saved.",
)
SHOWING: Callable[[F], F] = together(OUTPUT, EVENTS, _VERBOSE, _QUIET, _CONCISE, _STATISTICS, _PRICE, _COLOR)
_FILE = click.Path(path_type=Path, dir_okay=False)


def _take(context: click.Context, parameter: click.Parameter, paths: tuple[Path, ...]) -> None:
    """Take the rules and checks of files of the user's; those of an earlier run in this process are let go."""
    if paths or "preflight.catalog" in sys.modules:
        from preflight import catalog

        catalog.take(paths)


PLUGIN = click.option(
    "--plugin",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    expose_value=False,
    is_eager=True,
    callback=_take,
    help="Judge by the rules and checks of this Python file, too, which is run for it. Repeatable.",
)
#: Of a verb that judges what was recorded before.
JUDGED_AGAIN: Callable[[F], F] = together(_ALLOW_INCOMPLETE, SHOWING, PLUGIN)

ROOT = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory that references may not leave. Default: the working directory, or what holds all paths.",
)
CACHE = click.option(
    "--no-cache", is_flag=True, help="Judge anew, whatever is kept in the user's cache directory from earlier runs."
)
JOBS = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="At most so many processes read the files of large folders. Default: the usable CPUs.",
)
PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
CONFIG = together(
    click.option("--config", "config", type=_FILE, metavar="FILE", help="Take this configuration file, and no other."),
    click.option("--no-config", is_flag=True, help="Take no configuration file."),
)
#: Which files of folders are looked at.
FILES: Callable[[F], F] = together(
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave such files of folders out, as in .gitignore, instead of what the configuration says. Repeatable.",
    ),
    click.option("--extend-exclude", multiple=True, metavar="PATTERN", help="The same, beside it. Repeatable."),
)

#: What a site judges by beside what is installed.
OWN: Callable[[F], F] = together(
    click.option(
        "--site-rules",
        type=_FILE,
        multiple=True,
        metavar="FILE",
        help="Judge by the rules and checks of this TOML file, too. Repeatable.",
    ),
    PLUGIN,
)
#: What is judged, and how severely.
CHOOSING: Callable[[F], F] = together(
    click.option(
        "--profile",
        type=click.Choice(["gate", "default", "pedantic"]),
        help="gate: only what stops a job; pedantic: everything. Default: default.",
    ),
    click.option(
        "--select",
        multiple=True,
        metavar="ID",
        shell_complete=completing.ids,
        help="Only these rules and checks, or areas: RDV001,SLU. Repeatable.",
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="ID",
        shell_complete=completing.ids,
        help="Leave these rules, checks or areas out. Repeatable.",
    ),
    click.option(
        "--severity",
        "severities",
        multiple=True,
        metavar="ID=SEVERITY",
        help="How bad findings of a rule, check or area are: ENV003=info. Repeatable.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "info"]),
        help="The mildest finding that makes the verdict no-go. Default: error.",
    ),
    _ALLOW_INCOMPLETE,
    OWN,
    CONFIG,
)
BASELINE = click.option(
    "--baseline", type=_FILE, metavar="FILE", help="Findings of lint that are listed here do not count."
)
#: What of the findings is mended.
FIXING: Callable[[F], F] = together(
    click.option("--fix", is_flag=True, help="Edit the files where that surely is right, then lint what is left."),
    click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: also edit where it probably is."),
    click.option("--diff", is_flag=True, help="Show what --fix would edit and exit 1 if there is anything."),
)
#: Of the file that comes on standard input.
STDIN_NAME = click.option(
    "--stdin-name",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="With the path -: the name and place of the file that comes on standard input.",
)
LIST_FILES = click.option("--list-files", is_flag=True, help="List the files that would be read, by job, and stop.")
#: Everything that a verb which reads files and judges has in common.
JUDGING: Callable[[F], F] = together(SHOWING, CHOOSING, FILES, BASELINE)


def choices(options: dict[str, Any]) -> Choices:
    """What the command line chose.

    Raises:
        UsageError: an option whose value is not of its form.
    """
    from preflight.config_file import Choices
    from preflight.errors import UsageError

    if options["config"] is not None and options["no_config"]:
        raise UsageError("--config names a configuration file, and --no-config wants none; leave one of them out")
    return Choices(
        select=_names(options["select"]),
        ignore=_names(options["ignore"]),
        profile=options["profile"],
        fail_on=options["fail_on"],
        allow_incomplete=options["allow_incomplete"],
        severities=_severities(options["severities"]),
        exclude=options["exclude"] or None,
        extend_exclude=options["extend_exclude"],
        baseline=options.get("baseline"),
        site_rules=options["site_rules"],
        file=options["config"],
        use_file=not options["no_config"],
    )


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """`--select RDV001,SLU --select WLD` as one list."""
    return tuple(name.strip() for one in given for name in one.split(",") if name.strip())


def _severities(given: Sequence[str]) -> Any:
    """`--severity ENV003=info,RDV=error` as choices."""
    from difflib import get_close_matches

    from preflight.configuration import SeverityChoice
    from preflight.errors import UsageError
    from preflight.outcome import Severity

    known = [severity.value for severity in Severity]
    found: list[SeverityChoice] = []
    for one in _names(given):
        name, equals, severity = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--severity {one}: expected an id, name or area and a severity, as in ENV003=info")
        if severity not in known:
            near = get_close_matches(severity.lower(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"--severity {one}: there is no severity {severity!r}; {hint}")
        found.append(SeverityChoice(name, severity))
    return tuple(found)
