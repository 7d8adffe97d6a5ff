"""What is known of the environment on each node: in the ranks' context, and as a login without a terminal gets it.

Two observations are made by one probe. The one in the context is what ranks will see on nodes where the job's own
script runs. The bare one is what a node adds by itself: to a rank that a launcher starts over ssh, and where the
context is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.once import once
from preflight.recording import Facts, Fleet, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.context.environment_table import default_of
from preflight_checks.demands import fold, scopes
from preflight_checks.probes.environment import Environment, environment

#: These are compared without regard to the case of letters, as NCCL does.
_CASELESS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET")
_HIDDEN = "a value that is not shown"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable on one node: what it is compared by, how it is shown, and the file it comes from, if any."""

    key: str
    shown: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.shown} ({self.file})" if self.file else self.shown


#: A variable that nothing sets.
UNSET = Setting("", "not set")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environments that can be compared, where they were seen (in words), and the nodes of which nothing is known.

    `overlaid` says whether the job's own variables are part of them.
    """

    by_node: Mapping[str, Environment]
    where: str
    overlaid: bool


def requests(job: Job, fleet: Fleet, *, context: bool) -> Iterator[Request]:
    """One look at the environment of every node that answered; all checks ask it with the same parameters."""
    claims = tuple(claim for scope in scopes(job) for claim in job.environment(scope))
    hashed = sorted({claim.quantity.removeprefix("env.") for claim in claims})
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches)
    params = {"run_key": "", "hashed": hashed, "export_files": deepspeed}
    for node in fleet.reached:
        yield Request(probe_name(environment), node.name, params, context=context, because=tuple(dict.fromkeys(claims)))


def unseen_bare(facts: Facts, what: str) -> Iterator[Verdict]:
    """`unknown` for the nodes that did not tell what they give a process by themselves, each reason once."""
    reasons: dict[str, list[str]] = {}
    for seen in facts.each(environment):
        if not seen.asked.context and isinstance(seen.fact, Unavailable):
            reasons.setdefault(seen.fact.reason, []).append(seen.node)
    for reason, nodes in reasons.items():
        yield unknown(f"{what} on {fold(nodes)}", reason)


def bare(facts: Facts) -> dict[str, Environment]:
    """What each node gives a process by itself."""
    return _observed(facts, context=False)


def surroundings(facts: Facts) -> Surroundings | None:
    """The environments of the ranks; where fewer than two are known, what the nodes give by themselves."""
    inside = _observed(facts, context=True)
    if len(inside) > 1:
        return Surroundings(inside, "where the ranks run", overlaid=True)
    outside = bare(facts)
    return Surroundings(outside, "for a process started there", overlaid=False) if len(outside) > 1 else None


def _observed(facts: Facts, *, context: bool) -> dict[str, Environment]:
    return _by_context(facts)[context]


@once
def _by_context(facts: Facts) -> dict[bool, dict[str, Environment]]:
    found: dict[bool, dict[str, Environment]] = {True: {}, False: {}}
    for seen in facts.each(environment):
        if isinstance(seen.fact, Observed):
            found[seen.asked.context][seen.node] = seen.fact.value
    return found


def set_by_job(job: Job, *, known: bool = True) -> dict[str, tuple[Claim, ...]]:
    """The variables that the job's files set for its ranks, with the claims.

    With `known` without those whose value only run time can tell: `X=$X` leaves it to the node.
    """
    found: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        for claim in job.environment(scope):
            if known and isinstance(claim.value, Unresolved):
                continue
            name = claim.quantity.removeprefix("env.")
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), claim)))
    return found


def settings(seen: Environment) -> dict[str, Setting]:
    """Every variable as its reader will find it: the environment first, then NCCL's files, the first one winning."""
    found = {name: Setting(_key(name, value), value or "empty") for name, value in seen.variables.items()}
    found.update({name: Setting(f"#{digest}", _HIDDEN) for name, digest in seen.digests.items()})
    for file in seen.nccl_files:
        for name, value in file.settings.items():
            found.setdefault(name, Setting(_key(name, value), value or "empty", file.path))
    return found


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes that find the very same settings. Of a large fleet most do, so that each set is looked through once."""

    settings: Mapping[str, Setting]
    nodes: tuple[str, ...]


def alike(by_node: Mapping[str, Environment]) -> tuple[Alike, ...]:
    """The nodes grouped by what they find, in the order of their first nodes."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for node, seen in by_node.items():
        files = tuple((file.path, *file.settings.items()) for file in seen.nccl_files)
        groups.setdefault((*seen.variables.items(), None, *seen.digests.items(), None, *files), []).append(node)
    return tuple(Alike(settings(by_node[nodes[0]]), tuple(nodes)) for nodes in groups.values())


def setting(seen: Mapping[str, Setting], name: str) -> Setting:
    """What `name` is; a variable that is set to what its reader takes anyway counts as not set."""
    found = seen.get(name, UNSET)
    default = default_of(name)
    return Setting("", found.shown, found.file) if default is not None and found.key == f"={default}" else found


def _key(name: str, value: str) -> str:
    return f"={value.casefold() if name in _CASELESS else value}"
