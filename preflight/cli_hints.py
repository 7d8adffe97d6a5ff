"""Hints for a command line that cannot be understood: the nearest value or option, and the verb that has it."""

from __future__ import annotations

import re

import click


def hinted(error: click.ClickException, group: click.Group) -> click.ClickException:
    """The error with a hint in its message, where there is one to give."""
    if isinstance(error, click.NoSuchOption):
        return _option(error, group)
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice):
        hint = _choice(error.message, [str(choice) for choice in error.param.type.choices])
        if hint:
            said = f"{error.message.rstrip('.')}. {hint}"
            return click.BadParameter(said, error.ctx, error.param, error.param_hint)
    return error


def _choice(message: str, choices: list[str]) -> str:
    from preflight.near import nearest

    said = re.match(r"'(.*?)' is not", message)
    near = nearest(said[1], choices) if said else ""
    return f"Did you mean {near!r}?" if near else ""


def _option(error: click.NoSuchOption, group: click.Group) -> click.ClickException:
    from preflight.near import nearest

    name = error.option_name
    own = error.ctx.command if error.ctx is not None else group
    near = nearest(name, [spelled for spelled in _options(own) if spelled.startswith("--")])
    if near and _alike(near, name):
        return click.UsageError(f"There is no option {name}. Did you mean {near}?", error.ctx)
    having = [verb for verb, command in group.commands.items() if name in _options(command)]
    if having:
        verbs = " and ".join(having) if len(having) < 3 else f"{', '.join(having[:-1])} and {having[-1]}"
        has = "has it" if len(having) == 1 else "have it"
        return click.UsageError(f"{own.name} has no option {name}; {verbs} {has}.", error.ctx)
    hint = f" Did you mean {near}?" if near else ""
    return click.UsageError(f"There is no option {name}.{hint}", error.ctx)


def _alike(one: str, other: str) -> bool:
    """Whether two options differ by a letter or two, so that no verb need be asked for the other."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one, other).ratio() >= 0.85


def _options(command: click.Command) -> set[str]:
    return {spelled for parameter in command.params for spelled in (*parameter.opts, *parameter.secondary_opts)}
