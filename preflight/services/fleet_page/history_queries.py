"""The data of a page: the filters in its address, and the runs read for it in bounded amounts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from preflight._util.hostnames import expand_hosts
from preflight._util.usage_error import similar_names
from preflight.commands.history.account import Account, account_of
from preflight.commands.history.past import Past, Series, Values, measured_in, names_in, past_in, quantities_in
from preflight.model.measurements import Quantity

if TYPE_CHECKING:
    from sqlalchemy import Connection


#: Limits of nodes times runs for a page, and for the stories, which take longer.
MAX_CELLS = 400_000
MAX_STORY_CELLS = 200_000
#: Limit of links times runs for a page.
MAX_LINK_CELLS = 1_000_000
#: Largest number of outcomes read from a run.
MAX_OUTCOMES = 20_000


@dataclass(frozen=True, slots=True)
class RunCounts:
    """A run, and the number of its nodes by outcome. `place` is its index in the history."""

    id: int
    place: int
    began: int
    command: str
    verdict: str
    passing: int
    failing: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An outcome on some nodes in a run: `status` is `fail`, `noted` (it does not count) or `unknown` (undecided)."""

    rule: str
    name: str
    status: str
    severity: str
    message: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkSeries:
    """One direction of a link over the runs; None where it was not measured."""

    node: str
    peer: str
    values: Values


def read_past(connection: Connection, days: int) -> tuple[Past, int]:
    """Return the states, properties and failures of the nodes, and the number of older runs that are left out."""
    from sqlalchemy import func, select

    from preflight.commands.history.database import RUNS

    past = past_in(connection, days=days, newest=_most_runs(connection, MAX_CELLS), measured=False)
    newest = connection.scalar(select(func.max(RUNS.c.began))) or 0
    whole = select(func.count()).select_from(RUNS).where(RUNS.c.began > newest - days * 86_400)
    return past, max(0, (connection.scalar(whole) or 0) - len(past.runs))


def read_account(connection: Connection, days: int, label: str) -> Account:
    """Return the stories of the period."""
    return account_of(past_in(connection, days=days, newest=_most_runs(connection, MAX_STORY_CELLS)), label)


def _most_runs(connection: Connection, cells: int) -> int:
    """Return the largest number of runs that keeps nodes times runs within `cells`."""
    from sqlalchemy import func, select

    from preflight.commands.history.database import NODES

    return max(1, cells // max(1, connection.scalar(select(func.count()).select_from(NODES)) or 0))


def state_of_database(connection: Connection) -> tuple[int, ...]:
    """Return a value that changes when a run is added or removed. Runs never change."""
    from sqlalchemy import func, select

    from preflight.commands.history.database import RUNS

    row = connection.execute(select(func.count(), func.min(RUNS.c.id), func.max(RUNS.c.id))).one()
    return tuple(int(value or 0) for value in row)


def counts_of(past: Past) -> tuple[RunCounts, ...]:
    """Return every run with the number of its nodes in each state."""
    numbers = {state: [0] * len(past.runs) for state in ("passing", "failing", "unknown")}
    for states in past.states.values():
        for place, state in enumerate(states):
            if state is not None:
                numbers[state][place] += 1
    return tuple(
        RunCounts(
            run.id,
            place,
            run.began,
            run.verb,
            run.verdict,
            numbers["passing"][place],
            numbers["failing"][place],
            numbers["unknown"][place],
        )
        for place, run in enumerate(past.runs)
    )


def read_faults(connection: Connection, run: int, only: Collection[str] | None) -> tuple[Fault, ...]:
    """Return the faults of a run, of all nodes or `only` these, one per message; nodes without an answer come first."""
    from sqlalchemy import select

    from preflight.commands.history.database import NODE_RUNS, NODES, OUTCOMES

    together: dict[tuple[str, str, str, str, str], list[str]] = {}
    silent = (
        select(NODES.c.name, NODE_RUNS.c.problem)
        .join(NODES, NODES.c.id == NODE_RUNS.c.node_id)
        .where(NODE_RUNS.c.run_id == run, NODE_RUNS.c.problem != "")
        .order_by(NODES.c.name)
        .limit(MAX_OUTCOMES)
    )
    for node, problem in connection.execute(silent):
        together.setdefault(("", "no answer", "fail", "error", problem), []).append(node)
    columns = (OUTCOMES.c.rule, OUTCOMES.c.name, OUTCOMES.c.status, OUTCOMES.c.severity, OUTCOMES.c.message)
    found = (
        select(NODES.c.name, *columns)
        .join(NODES, NODES.c.id == OUTCOMES.c.node_id)
        .where(OUTCOMES.c.run_id == run)
        .order_by(NODES.c.name, OUTCOMES.c.id)
        .limit(MAX_OUTCOMES)
    )
    for node, *texts in connection.execute(found):
        together.setdefault((texts[0], texts[1], texts[2], texts[3], texts[4]), []).append(node)
    order = ("fail", "unknown", "noted")
    faults = [
        Fault(*texts, nodes=tuple(dict.fromkeys(kept)))
        for texts, nodes in together.items()
        if (kept := [node for node in nodes if only is None or node in only])
    ]
    return tuple(sorted(faults, key=lambda item: (order.index(item.status), item.rule, -len(item.nodes), item.message)))


def read_series(connection: Connection, past: Past, node: str, peers: Collection[str]) -> tuple[Series, ...]:
    """Return every quantity of a node in these runs, and its peers' values of the same runs."""
    place = {run.id: number for number, run in enumerate(past.runs)}
    names, quantities = names_in(connection), quantities_in(connection)
    wanted_ids = {number for number, name in names.items() if name == node or name in peers}
    values: dict[int, dict[int, Values]] = {}
    positions_by_node_ids: dict[str, list[tuple[int, int]]] = {}
    for run, quantity, node_ids, _, value_list in measured_in(connection, place, links=False):
        kept = positions_by_node_ids.get(node_ids)
        if kept is None:
            kept = positions_by_node_ids[node_ids] = [
                (at, number) for at, number in enumerate(json.loads(node_ids)) if number in wanted_ids
            ]
        numbers = json.loads(value_list)
        of_node = values.setdefault(quantity, {})
        for at, number in kept:
            of_node.setdefault(number, [None] * len(place))[place[run]] = numbers[at]
    found = (
        Series(quantities[quantity], {names[number]: series for number, series in of_node.items()})
        for quantity, of_node in values.items()
    )
    return tuple(sorted((item for item in found if node in item.values), key=lambda item: item.quantity.name))


def read_links(
    connection: Connection, past: Past, quantity: str, only: Collection[str] | None
) -> tuple[Quantity | None, tuple[Quantity, ...], tuple[LinkSeries, ...]]:
    """Return the chosen (or first) quantity of links, all quantities, and the values of links (`only`: of nodes)."""
    from sqlalchemy import select

    from preflight.commands.history.database import MEASUREMENTS

    known = quantities_in(connection)
    of_links = select(MEASUREMENTS.c.quantity_id).where(MEASUREMENTS.c.peer_ids != "[]").distinct()
    choices = {
        known[number].name: number
        for number in sorted(connection.scalars(of_links), key=lambda number: known[number].name)
    }
    all_of_them = tuple(known[number] for number in choices.values())
    if not choices or (quantity and quantity not in choices):
        return None, all_of_them, ()
    number = choices[quantity or next(iter(choices))]
    place: Mapping[int, int] = {run.id: at for at, run in enumerate(past.runs)}
    names = names_in(connection)
    wanted_ids = None if only is None else {id for id, name in names.items() if name in only}
    rows = sorted(measured_in(connection, place, links=True, quantity=number), key=lambda row: -place[row[0]])
    most = max(1, MAX_LINK_CELLS // max(1, len(place)))
    values_by_pair: dict[tuple[int, int], Values] = {}
    for newest, (run, _, node_ids, peer_ids, value_list) in enumerate(rows):
        at = place[run]
        for node, peer, value in zip(json.loads(node_ids), json.loads(peer_ids), json.loads(value_list), strict=True):
            series = values_by_pair.get((node, peer))
            if series is None:
                # Without chosen nodes the newest run decides: each run may measure other pairs of a large fleet.
                is_chosen = newest == 0 if wanted_ids is None else node in wanted_ids or peer in wanted_ids
                if not is_chosen or len(values_by_pair) >= most:
                    continue
                series = values_by_pair[node, peer] = [None] * len(place)
            series[at] = value
    links = tuple(LinkSeries(names[node], names[peer], values) for (node, peer), values in values_by_pair.items())
    return known[number], all_of_them, links


STATES = ("passing", "failing", "unknown", "absent")
#: The longest period, in days.
MAX_DAYS = 3660
DEFAULT_DAYS = 90
_MAX_TEXT = 2_000


class WrongFilter(ValueError):
    """The filters in an address are invalid, with the reason."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a page.

    Args:
        hosts: only these nodes, as names or ranges; empty for all.
        state: only nodes with this last outcome; empty for all.
        rule: only nodes that failed by this rule or check in the period.
        days: the period before the newest run.
        run: the run whose outcomes are shown; None for the newest.
        quantity: the quantity of links to show.
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
        return frozenset(expand_hosts(self.hosts)) if self.hosts else None

    def query(self, **changes: Any) -> str:
        """Return the address's query with these changes, else empty; other changes return to the first page."""
        changed = replace(self, **{"page": 1, **changes})
        default = Filters()
        chosen = {
            item.name: str(value)
            for item in fields(self)
            if (value := getattr(changed, item.name)) != getattr(default, item.name)
        }
        return f"?{urlencode(chosen)}" if chosen else ""


def filters_of(query: Iterable[tuple[str, str]]) -> Filters:
    """Parse the filters of a query. Raises WrongFilter."""
    known = [item.name for item in fields(Filters)]
    filters: dict[str, Any] = {}
    for name, text in query:
        value = text.strip()
        if name not in known:
            near = similar_names(name, known, 1)
            raise WrongFilter(
                f"the address has an unknown filter {name[:40]!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
            )
        if name in filters:
            raise WrongFilter(f"the address names {name!r} twice")
        if len(value) > _MAX_TEXT:
            raise WrongFilter(f"{name} is longer than {_MAX_TEXT:,} characters")
        if value:
            filters[name] = _value(name, value)
    return Filters(**filters)


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
