"""The numbers that processes of one script use as their own: their rank, or their place among servers or workers.

One script passes the same variables to all processes that it starts, except for those it sets for each. So a variable
that it does not set per process gives all of them the same number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from preflight.model.job import Launch
from preflight.sources.base import SourceFile
from preflight.sources.python.module import argument, last, value_of
from preflight.sources.python.simulation.libraries import table
from preflight.sources.python.simulation.run_state import Event, Run
from preflight.sources.python.simulation.values import External
from preflight.sources.python.simulation.world import OF_RANK_NAMES

#: Wrappers that run their command on this machine, with the variables of their own.
_HERE = frozenset(("nohup", "env", "numactl", "taskset", "nice", "ionice", "stdbuf", "timeout", "setsid", "time"))
_ELSEWHERE = frozenset(("ssh",))
#: Variables that show which group a process joins.
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "PADDLE_PSERVERS", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
#: Processes of one script that are followed; two with one number are enough.
_MAX_PROCESSES = 8


def processes(launches: Sequence[Launch]) -> Iterator[Launch]:
    """Yield the launches of processes that one script starts at the same time as others of a program."""
    found: dict[tuple[str, str], list[Launch]] = {}
    for launch in launches:
        is_followed = (_HERE | _ELSEWHERE).issuperset(launch.wrappers) and not launch.condition
        if launch.launcher == "python" and launch.program and is_followed:
            found.setdefault((launch.span.path, launch.program), []).append(launch)
    for same in found.values():
        if len(same) > 1 and all(launch.concurrent for launch in same[:-1]):
            yield from same[:_MAX_PROCESSES]


class Taken(NamedTuple):
    """The number, or the endpoint, that a process uses.

    Args:
        group: identifies the group, or role, of that number.
        node: the argument.
        not_set: the variables of ranks and nodes that are not set, and that have a default in the program.
    """

    number: str
    group: str
    file: SourceFile
    node: ast.expr
    not_set: tuple[str, ...]


def taken_process_number(run: Run, launch: Launch, variables: Mapping[str, str]) -> Taken | None:
    """Return the number that a process certainly takes in a group of several; None if unknown."""
    names = tuple(dict.fromkeys(name for name in run.not_set if OF_RANK_NAMES.search(name)))
    is_here = _HERE.issuperset(launch.wrappers)
    for event in run.events if run.is_complete else ():
        row = table()["process_numbers"].get(last(event.name))
        if row is None or event.doubt:
            continue
        number, size = _value(event, row["number"]), _value(event, row.get("size"))
        node = argument(event.node, *row["number"])
        is_several = (isinstance(number, int) and isinstance(size, int) and size > 1) or (
            isinstance(number, str) and bool(number) and "size" not in row
        )
        # Another machine may have variables of its own.
        if is_several and node is not None and (is_here or str(number) in variables.values()):
            parts = (_value(event, row.get("group")), size, *map(variables.get, _ADDRESS))
            group = " ".join(map(_shown, parts))
            return Taken(str(number), group, event.file, value_of(node), names if is_here else ())
    return None


def _value(event: Event, given: Sequence[Any] | None) -> object:
    """Return the value of an argument, given by its keyword and position."""
    if given is None:
        return None
    keyword, position = given
    return event.keywords.get(keyword, event.arguments[position] if position < len(event.arguments) else None)


def _shown(value: object) -> str:
    return value.last if isinstance(value, External) else str(value)
