"""Which ranks a smoke run needs, and where they meet: planned from the job's claims and the facts so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from preflight.job import Claim, Job, Known
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet, Node, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import (
    MASTER_PORT,
    Endpoint,
    backends,
    is_loopback,
    owner,
    scopes,
    stand_ins,
    store_endpoints,
)
from preflight_checks.links.dialling import address_of
from preflight_checks.network.interface_filter import chosen
from preflight_checks.network.local_ports import free_on
from preflight_checks.probes.free_ports import free_ports
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.limits import limits
from preflight_checks.probes.names import resolve
from preflight_checks.probes.packages import packages
from preflight_checks.smoke.drilled import with_drill
from preflight_checks.smoke.pipeline_plan import PipelinePlan, pipeline_plan
from preflight_checks.smoke.smoke_size import ranks_per_node, sharding_claims
from reference_trainer.collective import rank as run_rank

#: What of the nodes has to be known to plan a run, and to judge it.
READS = (gpus, packages, limits, interfaces, resolve, free_ports)
#: Steps of exact and of DDP training; ten keep the comparison with one process within its tolerance.
STEPS = 10
#: The stage has a budget of its own; a rank must not outlive it.
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks meet and who says so.

    `source` says for people whether the endpoint is the job's own or a substitute, and for what. With `free` any port
    would do, and the next run takes another.
    """

    host: str
    port: int
    source: str
    claims: tuple[Claim, ...] = ()
    free: bool = False

    @property
    def spelling(self) -> str:
        """The endpoint as it is called in every run of the job alike."""
        return f"{self.host}, a free port" if self.free else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about the smoke run of a job.

    `reason` is why there is none; `sharding` holds the claims by which each rank has only a part of the model,
    `pipeline` how the ranks become stages of one.
    """

    ranks_per_node: int
    meeting: Meeting
    claims: tuple[Claim, ...]
    why_so_many: str
    reason: str = ""
    sharding: tuple[Claim, ...] = ()
    pipeline: PipelinePlan = field(default_factory=PipelinePlan)


def is_parameter_server(job: Job) -> bool:
    """Whether any launch of the job starts parameter servers."""
    return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job))


def not_planned(job: Job, fleet: Fleet) -> str:
    """Why no collective smoke run makes sense for this job; empty when one does."""
    if is_parameter_server(job):
        return "the job runs parameter servers, which have a run of their own"
    if not fleet.nodes:
        return "the job has no known nodes"
    return ""


def plan_of(job: Job, fleet: Fleet, facts: Facts) -> Plan:
    """How many ranks on each node, meeting where, because of which claims."""
    ranks, why, claims = ranks_per_node(job, fleet, facts)
    meeting = _meeting(job, fleet, facts)
    sharding = sharding_claims(job)
    pipeline = pipeline_plan(job, ranks * len(fleet.nodes))
    staged = () if pipeline.reason else pipeline.claims
    said = tuple(dict.fromkeys((*claims, *meeting.claims, *sharding, *staged)))
    return Plan(ranks, meeting, said, why, sharding=sharding, pipeline=pipeline)


def plan_smoke(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """One request a rank, all of one group, on every node of the job: a smaller world would be another job."""
    if not_planned(job, fleet):
        return
    plan = plan_of(job, fleet, facts)
    ranks = list(
        ranks_of(job, fleet, facts, fleet.nodes, f"smoke {job.name}", plan, {"steps": STEPS, **plan.pipeline.params})
    )
    yield from with_drill(ranks, fleet.wish.drill, ["rank"] * len(ranks))


def ranks_of(
    job: Job,
    fleet: Fleet,
    facts: Facts,
    nodes: Sequence[Node],
    group: str,
    plan: Plan,
    more: Mapping[str, object],
    deadline_s: float = DEADLINE_S,
) -> Iterator[Request]:
    """The ranks of one group on these nodes, meeting where `plan` says."""
    world_size = plan.ranks_per_node * len(nodes)
    together = stand_ins(fleet)
    for index, node in enumerate(nodes):
        for local_rank in range(plan.ranks_per_node):
            params: dict[str, object] = {
                "rank": index * plan.ranks_per_node + local_rank,
                "world_size": world_size,
                "local_rank": local_rank,
                "local_world_size": plan.ranks_per_node,
                "master_addr": plan.meeting.host,
                "master_port": plan.meeting.port,
                "backend": "auto",
                **({"sharding": True} if plan.sharding else {}),
                **more,
            }
            interface = "lo" if together else _interface(job, node, facts)
            if interface:
                params["interface"] = interface
            if together:
                params["force_interface"] = True
                params["local_world_size"] = world_size
                params["local_rank"] = params["rank"]
            yield Request(
                probe_name(run_rank),
                node.name,
                params,
                context=True,
                group=group,
                because=plan.claims,
                required=True,
                deadline_s=deadline_s,
            )


def _meeting(job: Job, fleet: Fleet, facts: Facts) -> Meeting:
    """The job's own endpoint where its files spell it; else the node of rank 0 and the port they would use."""
    master = fleet.nodes[0]
    endpoint = _endpoint(job)
    claims = endpoint.claims if endpoint is not None else ()
    port, port_source, free = _port(job, fleet, facts, endpoint)
    if stand_ins(fleet):
        return Meeting(
            "127.0.0.1", port, f"loopback, since all nodes are this machine, and {port_source}", claims, free
        )
    if endpoint is not None and endpoint.host:
        at = owner(fleet, endpoint)
        if len(fleet.nodes) == 1 or not is_loopback(endpoint.host):
            if at is None or at.name == master.name:
                return Meeting(endpoint.host, port, f"{endpoint.what} as the job spells it", claims, free)
            substitute = f"the job's {endpoint.host} is {at.name}, which does not run rank 0 here"
            return Meeting(address_of(job, master, facts), port, f"{substitute}; rank 0's node instead", claims, free)
    source = f"the address of rank 0's node and {port_source}"
    return Meeting(address_of(job, master, facts), port, source, claims, free)


def _port(job: Job, fleet: Fleet, facts: Facts, endpoint: Endpoint | None) -> tuple[int, str, bool]:
    """The port that the files name; else one that is free where one machine plays all nodes; else the default."""
    given = endpoint.port if endpoint is not None else 0
    named = endpoint is not None and endpoint.named
    free = free_on(job, fleet, facts) if not (given and named) else ()
    if free:
        return free[0], "a port that is free there", True
    return (given, "the job's port", False) if given else (MASTER_PORT, "torch's default port", False)


def _endpoint(job: Job) -> Endpoint | None:
    found = store_endpoints(job)
    return found[0] if found else None


def _interface(job: Job, node: Node, facts: Facts) -> str:
    """The interface for a rank on `node` where the job's own filters do not reach the smoke run's back end.

    A job for NCCL says nothing to Gloo, which runs in its stead on nodes without GPUs. A Gloo job without a filter
    gets none: what its ranks would do is what is to be seen.
    """
    seen = facts.of(interfaces, node.name)
    have: tuple[Interface, ...] = tuple(seen.value.interfaces) if isinstance(seen, Observed) else ()
    choice = chosen(job, node.name, have)
    if choice is not None:
        return choice.interface.name
    names, _ = backends(job)
    if "gloo" in names or not names:
        return ""
    address = address_of(job, node, facts)
    return next((i.name for i in have if any(a.address == address for a in i.addresses)), "")
