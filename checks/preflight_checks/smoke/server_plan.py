"""The smoke run of a parameter-server job: one request for each of its servers and workers, in the job's own mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight.job import Claim, Job, alternatives
from preflight.lazy.dataclasses import dataclass
from preflight.ranks import SPARE
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import scopes
from preflight_checks.probes.environment import environment
from preflight_checks.probes.server_place import server_place
from preflight_checks.servers.server_layout import SERVER, WORKER, dealing, is_ps
from preflight_checks.smoke.drilled import with_drill
from preflight_checks.smoke.server_processes import Process, processes
from preflight_checks.smoke.smoke_plan import DEADLINE_S
from preflight_checks.smoke.smoke_plan import READS as READS_OF_RANKS
from preflight_checks.smoke.smoke_size import gpus_on
from reference_trainer.ps.server import server as run_server
from reference_trainer.ps.worker import worker as run_worker

#: What of the nodes has to be known to plan a run, and to judge it.
READS = (*READS_OF_RANKS, environment, server_place)
#: Steps of the exact phase and of training.
STEPS = 20
#: Local steps between two exchanges where a geo job does not say how many (Paddle's own default, geo_sgd_need_push_nums
#: of DistributeTranspilerConfig, Fluid 1.8).
GEO_STEPS = 100
#: What a job calls its mode, and which of ours that is. Half-asynchronous servers, and those of GPU boxes, apply what
#: comes as it comes.
MODES = {"sync": "sync", "async": "async", "half-async": "async", "gpubox": "async", "heter": "async", "geo": "geo"}


@dataclass(frozen=True, slots=True)
class Mode:
    """When the job's servers apply what workers push, and who says so."""

    name: str
    why: str
    geo_steps: int = 1
    staleness: int | None = None
    claims: tuple[Claim, ...] = ()


def no_servers(job: Job, fleet: Fleet) -> str:
    """Why there is no parameter-server smoke run for this job; empty when there is one."""
    if not is_ps(job):
        return "the job has no parameter servers"
    if not fleet.nodes:
        return "the job has no known nodes"
    return ""


def mode_of(job: Job, fleet: Fleet) -> Mode:
    """The mode that the user wished for, else the job's; synchronous, as frameworks do, where nothing says it."""
    wish, said = fleet.wish, _said_by(job)
    name = wish.mode or said.name
    why, claims = (f"{name}, as wished by --mode", ()) if wish.mode else (said.why, said.claims)
    if name == "ssp" and wish.staleness is not None:
        why += f", at most {wish.staleness} steps ahead"
    if name != "geo":
        return Mode(name, why, 1, wish.staleness if name == "ssp" else None, claims)
    if wish.geo_steps is not None:
        local = min(wish.geo_steps, STEPS)
        return Mode(name, f"geo with an exchange every {local} steps", local, None, claims)
    if said.name == "geo":
        return Mode(name, said.why, said.geo_steps, None, said.claims)
    return Mode(name, f"{why}, an exchange every {STEPS // 4} steps", STEPS // 4, None, claims)


def _said_by(job: Job) -> Mode:
    found = tuple(dict.fromkeys(claim for scope in scopes(job) for claim in job.about("ps_update_mode", scope)))
    strongest = max((claim.strength for claim in found), default=None)
    said = tuple(claim for claim in found if claim.strength is strongest)
    names = [MODES[str(value)] for claim in said for value in claim.alternatives if str(value) in MODES]
    if not names:
        return Mode("sync", "synchronous, since nothing says the mode", claims=said)
    name = Counter(names).most_common(1)[0][0]
    if name != "geo":
        return Mode(name, f"{name}, as the job", claims=said)
    steps = [value for claim in job.about("geo_steps") for value in alternatives(claim.value) if isinstance(value, int)]
    chosen = next((value for value in steps if value > 0), GEO_STEPS)
    # A run of a few steps must exchange more than once.
    local = min(chosen, STEPS // 4)
    why = f"geo with an exchange every {local} steps" + (f" (the job: {chosen})" if local != chosen else "")
    return Mode(name, why, local, None, (*said, *job.about("geo_steps")))


def plan_servers(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """One request for each server and worker, all of one group; servers first."""
    found = processes(job, fleet, facts) if not no_servers(job, fleet) else ""
    if not isinstance(found, str):
        mode = mode_of(job, fleet)
        requests = list(_requests(job, fleet, facts, found, mode))
        if has_spare(fleet, mode):
            requests = [replace(r, params={**r.params, "spares": 1}) for r in (*requests, _spare(fleet, requests))]
        yield from with_drill(
            requests, fleet.wish.drill, [*(process.kind for process in found), SPARE][: len(requests)]
        )


def has_spare(fleet: Fleet, mode: Mode) -> bool:
    """Whether a spare worker waits for a place: it was asked for, and servers do not wait for every worker."""
    return fleet.wish.backup and mode.name != "sync"


def _spare(fleet: Fleet, requests: Sequence[Request]) -> Request:
    """A worker without a place, on the node that has the fewest processes; of several on the last one."""
    busy = Counter(request.node for request in requests)
    node = min(reversed(fleet.nodes), key=lambda node: busy[node.name]).name
    like = next(request for request in reversed(requests) if request.probe == probe_name(run_worker))
    own = {"rank": len(requests), "index": 0, "spare": True, "role": WORKER, "worker_device": "cpu"}
    return replace(like, node=node, params={**like.params, **own})


def _requests(job: Job, fleet: Fleet, facts: Facts, found: tuple[Process, ...], mode: Mode) -> Iterator[Request]:
    policy, least = dealing(job)
    numbers: dict[str, list[int]] = {"server": [], "worker": []}
    for number, process in enumerate(found):
        numbers[process.kind].append(number)
    if has_spare(fleet, mode):
        numbers[SPARE] = [len(found)]
    for number, process in enumerate(found):
        params: dict[str, object] = {
            "rank": number,
            "role": process.role,
            "index": process.index,
            "servers": process.servers,
            "workers": process.workers,
            "server_endpoints": list(process.server_endpoints),
            "endpoint": process.endpoint,
            "numbers": numbers,
            **({"source": process.source} if process.source else {}),
            "mode": mode.name,
            "geo_steps": mode.geo_steps,
            **({"staleness": mode.staleness} if mode.staleness is not None else {}),
            "steps": STEPS,
            "policy": policy,
            "least_block": least,
            "server_device": "cpu",
            "worker_device": _device(process, found, facts),
        }
        yield Request(
            probe_name(run_server if process.kind == SERVER else run_worker),
            process.node.name,
            params,
            context=True,
            group=group_of(job),
            because=tuple(dict.fromkeys((*process.claims, *mode.claims))),
            required=True,
            deadline_s=DEADLINE_S,
        )


def group_of(job: Job) -> str:
    """The name of the run."""
    return f"smoke {job.name}"


def _device(process: Process, found: tuple[Process, ...], facts: Facts) -> str:
    """The GPU of a worker where its node has some that torch can use: one after the other for those of one node."""
    gpus = gpus_on(facts, process.node.name)
    if process.kind == SERVER or not gpus:
        return "cpu"
    beside = [other for other in found if other.kind != SERVER and other.node == process.node]
    return f"cuda:{next(i for i, other in enumerate(beside) if other is process) % gpus}"
