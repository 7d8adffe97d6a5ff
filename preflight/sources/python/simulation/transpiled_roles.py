"""The servers and trainers that a process of a Fluid job passes to its transpiler, and its own role.

Sources: fluid/transpiler/distribute_transpiler.py of Paddle 1.8 (transpile, get_pserver_program, get_trainer_program).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Known, Value
from preflight.sources.base import SourceFile
from preflight.sources.python.module import argument, last, value_of
from preflight.sources.python.paddle_legacy import is_transpile
from preflight.sources.python.simulation.run_state import Event, Run

#: The calls by which a process takes its role.
_ROLES = {
    "get_pserver_program": "PSERVER",
    "get_pserver_programs": "PSERVER",
    "get_trainer_program": "TRAINER",
}


class Setting(NamedTuple):
    """A quantity with the value that the process passes, and its place."""

    quantity: str
    value: Value
    file: SourceFile
    node: ast.expr


def settings(run: Run) -> Iterator[Setting]:
    """Yield the arguments that a process certainly passes to its transpiler; none if unknown."""
    events = [event for event in run.events if not event.doubt]
    transpiled = next((e for e in events if last(e.name) == "transpile" and is_transpile(e.node)), None)
    if transpiled is None:
        return
    servers = _setting_of(transpiled, "ps_server_endpoints", "pservers", 2)
    if servers is not None and isinstance(servers.value, Known):
        listed = tuple(each.strip() for each in str(servers.value.value).split(",") if each.strip())
        yield servers._replace(value=Known(listed))
        yield servers._replace(quantity="ps_servers", value=Known(len(listed)))
    workers = _setting_of(transpiled, "ps_workers", "trainers", 3)
    if workers is not None:
        yield workers
    taken = next((event for event in events if last(event.name) in _ROLES), None)
    if taken is None:
        return
    role = _ROLES[last(taken.name)]
    yield Setting("ps_role", Known(role), taken.file, taken.node.func)
    own = _setting_of(taken, "ps_current_endpoint", "endpoint", 0)
    index = _setting_of(transpiled, "ps_index", "trainer_id", 0)
    if role == "PSERVER" and own is not None:
        yield own
    elif role == "TRAINER" and index is not None:
        yield index


def _setting_of(event: Event, quantity: str, keyword: str, position: int) -> Setting | None:
    node = argument(event.node, keyword, position)
    value = event.keywords.get(keyword, event.arguments[position] if position < len(event.arguments) else None)
    if node is None or not isinstance(value, (int, str)) or isinstance(value, bool):
        return None
    return Setting(quantity, Known(value), event.file, value_of(node))
