"""Interface filters that come from a node's environment or /etc/nccl.conf instead of the job's files."""

from __future__ import annotations

from preflight.model.job import Job
from preflight.model.recording import Facts
from preflight.plugins.memo import memoize
from preflight_checks.context.node_environment import observed_environments
from preflight_checks.probes.environment import Environment
from preflight_checks.requirements.filters import Filter, filter_unresolved, filters

_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@memoize
def environment_filters(job: Job, facts: Facts) -> dict[str, tuple[Filter, ...]]:
    """The filters that each node sets itself, for variables that the job's files do not set.

    They are certain if they were read in the ranks' context or from NCCL's files.
    """
    around = observed_environments(facts)
    found: dict[str, tuple[Filter, ...]] = {}
    for node, seen in around.by_node.items() if around is not None else ():
        assert around is not None
        for variable in _VARIABLES:
            value = _value(seen, variable)
            # NCCL and torch ignore values of one character.
            if value is None or len(value[0]) < 2 or filter_unresolved(job, variable):
                continue
            if any(item.variable == variable for item in filters(job, node)):
                continue
            text, file = value
            origin = file or f"in the environment {around.where}"
            item = Filter(variable, text, (), origin, certain=around.includes_job_variables or bool(file))
            found[node] = (*found.get(node, ()), item)
    return found


def _value(seen: Environment, variable: str) -> tuple[str, str] | None:
    """The value as its reader finds it, and its file: the environment comes first, then NCCL's files."""
    if variable in seen.variables:
        return seen.variables[variable], ""
    if variable in seen.digests:
        return None
    for file in seen.nccl_files if variable.startswith("NCCL_") else ():
        if variable in file.settings:
            return file.settings[variable], file.path
    return None
