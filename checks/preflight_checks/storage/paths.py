"""Which paths of the nodes the job reads, and what was seen of each of them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.recording import Facts, Fleet, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.probes.paths import PathState, path_state
from preflight_checks.probes.patterns import has_braces

#: Not on any node: addresses of objects and sites, and commands that webdataset reads from.
_ELSEWHERE = lazy_pattern(r"^(?:[A-Za-z][A-Za-z0-9+.-]*://|pipe:|s3:|gs:|hdfs:)")
#: A published model is named `owner/name`; a path on a node begins like one.
_ON_A_NODE = lazy_pattern(r"^(?:/|\./|\.\./|~/)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A path the job reads, and who says so. `alike`: it is one for all ranks, never a node's own share of the data."""

    path: str
    claims: tuple[Claim, ...]
    alike: bool = False


def on_a_node(text: str) -> bool:
    """Whether a text may be a path of a node: no address elsewhere, and no blank for somebody to fill in."""
    return bool(text) and not _ELSEWHERE.match(text) and ("{" not in text or has_braces(text))


def wanted_paths(job: Job) -> tuple[Wanted, ...]:
    """The paths to look at: known ones that name files of the nodes, data first."""
    found: dict[str, list[Claim]] = {}
    for quantity in ("data_path", "input_file", "model_name"):
        for claim in job.about(quantity):
            for value in claim.alternatives:
                if not isinstance(value, str) or not on_a_node(value):
                    continue
                if quantity != "model_name" or _ON_A_NODE.match(value):
                    found.setdefault(value, []).append(claim)
    return tuple(
        Wanted(path, tuple(claims), all(claim.quantity != "data_path" for claim in claims))
        for path, claims in found.items()
    )


def plan_paths(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Ask every node about every path, each in a request of its own: one of them may hang."""
    for item in wanted_paths(job):
        for node in fleet.reached:
            params = {"path": item.path}
            yield Request(probe_name(path_state), node.name, params, context=True, because=item.claims, required=True)


def states_of(facts: Facts, path: str) -> tuple[dict[str, PathState], dict[str, Unavailable]]:
    """What was seen of one path by node, and why nothing was seen."""
    have: dict[str, PathState] = {}
    missing: dict[str, Unavailable] = {}
    for seen in facts.each(path_state):
        if seen.params.get("path") != path:
            continue
        if isinstance(seen.fact, Unavailable):
            missing[seen.node] = seen.fact
        else:
            have[seen.node] = seen.fact.value
    return have, missing
