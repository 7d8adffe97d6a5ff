"""Interface filters that stand in no file of the job, but in the environment of a node or in /etc/nccl.conf."""

from __future__ import annotations

from preflight.job import Job
from preflight.once import once
from preflight.recording import Facts
from preflight_checks.context.surroundings import surroundings
from preflight_checks.demands import Filter, filter_unresolved, filters
from preflight_checks.probes.environment import Environment

_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@once
def environment_filters(job: Job, facts: Facts) -> dict[str, tuple[Filter, ...]]:
    """The filters that each node adds by itself, where the job's files leave the variable alone.

    They are certain where the ranks' own context was looked into, and those of NCCL's files are in any case.
    """
    around = surroundings(facts)
    found: dict[str, tuple[Filter, ...]] = {}
    for node, seen in around.by_node.items() if around is not None else ():
        assert around is not None
        for variable in _VARIABLES:
            value = _value(seen, variable)
            # What is too short NCCL and torch do not heed.
            if value is None or len(value[0]) < 2 or filter_unresolved(job, variable):
                continue
            if any(item.variable == variable for item in filters(job, node)):
                continue
            text, file = value
            origin = file or f"in the environment {around.where}"
            item = Filter(variable, text, (), origin, certain=around.overlaid or bool(file))
            found[node] = (*found.get(node, ()), item)
    return found


def _value(seen: Environment, variable: str) -> tuple[str, str] | None:
    """The value as its reader finds it and the file it stands in: the environment first, then NCCL's files."""
    if variable in seen.variables:
        return seen.variables[variable], ""
    if variable in seen.digests:
        return None
    for file in seen.nccl_files if variable.startswith("NCCL_") else ():
        if variable in file.settings:
            return file.settings[variable], file.path
    return None
