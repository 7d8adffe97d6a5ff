"""What a no-go saved: the nodes that a job would have kept waiting, for as long as its ranks wait before they give up.

Only faults count of which their rule or check says that everybody would wait, only once however many there are, and
only with numbers that somebody wrote down: the job's files, or a default with its source. Where one is missing nothing
is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight.job import Claim, Job, Known, Launch, Scope, Strength
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Finding, Severity
from preflight.timeouts import DEFAULTS

#: Launchers whose agents meet by torch's rendezvous before any rank starts, and what such a meeting is called there.
_ELASTIC = ("torchrun", "torch.distributed.launch", "accelerate")
#: Launchers of which it is known that their ranks are torch's.
_TORCH = (*_ELASTIC, "deepspeed", "llamafactory-cli", "composer", "fabric")
#: In `--rdzv_conf`: how long a node waits for the others.
_CONF = {"static": lazy_pattern(r"(?:^|,)\s*timeout=(\d+)"), "": lazy_pattern(r"(?:^|,)\s*join_timeout=(\d+)")}


@dataclass(frozen=True, slots=True)
class Saved:
    """What the faults of a run would have cost: all nodes of a job wait until a time-out ends it, once.

    Args:
        findings: the ids of those that would have let everybody wait.
        nodes: how many nodes would have waited.
        nodes_from: where that number comes from, in words; the other `_from` likewise.
        timeout_s: seconds until a time-out would have ended it.
        timeout_from: the job's own setting, or whose default.
        node_hours: nodes times the time-out.
        gpus_per_node: GPUs of each node; null where nothing says how many.
        gpus_from: who says so.
        gpu_hours: the same with all GPUs; null where nothing says how many there are.
        price_per_gpu_hour: in whatever the user counts in; null where no price was given.
        cost: GPU-hours times the price.
        job: whose nodes; of several jobs the one that would have wasted most.
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


@dataclass(frozen=True, slots=True)
class _Number:
    value: int
    words: str


def saved(
    findings: Sequence[Finding], jobs: Sequence[Job], *, nodes: Sequence[str] = (), fail_on: Severity = Severity.ERROR
) -> Saved | None:
    """What the no-go of these findings saved; None where there is none, nobody would wait, or a number is missing.

    Args:
        nodes: those that the run looked at, which are the job's; without any the files say how many.
    """
    waits = [finding for finding in findings if finding.waits_at and finding.severity.rank >= fail_on.rank]
    found = [_of_job(job, waits if len(jobs) == 1 else _about(job, waits), nodes) for job in jobs]
    return max((one for one in found if one is not None), key=lambda one: one.node_hours, default=None)


def _about(job: Job, findings: Sequence[Finding]) -> list[Finding]:
    """Those that speak of this job: of one of its launches, or of a file of it."""
    launches, files = {launch.id for launch in job.launches}, {file.path for file in job.files}
    return [f for f in findings if f.subject in launches or any(place.path in files for place in f.locations[:1])]


def _of_job(job: Job, waits: Sequence[Finding], nodes: Sequence[str]) -> Saved | None:
    # Who never gets past the rendezvous waits nowhere else.
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
        return Saved(
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


def priced(found: Saved | None, price_per_gpu_hour: float | None) -> Saved | None:
    """The same in money, where there are GPUs and a price of an hour of one."""
    if found is None or price_per_gpu_hour is None or found.gpu_hours is None:
        return found
    cost = round(found.gpu_hours * price_per_gpu_hour, 2)
    return replace(found, price_per_gpu_hour=price_per_gpu_hour, cost=cost)


def _number(claims: Sequence[Claim]) -> _Number | None:
    """The least that the claims come to, in their own spelling; None where one of them is left open."""
    values: list[tuple[int, Claim]] = []
    for claim in claims:
        if not isinstance(claim.value, Known) or not isinstance(claim.value.value, int) or claim.value.value < 1:
            return None
        values.append((int(claim.value.value), claim))
    if not values:
        return None
    value, claim = min(values, key=lambda pair: pair[0])
    return _Number(value, _words(claim))


def _words(claim: Claim) -> str:
    return f"`{claim.spelling}` ({claim.span.path}:{claim.span.line})"


def _nodes(job: Job, scope: Scope) -> _Number | None:
    """How many nodes are held: what the job is given before what a launcher asks for."""
    return _number(job.setting("nodes", scope)) or _number(job.requiring("nodes", scope))


def _gpus(job: Job, launch: Launch) -> _Number | None:
    said = _number(job.setting("gpus_per_node", launch.scope)) or _number(job.requiring("gpus_per_node", launch.scope))
    if said is not None:
        return said
    ranks = _number(job.setting("processes_per_node", launch.scope))
    if ranks is None or _backend(job, launch) != "nccl":
        return None
    # NCCL takes one GPU a rank, and refuses two ranks on one.
    return _Number(ranks.value, f"one a rank, {ranks.words}")


def _backend(job: Job, launch: Launch) -> str:
    found = {
        claim.value.value
        for claim in (*job.setting("backend", launch.scope), *job.setting("backend"))
        if isinstance(claim.value, Known)
    }
    return str(found.pop()) if len(found) == 1 else ""


def _rendezvous(job: Job, launch: Launch) -> _Number | None:
    """How long the first wait of all is: of a launcher's agents for each other, or of ranks for their group."""
    if launch.launcher not in _ELASTIC:
        return _group(job, launch)
    if any(Known(True) == claim.value for claim in job.setting("standalone", launch.scope)):
        return _default("rendezvous.dynamic")
    said = job.setting("rendezvous_backend", launch.scope)
    if any(not isinstance(claim.value, Known) for claim in said):
        return None
    kinds = {str(claim.value.value) for claim in said if isinstance(claim.value, Known)} or {"static"}
    if len(kinds) > 1:
        return None
    kind = "static" if kinds == {"static"} else ""
    for claim in job.setting("rendezvous_conf", launch.scope):
        text = claim.value.value if isinstance(claim.value, Known) else None
        given = _CONF[kind].search(str(text)) if text else None
        if given:
            return _Number(int(given[1]), _words(claim))
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
