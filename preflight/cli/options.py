"""Options that commands share, and hints for mistakes in them; imports nothing heavier than click."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.reporters import FORMATS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from preflight.config.resolve import Choices


def add_hint(error: click.ClickException, group: click.Group) -> click.ClickException:
    """Return the error with a hint in its message; unchanged if there is no hint."""
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, group)
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        hint = _choice_hint(error.message, [str(choice) for choice in error.param.type.choices])
        if hint:
            message = f"{error.message.rstrip('.')}. {hint}"
            return click.BadParameter(message, error.ctx, error.param, error.param_hint)
    return error


def _choice_hint(message: str, choices: list[str]) -> str:
    from preflight._util.usage_error import nearest

    match = re.match(r"'(.*?)' is not", message)
    nearest_choice = nearest(match[1], choices) if match else ""
    return f"Did you mean {nearest_choice!r}?" if nearest_choice else ""


def _unknown_option(error: click.NoSuchOption, group: click.Group) -> click.ClickException:
    from preflight._util.usage_error import nearest

    name = error.option_name
    used_command = error.ctx.command if error.ctx is not None else group
    nearest_option = nearest(name, [option for option in _option_names(used_command) if option.startswith("--")])
    if nearest_option and _is_typo(nearest_option, name):
        return click.UsageError(f"No such option: {name}. Did you mean {nearest_option}?", error.ctx)
    owners = [owner for owner, command in group.commands.items() if name in _option_names(command)]
    if owners:
        names = " and ".join(owners) if len(owners) < 3 else f"{', '.join(owners[:-1])} and {owners[-1]}"
        verb = "has it" if len(owners) == 1 else "have it"
        return click.UsageError(f"{used_command.name} has no option {name}; {names} {verb}.", error.ctx)
    hint = f" Did you mean {nearest_option}?" if nearest_option else ""
    return click.UsageError(f"No such option: {name}.{hint}", error.ctx)


def _is_typo(name: str, other: str) -> bool:
    """Return whether two options differ by only a letter or two."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, name, other).ratio() >= 0.85


def _option_names(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def complete_from_path() -> None:
    """Let bash's completion run `preflight` from PATH, and not the `./preflight` in the command line."""
    from click.shell_completion import BashComplete, add_completion_class

    class Bash(BashComplete):
        source_template = BashComplete.source_template.replace("_complete $1)", "_complete %(prog_name)s)")

    add_completion_class(Bash)


#: The length of the name of an area, such as RDV.
_AREA_LENGTH = 3


def complete_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the ids, names and areas that complete the last item of a list (`RDV001,SL`)."""
    from click.shell_completion import CompletionItem

    from preflight.plugins.installed import all_items

    listed_before, comma, prefix = incomplete.rpartition(",")
    metas = [item.meta for item in all_items()]
    if prefix[:1].islower():
        names = {meta.name: meta.id for meta in metas}
    elif len(prefix) < _AREA_LENGTH:
        names = dict.fromkeys((meta.area for meta in metas), "")
    else:
        names = {meta.id: meta.name for meta in metas}
    items = sorted(names.items())
    return [CompletionItem(listed_before + comma + word, help=help) for word, help in items if word.startswith(prefix)]


F = TypeVar("F", bound=Callable[..., Any])


def combine(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several options, which the help lists in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def output(description: str) -> Callable[[F], F]:
    """Return the option for formats and their files; `what` is its help up to "Repeatable."."""
    return click.option(
        *("-o", "--output", "outputs"), multiple=True, metavar="FORMAT[:FILE]", help=f"Write {description}. Repeatable."
    )


OUTPUT = output(f"the report in one of the formats {', '.join(FORMATS)}. Default: text on standard output")
EVENTS = click.option(
    "--events",
    metavar="TARGET",
    help="Write events during the run, one JSON object per line, to a file, to - (standard output) or to fd:N.",
)
_VERBOSE = click.option(
    "-v", "--verbose", count=True, help="Also list what passed and what could not be decided; -vv lists everything."
)
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Show only findings and the verdict.")
COLOR = click.option(
    "--color/--no-color",
    default=None,
    help="Use colours. Default: on a terminal unless NO_COLOR is set, or if FORCE_COLOR is set.",
)
_ALLOW_INCOMPLETE = click.option(
    "--allow-incomplete", is_flag=True, help="Exit 0 instead of 3 if a required check could not be decided."
)
_STATISTICS = click.option(
    "--statistics", is_flag=True, help="Show the number of findings per rule instead of the findings."
)
_CONCISE = click.option(
    "--concise", is_flag=True, help="One line per finding, for grep and editors: path:line:col: error[ID] message."
)
_PRICE = click.option(
    "--price-per-gpu-hour",
    type=click.FloatRange(0),
    metavar="PRICE",
    help="Price of one GPU-hour, to show the cost that a no-go avoided.",
)
DISPLAY_OPTIONS: Callable[[F], F] = combine(OUTPUT, EVENTS, _VERBOSE, _QUIET, _CONCISE, _STATISTICS, _PRICE, COLOR)
_FILE = click.Path(path_type=Path, dir_okay=False)


def _load_plugins(context: click.Context, parameter: click.Parameter, paths: tuple[Path, ...]) -> None:
    """Load the rules and checks of the given plugin files, and remove those of an earlier run in this process."""
    if paths or "preflight.plugins.registry" in sys.modules:
        from preflight.plugins import registry

        registry.use_plugin_files(paths)


def _log(context: click.Context, parameter: click.Parameter, value: bool | Path | None) -> None:
    if not value:
        return
    from preflight._util import log
    from preflight._util.usage_error import UsageError

    context.find_root().call_on_close(log.close_log)
    if isinstance(value, Path):
        try:
            log.log_to_file(value)
        except OSError as error:
            raise UsageError(f"--log-file {value}: cannot write: {error.strerror}") from None
    elif not log.is_on_stderr():
        log.log_to_stderr()


def logging_options(command: click.Command, *, hidden: bool = True) -> None:
    """Add --debug and --log-file to `command`: to the group, whose help lists them, and to each subcommand."""
    common: Any = {"expose_value": False, "is_eager": True, "callback": _log, "hidden": hidden}
    debug = click.Option(
        ["--debug"],
        is_flag=True,
        help="Log to standard error each command that is run, why, on which node, and how long it takes.",
        **common,
    )
    file = click.Option(["--log-file"], type=_FILE, metavar="FILE", help="Append the same log to FILE.", **common)
    command.params += [debug, file]


PLUGIN = click.option(
    "--plugin",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    expose_value=False,
    is_eager=True,
    callback=_load_plugins,
    help="Also use the rules and checks of this Python file, which is executed. Repeatable.",
)
#: Options of a command that judges a recording.
REJUDGE_OPTIONS: Callable[[F], F] = combine(_ALLOW_INCOMPLETE, DISPLAY_OPTIONS, PLUGIN)

ROOT = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory outside which no references are followed. Default: the working directory, or the common parent "
    "of all paths.",
)
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*\Z")


def _read_variables(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the variables by name, and set them for scripts. Raises BadParameter unless they are `NAME=VALUE`."""
    variables: dict[str, str] = {}
    for value_text in values:
        name, equals, value = value_text.partition("=")
        if not equals or not _VARIABLE_NAME.match(name):
            raise click.BadParameter(f"{value_text!r} is not NAME=VALUE, as in --set NNODES=4", context, option)
        variables[name] = value
    if variables:
        from preflight.sources.base import set_variables

        context.with_resource(set_variables(variables))
    return variables


VARIABLES = click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_read_variables,
    help="Variable that the job is submitted with, for values that the files do not set: NNODES=4. Repeatable.",
)
CACHE = click.option("--no-cache", is_flag=True, help="Ignore results of earlier runs in the user's cache directory.")
JOBS = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Read large folders with up to N processes. Default: the number of usable CPUs.",
)
PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
CONFIG = combine(
    click.option("--config", "config", type=_FILE, metavar="FILE", help="Use this configuration file and no other."),
    click.option("--no-config", is_flag=True, help="Use no configuration file."),
)
#: Which files of folders are read.
FILES: Callable[[F], F] = combine(
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Skip matching files in folders (.gitignore syntax); replaces the configured patterns. Repeatable.",
    ),
    click.option(
        "--extend-exclude",
        multiple=True,
        metavar="PATTERN",
        help="Like --exclude, in addition to the configured patterns. Repeatable.",
    ),
)

_SITE_RULES = click.option(
    "--site-rules",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Also use the rules and checks of this TOML file. Repeatable.",
)
#: Rules and checks beyond those that are installed.
EXTRA_RULES: Callable[[F], F] = combine(_SITE_RULES, PLUGIN)
#: Which rules and checks apply, and how severe their findings are.
RULE_OPTIONS: Callable[[F], F] = combine(
    click.option(
        "--profile",
        type=click.Choice(["gate", "default", "pedantic"]),
        help="gate: only what stops a job; pedantic: everything. Default: default.",
    ),
    click.option(
        "--select",
        multiple=True,
        metavar="ID",
        shell_complete=complete_ids,
        help="Use only these rules, checks or areas: RDV001,SLU. Repeatable.",
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="ID",
        shell_complete=complete_ids,
        help="Skip these rules, checks or areas. Repeatable.",
    ),
    click.option(
        "--severity",
        "severities",
        multiple=True,
        metavar="ID=SEVERITY",
        help="Set the severity of a rule, check or area: ENV003=info. Repeatable.",
    ),
)
#: The same for a service, which examines no tree that could hold a configuration.
SERVICE_RULE_OPTIONS: Callable[[F], F] = combine(
    RULE_OPTIONS,
    _SITE_RULES,
    click.option("--config", type=_FILE, metavar="FILE", help="Use this configuration file. Default: none."),
)
SELECTION_OPTIONS: Callable[[F], F] = combine(
    RULE_OPTIONS,
    click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "info"]),
        help="The lowest severity that makes the verdict no-go. Default: error.",
    ),
    _ALLOW_INCOMPLETE,
    EXTRA_RULES,
    CONFIG,
)
BASELINE = click.option(
    "--baseline", type=_FILE, metavar="FILE", help="Do not count lint findings that are listed in this file."
)
SINCE = click.option(
    "--since",
    default="",
    metavar="REV",
    help="Check only jobs with a file that changed since this git revision, and report only new findings.",
)
#: Which findings are fixed.
FIX_OPTIONS: Callable[[F], F] = combine(
    click.option("--fix", is_flag=True, help="Apply the safe fixes to the files, then lint the result."),
    click.option(
        "--unsafe-fixes",
        is_flag=True,
        help="With --fix or --diff: also include fixes that may change what the job does.",
    ),
    click.option("--diff", is_flag=True, help="Show what --fix would change; exit with 1 if it would change anything."),
)
#: The name of the file on standard input.
STDIN_NAME = click.option(
    "--stdin-name",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="With the path -: treat standard input as the file with this path.",
)
LIST_FILES = click.option("--list-files", is_flag=True, help="List the files that would be read, by job, and exit.")
#: Options of every command that reads files and judges them.
JUDGE_OPTIONS: Callable[[F], F] = combine(DISPLAY_OPTIONS, SELECTION_OPTIONS, FILES, BASELINE)


def choices(options: dict[str, Any]) -> Choices:
    """Return the choices made on the command line. Raises UsageError for an invalid value."""
    from preflight._util.usage_error import UsageError
    from preflight.config.resolve import Choices

    if options["config"] is not None and options["no_config"]:
        raise UsageError("--config and --no-config are mutually exclusive")
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


def _names(values: Sequence[str]) -> tuple[str, ...]:
    """Return the names in values such as `--select RDV001,SLU --select WLD`, in one list."""
    return tuple(name.strip() for names in values for name in names.split(",") if name.strip())


def _severities(values: Sequence[str]) -> Any:
    """Return the choices in values such as `--severity ENV003=info,RDV=error`. Raises UsageError."""
    from preflight._util.usage_error import UsageError, similar_names
    from preflight.model.configuration import SeverityChoice
    from preflight.model.findings import Severity

    severity_names = [severity.value for severity in Severity]
    choices: list[SeverityChoice] = []
    for choice in _names(values):
        name, equals, severity = choice.partition("=")
        if not equals or not name:
            raise UsageError(f"--severity {choice}: expected an id, name or area and a severity, as in ENV003=info")
        if severity not in severity_names:
            similar = similar_names(severity.lower(), severity_names)
            hint = f"did you mean {similar[0]}?" if similar else f"use one of {', '.join(severity_names)}"
            raise UsageError(f"--severity {choice}: {severity!r} is not a severity; {hint}")
        choices.append(SeverityChoice(name, severity))
    return tuple(choices)
