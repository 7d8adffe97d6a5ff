"""What of the fleet is shown, as the query of an address: everything that is chosen can be sent to a colleague."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from preflight._util.hostlists import expand_hosts
from preflight._util.suggest import similar_names

STATES = ("passing", "failing", "unknown", "absent")
#: The longest period, in days.
MAX_DAYS = 3660
DEFAULT_DAYS = 90
_MAX_TEXT = 2_000


class WrongFilter(ValueError):
    """A query that cannot be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What is shown.

    Args:
        hosts: only these nodes, as names or ranges; empty for all.
        state: only nodes with this last outcome; empty for all.
        rule: only nodes that failed by this rule or check in the period.
        days: the period before the newest run.
        run: the run whose outcomes are shown; None for the newest.
        quantity: what is shown of links.
        page: of a long list, from 1.
    """

    hosts: str = ""
    state: str = ""
    rule: str = ""
    days: int = DEFAULT_DAYS
    run: int | None = None
    quantity: str = ""
    page: int = 1

    @property
    def names(self) -> frozenset[str] | None:
        """The names of the chosen nodes; None for all."""
        return frozenset(expand_hosts(self.hosts)) if self.hosts else None

    def query(self, **changes: Any) -> str:
        """The query of the address with these changes, beginning with `?`; empty if nothing is chosen.

        A list starts again at its first page when something else changes.
        """
        changed = replace(self, **{"page": 1, **changes})
        default = Filters()
        chosen = {
            item.name: str(value)
            for item in fields(self)
            if (value := getattr(changed, item.name)) != getattr(default, item.name)
        }
        return f"?{urlencode(chosen)}" if chosen else ""


def filters_of(query: Iterable[tuple[str, str]]) -> Filters:
    """The filters of a query.

    Raises:
        WrongFilter: a name is unknown or given twice, or a value is not of its form.
    """
    known = [item.name for item in fields(Filters)]
    found: dict[str, Any] = {}
    for name, text in query:
        value = text.strip()
        if name not in known:
            near = similar_names(name, known, 1)
            raise WrongFilter(
                f"the address has an unknown filter {name[:40]!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
            )
        if name in found:
            raise WrongFilter(f"the address names {name!r} twice")
        if len(value) > _MAX_TEXT:
            raise WrongFilter(f"{name} is longer than {_MAX_TEXT:,} characters")
        if value:
            found[name] = _value(name, value)
    return Filters(**found)


def _value(name: str, text: str) -> Any:
    limits = {"days": MAX_DAYS, "run": 2**31 - 1, "page": 100_000}
    if name in limits:
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= limits[name]):
            raise WrongFilter(f"{name}={text[:40]}: expected a number from 1 to {limits[name]:,}")
        return int(text)
    if name == "state" and text not in STATES:
        raise WrongFilter(f"state={text[:40]}: expected one of {', '.join(STATES)}")
    if name == "hosts":
        try:
            expand_hosts(text)
        except ValueError as error:
            raise WrongFilter(f"hosts: {error}; expected names or ranges, as in node[001-016],login1") from None
    return text
