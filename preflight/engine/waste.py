"""The cost that a no-go avoided: the nodes of a job would have waited until its ranks gave up.

Faults count only if their rule or check states that all ranks would wait, only once however many there are, and only
with documented numbers: from the job's files, or from a default with its source. If a number is missing, no cost is
given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from preflight._util import toml
from preflight.model.findings import Finding, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Strength

#: Launchers whose agents use torch's rendezvous before any rank starts, and the name of that rendezvous in messages.
_ELASTIC = ("torchrun", "torch.distributed.launch", "accelerate")
#: In `--rdzv_conf`: how long a node waits for the others.
_CONF = {
    "static": re.compile(r"(?:^|,)\s*timeout=(\d{1,9})(?!\d)"),
    "": re.compile(r"(?:^|,)\s*join_timeout=(\d{1,9})(?!\d)"),
}


@dataclass(frozen=True, slots=True)
class AvoidedCost:
    """The cost of a run's faults: all nodes of a job wait until a timeout ends it, once.

    Args:
        findings: the ids of those that would have made all ranks wait.
        nodes: the number of waiting nodes.
        nodes_from: a description of the source of that number; likewise the other `_from` fields.
        timeout_s: seconds until a timeout would have ended it.
        timeout_from: the job's own setting, or the source of the default.
        node_hours: nodes times the timeout.
        gpus_per_node: GPUs of each node; null if unknown.
        gpus_from: their source.
        gpu_hours: the same with all GPUs; null if unknown.
        price_per_gpu_hour: in the user's currency; null if no price was given.
        cost: GPU-hours times the price.
        job: the job of these nodes; if there are several, the one with the highest cost.
    """

    findings: tuple[str, ...]
    nodes: int
    nodes_from: str
    timeout_s: int
    timeout_from: str
    node_hours: float
    gpus_per_node: int | None = None
    gpus_from: str = ""
    gpu_hours: float | None = None
    price_per_gpu_hour: float | None = None
    cost: float | None = None
    job: str = ""


class _Number(NamedTuple):
    value: int
    words: str


def avoided_cost(
    findings: Sequence[Finding], jobs: Sequence[Job], *, nodes: Sequence[str] = (), fail_on: Severity = Severity.ERROR
) -> AvoidedCost | None:
    """The cost that these findings avoided; None if there are none, no rank would wait, or a number is missing.

    Args:
        nodes: the run's nodes, which are the job's; if there are none, the files give the number.
    """
    waits = [finding for finding in findings if finding.waits_at and finding.severity.rank >= fail_on.rank]
    found = [_of_job(job, waits if len(jobs) == 1 else _about(job, waits), nodes) for job in jobs]
    return max((cost for cost in found if cost is not None), key=lambda cost: cost.node_hours, default=None)


def _about(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """The findings about this job: about one of its launches, or about one of its files."""
    launches, files = {launch.id for launch in job.launches}, {file.path for file in job.files}
    return [f for f in findings if f.subject in launches or any(place.path in files for place in f.locations[:1])]


def _of_job(job: Job, waits: Sequence[Finding], nodes: Sequence[str]) -> AvoidedCost | None:
    # A rank that does not complete the rendezvous waits nowhere else.
    first = [finding for finding in waits if finding.waits_at == "rendezvous"] or waits
    subjects = {finding.subject for finding in first}
    launches = [launch for launch in job.launches if launch.id in subjects] or job.launches
    for launch in launches if first else ():
        count = _Number(len(nodes), "nodes of this run") if nodes else _nodes(job, launch.scope)
        limit = _rendezvous(job, launch) if first[0].waits_at == "rendezvous" else _group(job, launch)
        if count is None or limit is None or count.value < 2:
            continue
        gpus = _gpus(job, launch)
        hours = count.value * limit.value / 3600
        return AvoidedCost(
            job=job.name,
            findings=tuple(dict.fromkeys(finding.id for finding in first)),
            nodes=count.value,
            nodes_from=count.words,
            timeout_s=limit.value,
            timeout_from=limit.words,
            node_hours=round(hours, 3),
            gpus_per_node=gpus.value if gpus else None,
            gpus_from=gpus.words if gpus else "",
            gpu_hours=round(hours * gpus.value, 3) if gpus else None,
        )
    return None


def with_price(found: AvoidedCost | None, price_per_gpu_hour: float | None) -> AvoidedCost | None:
    """The same with a cost, if there are GPUs and a price per GPU hour."""
    if found is None or price_per_gpu_hour is None or found.gpu_hours is None:
        return found
    cost = round(found.gpu_hours * price_per_gpu_hour, 2)
    return replace(found, price_per_gpu_hour=price_per_gpu_hour, cost=cost)


def _number(claims: Sequence[Claim]) -> _Number | None:
    """The smallest value of the claims, with its spelling; None if one of them is unknown."""
    values: list[tuple[int, Claim]] = []
    for claim in claims:
        if not isinstance(claim.value, Known) or not isinstance(claim.value.value, int) or claim.value.value < 1:
            return None
        values.append((int(claim.value.value), claim))
    if not values:
        return None
    value, claim = min(values, key=lambda pair: pair[0])
    return _Number(value, _claim_words(claim))


def _claim_words(claim: Claim) -> str:
    return f"`{claim.spelling}` ({claim.span.path}:{claim.span.line})"


def _nodes(job: Job, scope: Scope) -> _Number | None:
    """The number of nodes held: the allocation of the job takes precedence over the launcher's request."""
    return _number(job.setting("nodes", scope)) or _number(job.requiring("nodes", scope))


def _gpus(job: Job, launch: Launch) -> _Number | None:
    stated = _number(job.setting("gpus_per_node", launch.scope)) or _number(
        job.requiring("gpus_per_node", launch.scope)
    )
    if stated is not None:
        return stated
    ranks = _number(job.setting("processes_per_node", launch.scope))
    if ranks is None or _backend(job, launch) != "nccl":
        return None
    # NCCL uses one GPU per rank, and rejects two ranks on one.
    return _Number(ranks.value, f"one per rank, {ranks.words}")


def _backend(job: Job, launch: Launch) -> str:
    found = {
        claim.value.value
        for claim in (*job.setting("backend", launch.scope), *job.setting("backend"))
        if isinstance(claim.value, Known)
    }
    return str(found.pop()) if len(found) == 1 else ""


def _rendezvous(job: Job, launch: Launch) -> _Number | None:
    """The duration of the first wait: of a launcher's agents for each other, or of ranks for their group."""
    if launch.launcher not in _ELASTIC:
        return _group(job, launch)
    if any(Known(True) == claim.value for claim in job.setting("standalone", launch.scope)):
        return _default("rendezvous.dynamic")
    stated = job.setting("rendezvous_backend", launch.scope)
    if any(not isinstance(claim.value, Known) for claim in stated):
        return None
    kinds = {str(claim.value.value) for claim in stated if isinstance(claim.value, Known)} or {"static"}
    if len(kinds) > 1:
        return None
    kind = "static" if kinds == {"static"} else ""
    for claim in job.setting("rendezvous_conf", launch.scope):
        text = claim.value.value if isinstance(claim.value, Known) else None
        given = _CONF[kind].search(str(text)) if text else None
        if given:
            return _Number(int(given[1]), _claim_words(claim))
    return _default("rendezvous.static" if kind else "rendezvous.dynamic")


def _group(job: Job, launch: Launch) -> _Number | None:
    """How long ranks wait in their group, for each other or in a collective."""
    limits = job.setting("process_group_timeout_s", launch.scope) or job.setting("process_group_timeout_s")
    if any(claim.strength > Strength.DEFAULT for claim in limits):
        return _number(limits)
    if launch.launcher == "deepspeed":
        return _default("group.deepspeed")
    backend = _backend(job, launch)
    if f"group.{backend}" in DEFAULTS:
        return _default(f"group.{backend}")
    return None


def _default(key: str) -> _Number:
    row = DEFAULTS[key]
    return _Number(row.seconds, row.words)


class Default(NamedTuple):
    """How long ranks wait by default, as `waste.toml` describes it."""

    seconds: int
    words: str
    source: str


DEFAULTS = {key: Default(**row) for key, row in toml.beside(__file__, "waste.toml").items()}
