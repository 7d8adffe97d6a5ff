"""The vocabulary of claims: every quantity a source may state, with its type, unit and meaning (`quantities.toml`).

A source states only these, or `env.NAME` for a variable the ranks will see, or `setting.FRAMEWORK.KEY` for a key of a
framework's configuration as it is written there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from preflight._util import toml
from preflight._util.usage_error import nearest

ENVIRONMENT_PREFIX = "env."
SETTING_PREFIX = "setting."
#: The value of a setting that is a section with keys of its own.
SECTION = ("{...}",)
#: Stands for each section in the value of a list of sections.
LISTED_SECTION = "{listed}"

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, float, int, str, tuple)}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that a source may state. `kind` is the Python type of a known value.

    `agrees` marks the quantities for which the one disagreement rule compares what sets them with what requires them.
    """

    name: str
    kind: type
    meaning: str
    unit: str = ""
    agrees: bool = False


QUANTITIES: dict[str, Quantity] = {
    name: Quantity(name, _KINDS[row["kind"]], row["meaning"], row.get("unit", ""), row.get("agrees", False))
    for name, row in toml.load(Path(__file__).with_suffix(".toml")).items()
}


class UnknownQuantity(LookupError):
    """A rule or check asked for a quantity that no source states; the message has the nearest name."""


def check_known(name: str) -> None:
    """Raise UnknownQuantity for a misspelt name; it would otherwise look like a value that the files do not state."""
    if is_known(name):
        return
    near = nearest(name, QUANTITIES)
    hint = f"did you mean {near!r}?" if near else "`preflight quantities` lists them"
    raise UnknownQuantity(f"unknown quantity {name!r}; {hint}")


def is_known(name: str) -> bool:
    """Whether a source may state this quantity."""
    return name in QUANTITIES or any(
        name.startswith(prefix) and len(name) > len(prefix) for prefix in (ENVIRONMENT_PREFIX, SETTING_PREFIX)
    )
