"""The values that a launch line passes for the quantities that its program takes as inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from preflight.model.job import Claim, Relation, Value, as_int, lift
from preflight.sources.base import LaunchLine, SourceFile, Tree, Variable, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, Setting, as_text, option_setting, variable_setting
from preflight.sources.launchers.option_parser import GivenOption, Option, ScannedLine, Table, scan
from preflight.sources.python.program_inputs import Input, ProgramInputs, program_inputs

_TEXTS = frozenset(("master_addr", "ps_role"))
_REQUIRED = frozenset(("world_size", "ps_workers"))


def program_claims(line: LaunchLine, path: str, words: Sequence[Word], tree: Tree) -> tuple[Claim, ...]:
    """State the rank, sizes and endpoint that the words and variables of a launch pass to a program.

    Args:
        line: the launch line.
        path: the program, relative to the root.
        words: its arguments.
        tree: looks up the program.
    """
    file = tree.read(path) if path.endswith(".py") else None
    if not isinstance(file, SourceFile):
        return ()
    inputs = program_inputs(file, tree)
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    for item, setting in _settings(inputs, words, line.command.environment):
        relation = Relation.REQUIRES if item.quantity in _REQUIRED else Relation.SETS
        builder.add_setting(item.quantity, setting, functools.partial(_convert, item), relation=relation)
    return tuple(builder.claims)


def gives_rank(path: str | None, words: Sequence[Word], environment: Mapping[str, Variable], tree: Tree) -> bool:
    """Whether a line passes the program its rank or role, by an option or a variable that the program itself reads."""
    file = tree.read(path) if path is not None and path.endswith(".py") else None
    if not isinstance(file, SourceFile):
        return False
    inputs = program_inputs(file, tree)
    if not any(item.quantity in ("rank", "ps_index", "node_rank") for item in inputs.inputs):
        return False
    given = {item.quantity for item, _ in _settings(inputs, words, environment)}
    return bool(given & {"rank", "ps_index"}) or ("node_rank" in given and "world_size" in given)


def _settings(
    inputs: ProgramInputs, words: Sequence[Word], environment: Mapping[str, Variable]
) -> list[tuple[Input, Setting]]:
    found: list[tuple[Input, Setting]] = []
    scanned = _scan_options(inputs, words) if any(item.kind == "option" for item in inputs.inputs) else None
    for item in inputs.inputs:
        setting: Setting | None = None
        if item.kind == "variable":
            setting = variable_setting(environment.get(item.name))
        elif item.kind == "word":
            at = int(item.name) - 1
            if at < len(words) and not any(word.many for word in words[: at + 1]):
                setting = option_setting(_plain(item.name, words[at]))
        elif scanned is not None:
            setting = option_setting(scanned.last(item.name) or _by_position(item.name, inputs, scanned))
        if setting is not None:
            found.append((item, setting))
    return found


def _scan_options(inputs: ProgramInputs, words: Sequence[Word]) -> ScannedLine:
    options = {
        name: Option(each.dest, each.takes) for each in inputs.options if not each.positional for name in each.names
    }
    declared = {option.dest for option in options.values()}
    for item in inputs.inputs:
        if item.kind == "option" and item.name not in declared:
            # Declared in another file: the name of the attribute is that of the option.
            options[f"--{item.name}"] = options[f"--{item.name.replace('_', '-')}"] = Option(item.name)
    return scan(words, Table(options, interleaved=True))


def _by_position(name: str, inputs: ProgramInputs, scanned: ScannedLine) -> GivenOption | None:
    positional = [each.dest for each in inputs.options if each.positional]
    if name not in positional or scanned.incomplete:
        return None
    at = positional.index(name)
    return _plain(name, scanned.rest[at]) if at < len(scanned.rest) else None


def _plain(name: str, word: Word) -> GivenOption:
    return GivenOption(name, word.value, word.span, word.spelling, word.parts)


def _convert(item: Input, value: Value) -> Value:
    if item.given:
        return lift(lambda text: dict(item.given).get(str(text), dict(item.given)[""]), value)
    if item.quantity in _TEXTS:
        return as_text(value)
    return as_int(value)
