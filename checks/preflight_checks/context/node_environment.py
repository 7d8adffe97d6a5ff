"""The environment of each node, in the ranks' context and in a login without a terminal.

One probe makes two observations. The one in the context shows what ranks see on nodes where the job's own script runs.
The bare one shows what the node itself sets: for ranks that a launcher starts over ssh, and where the context is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight.model.job import Claim, Job, Unresolved
from preflight.model.recording import Facts, Observed, Unavailable
from preflight.plugins.authoring import Verdict, memoize, unknown
from preflight_checks.data_tables import default_of
from preflight_checks.plans import combined, on_every_node
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.requirements import fold, scopes

#: Compared without regard to case, as NCCL does.
_CASELESS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET")
_HIDDEN = "a value that is not shown"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable on one node: its value for comparison and for display, and the file it comes from, if any."""

    key: str
    shown: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.shown} ({self.file})" if self.file else self.shown


#: A variable that is not set.
UNSET = Setting("", "not set")


@dataclass(frozen=True, slots=True)
class ObservedEnvironments:
    """The environments that can be compared, and where they were observed, in words.

    `includes_job_variables`: they include the job's own variables.
    """

    by_node: Mapping[str, Environment]
    where: str
    includes_job_variables: bool


def _stated(job: Job) -> tuple[Claim, ...]:
    """The claims that set variables."""
    return tuple(dict.fromkeys(claim for scope in scopes(job) for claim in job.environment(scope)))


def _params(job: Job) -> dict[str, object]:
    """The parameters of the probe, the same for all checks."""
    hashed = sorted({claim.quantity.removeprefix("env.") for claim in _stated(job)})
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches)
    return {"run_key": "", "hashed": hashed, "export_files": deepspeed}


#: Request the environment of every node as ranks have it, as a login without a terminal has it, and both.
plan_ranks = on_every_node(environment, params=_params, because=_stated, context=True)
plan_logins = on_every_node(environment, params=_params, because=_stated)
plan_both = combined(plan_ranks, plan_logins)


def unseen_bare(facts: Facts, subject: str) -> Iterator[Verdict]:
    """One `unknown` for each reason why the bare environment of some nodes is missing, with their names."""
    reasons: dict[str, list[str]] = {}
    for seen in facts.each(environment):
        if not seen.asked.context and isinstance(seen.fact, Unavailable):
            reasons.setdefault(seen.fact.reason, []).append(seen.node)
    for reason, nodes in reasons.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason)


def bare(facts: Facts) -> dict[str, Environment]:
    """The bare environment of each node."""
    return _observed(facts, context=False)


def observed_environments(facts: Facts) -> ObservedEnvironments | None:
    """The environments of the ranks, or the bare ones if fewer than two of those are known."""
    inside = _observed(facts, context=True)
    if len(inside) > 1:
        return ObservedEnvironments(inside, "where the ranks run", includes_job_variables=True)
    outside = bare(facts)
    return (
        ObservedEnvironments(outside, "for a process started there", includes_job_variables=False)
        if len(outside) > 1
        else None
    )


def _observed(facts: Facts, *, context: bool) -> dict[str, Environment]:
    return _by_context(facts)[context]


@memoize
def _by_context(facts: Facts) -> dict[bool, dict[str, Environment]]:
    found: dict[bool, dict[str, Environment]] = {True: {}, False: {}}
    for seen in facts.each(environment):
        if isinstance(seen.fact, Observed):
            found[seen.asked.context][seen.node] = seen.fact.value
    return found


def set_by_job(job: Job, *, known: bool = True) -> dict[str, tuple[Claim, ...]]:
    """The variables that the job's files set for its ranks, with the claims.

    With `known`, without those whose value is only known at run time: `X=$X` leaves it to the node.
    """
    found: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        for claim in job.environment(scope):
            if known and isinstance(claim.value, Unresolved):
                continue
            name = claim.quantity.removeprefix("env.")
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), claim)))
    return found


def settings(environment: Environment) -> dict[str, Setting]:
    """Every variable as its reader finds it: the environment comes first, then NCCL's files in order."""
    found = {name: Setting(_key(name, value), value or "empty") for name, value in environment.variables.items()}
    found.update({name: Setting(f"#{digest}", _HIDDEN) for name, digest in environment.digests.items()})
    for file in environment.nccl_files:
        for name, value in file.settings.items():
            found.setdefault(name, Setting(_key(name, value), value or "empty", file.path))
    return found


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with identical settings. In a large fleet most are, so that each set is examined once."""

    settings: Mapping[str, Setting]
    nodes: tuple[str, ...]


def groups_of(by_node: Mapping[str, Environment]) -> tuple[NodeGroup, ...]:
    """The nodes grouped by their settings, in the order of their first nodes."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for node, seen in by_node.items():
        files = tuple((file.path, *file.settings.items()) for file in seen.nccl_files)
        groups.setdefault((*seen.variables.items(), None, *seen.digests.items(), None, *files), []).append(node)
    return tuple(NodeGroup(settings(by_node[nodes[0]]), tuple(nodes)) for nodes in groups.values())


def setting(seen: Mapping[str, Setting], name: str) -> Setting:
    """The setting of `name`; a variable set to its reader's default counts as not set."""
    found = seen.get(name, UNSET)
    default = default_of(name)
    return Setting("", found.shown, found.file) if default is not None and found.key == f"={default}" else found


def _key(name: str, value: str) -> str:
    return f"={value.casefold() if name in _CASELESS else value}"
