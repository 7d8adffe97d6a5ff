"""What a launcher itself is given, as settings: `setting.torchrun.rdzv_conf`, with the option as place.

What is wrong with a value is a row of the rules' tables (data/refusals); data/frameworks.toml lists the launchers.
"""

from __future__ import annotations

from collections.abc import Mapping

from preflight.model.job import Known, Unresolved, Value, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.sources.base import Variable, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, option_setting, variable_setting
from preflight.sources.launchers.option_parser import GivenOption, ScannedLine

#: Stands for the launcher: true where all its options are written out.
_CALL = "(call)"
#: Names that mean something else in conditions.
_NAMES = {"launcher": "multinode_launcher"}


def state_launcher(
    builder: ClaimBuilder,
    framework: str,
    word: Word,
    scanned: ScannedLine,
    environment: Mapping[str, Variable] | None = None,
    variables: str = "",
    *,
    written: bool = False,
    repeated: frozenset[str] = frozenset(),
) -> None:
    """State each option as text, a flag as true, and `NAME.again` for one that is also given in another spelling.

    Args:
        builder: collects the claims.
        framework: how the settings are named.
        word: the launcher.
        scanned: its options.
        environment: the variables of the line.
        variables: how the names of variables begin that stand for options; they are stated by their own names.
        written: whether each spelling is stated, too, as `written.ppn`.
        repeated: options of which every one counts; each is stated as the list of what it is given.
    """
    prefix = f"{SETTING_PREFIX}{framework}."
    whole = Unresolved("further options") if scanned.incomplete else Known(True)
    builder.add(f"{prefix}{_CALL}", whole, word.span, word.spelling)
    first: dict[str, GivenOption] = {}
    for given in scanned.given:
        if given.dest in first and _option(first[given.dest]) != _option(given):
            builder.add(f"{prefix}{given.dest}.again", Known(True), given.span, given.spelling)
        first.setdefault(given.dest, given)
        if written:
            builder.add(
                f"{prefix}written.{_option(given).strip('-').replace('-', '_')}",
                Known(True),
                given.span,
                given.spelling,
            )
    for dest in repeated & first.keys():
        values = lift(lambda *items: tuple(map(str, items)), *(given.value for given in scanned.every(dest)))
        builder.add(f"{prefix}{dest}", values, first[dest].span, first[dest].spelling)
    for dest in first.keys() - repeated:
        builder.add_setting(f"{prefix}{_NAMES.get(dest, dest)}", option_setting(scanned.last(dest)), _text)
    for name, variable in (environment or {}).items() if variables else ():
        if name.startswith(variables):
            setting = variable_setting(variable)
            # A controller's own variable is nothing that the user could change.
            if name in variable.span.snippet:
                builder.add_setting(f"{prefix}{name}", setting, _text)
            dest = name.removeprefix(variables).lower()
            if dest not in first:
                builder.add_setting(f"{prefix}{dest}", setting, _text)


def _option(given: GivenOption) -> str:
    return given.spelling.replace("=", " ").split()[0]


def _text(value: Value) -> Value:
    return lift(lambda item: item if isinstance(item, bool) else str(item), value)
