"""The paths on the nodes that the job reads, and their state on each node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request, probe_name
from preflight_checks.probes.paths import PathState, path_state
from preflight_checks.probes.patterns import has_braces

#: Prefixes of data that is not on a node: object and web addresses, and commands that webdataset reads from.
_REMOTE_PREFIXES = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*://|pipe:|s3:|gs:|hdfs:)")
#: Prefixes of paths on a node; a published model is named `owner/name`.
_LOCAL_PREFIXES = re.compile(r"^(?:/|\./|\.\./|~/)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A path that the job reads, with its claims. `same_for_all`: it is the same for all ranks, not a node's own
    share."""

    path: str
    claims: tuple[Claim, ...]
    same_for_all: bool = False


def on_a_node(text: str) -> bool:
    """Whether a text may be a path on a node: no remote address, and no placeholder."""
    return bool(text) and not _REMOTE_PREFIXES.match(text) and ("{" not in text or has_braces(text))


def wanted_paths(job: Job) -> tuple[Wanted, ...]:
    """The paths to examine: known ones on the nodes, data first."""
    found: dict[str, list[Claim]] = {}
    for quantity in ("data_path", "input_file", "model_name"):
        for claim in job.about(quantity):
            for value in claim.alternatives:
                if not isinstance(value, str) or not on_a_node(value):
                    continue
                if quantity != "model_name" or _LOCAL_PREFIXES.match(value):
                    found.setdefault(value, []).append(claim)
    return tuple(
        Wanted(path, tuple(claims), all(claim.quantity != "data_path" for claim in claims))
        for path, claims in found.items()
    )


def plan_paths(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the state of every path from every node, in separate requests, because one of them may hang."""
    for item in wanted_paths(job):
        for node in fleet.reached:
            params = {"path": item.path}
            yield Request(probe_name(path_state), node.name, params, context=True, because=item.claims, required=True)


def states_of(facts: Facts, path: str) -> tuple[dict[str, PathState], dict[str, Unavailable]]:
    """The state of one path by node, and the reasons where it is unknown."""
    observed: dict[str, PathState] = {}
    missing: dict[str, Unavailable] = {}
    for seen in facts.each(path_state):
        if seen.params.get("path") != path:
            continue
        if isinstance(seen.fact, Unavailable):
            missing[seen.node] = seen.fact
        else:
            observed[seen.node] = seen.fact.value
    return observed, missing
