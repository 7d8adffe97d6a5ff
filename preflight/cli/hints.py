"""Hints for command-line mistakes: the nearest value or option, and the command that has it; shell completion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def add_hint(error: click.ClickException, group: click.Group) -> click.ClickException:
    """Return the error with a hint in its message, if there is one to give."""
    if isinstance(error, click.NoSuchOption):
        return _option(error, group)
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        hint = _choice(error.message, [str(choice) for choice in error.param.type.choices])
        if hint:
            message = f"{error.message.rstrip('.')}. {hint}"
            return click.BadParameter(message, error.ctx, error.param, error.param_hint)
    return error


def _choice(message: str, choices: list[str]) -> str:
    from preflight._util.usage_error import nearest

    rejected = re.match(r"'(.*?)' is not", message)
    near = nearest(rejected[1], choices) if rejected else ""
    return f"Did you mean {near!r}?" if near else ""


def _option(error: click.NoSuchOption, group: click.Group) -> click.ClickException:
    from preflight._util.usage_error import nearest

    name = error.option_name
    own = error.ctx.command if error.ctx is not None else group
    near = nearest(name, [option for option in _options(own) if option.startswith("--")])
    if near and _is_typo(near, name):
        return click.UsageError(f"No such option: {name}. Did you mean {near}?", error.ctx)
    owners = [owner for owner, command in group.commands.items() if name in _options(command)]
    if owners:
        names = " and ".join(owners) if len(owners) < 3 else f"{', '.join(owners[:-1])} and {owners[-1]}"
        has = "has it" if len(owners) == 1 else "have it"
        return click.UsageError(f"{own.name} has no option {name}; {names} {has}.", error.ctx)
    hint = f" Did you mean {near}?" if near else ""
    return click.UsageError(f"No such option: {name}.{hint}", error.ctx)


def _is_typo(name: str, other: str) -> bool:
    """Return whether two options differ by only a letter or two."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, name, other).ratio() >= 0.85


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def use_own_bash() -> None:
    """Make bash completion run `preflight` from PATH, not the command that was typed.

    Otherwise pressing Tab after `./preflight` would execute that file in the working directory.
    """
    from click.shell_completion import BashComplete, add_completion_class

    class Bash(BashComplete):
        source_template = BashComplete.source_template.replace("_complete $1)", "_complete %(prog_name)s)")

    add_completion_class(Bash)


#: Length of an area's name, such as RDV.
_AREA = 3


def ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last item of a list (`RDV001,SL`) to ids, names and areas."""
    from click.shell_completion import CompletionItem

    from preflight.config.selection import all_items

    before, comma, prefix = incomplete.rpartition(",")
    metas = [item.meta for item in all_items()]
    if prefix[:1].islower():
        found = {meta.name: meta.id for meta in metas}
    elif len(prefix) < _AREA:
        found = dict.fromkeys((meta.area for meta in metas), "")
    else:
        found = {meta.id: meta.name for meta in metas}
    items = sorted(found.items())
    return [CompletionItem(before + comma + word, help=help) for word, help in items if word.startswith(prefix)]
