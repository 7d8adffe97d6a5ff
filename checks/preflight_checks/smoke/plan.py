"""Plans the training run of a job in collective mode, and reads its result."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from preflight._util.hostnames import is_loopback
from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, decision_time, find_culprit
from preflight.analysis.rank_state import Member, build_views, find_member_outside_framework, members_of, own_frames
from preflight.model.findings import Evidence
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import EventRecord, FactRecord, FactRow, Facts, Fleet, Node, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, not_applicable, unknown
from preflight_checks.links.dial_requests import address_of
from preflight_checks.network.interface_filter import chosen
from preflight_checks.network.kernel_network import free_ports_of
from preflight_checks.plans import requests_for
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.limits import limits
from preflight_checks.probes.names import resolve
from preflight_checks.probes.packages import packages
from preflight_checks.probes.ports import free_ports
from preflight_checks.requirements import (
    MASTER_PORT,
    Endpoint,
    backends,
    fold,
    known_int,
    nodes_share_machine,
    owner,
    scopes,
    store_endpoints,
)
from preflight_checks.smoke.ranks import (
    NCCL,
    Backend,
    backend_of,
    framework_of,
    ranks_per_node,
    sharding_claims,
    with_injected_fault,
)
from reference_trainer.collective.rank import RankReport
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.pipeline.stage import MAX_MICROBATCHES, ONE_F_ONE_B, pipeline_problem

#: Quantities that state the microbatches per step, of Fleet and of DeepSpeed's pipeline engine.
_MICROBATCHES = ("pipeline_micro_batches", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages and microbatches of the pipeline, or the reason for none. The schedule is 1F1B, as in Megatron-LM."""

    stages: int = 0
    microbatches: int = MAX_MICROBATCHES
    claims: tuple[Claim, ...] = ()
    reason: str = "no pipeline is planned"
    schedule: str = ONE_F_ONE_B

    @property
    def params(self) -> dict[str, object]:
        """The parameters of each rank; empty without a pipeline."""
        if self.reason:
            return {}
        return {"pipeline": {"stages": self.stages, "microbatches": self.microbatches, "schedule": self.schedule}}


def pipeline_plan(job: Job, world_size: int) -> PipelinePlan:
    """Return the pipeline of the launch with the most stages, if the ranks divide into that many stages."""
    stages, at = max(((known_int(job, "pipeline_parallel_size", s) or 1, -i) for i, s in enumerate(scopes(job))))
    if stages < 2:
        return PipelinePlan(reason="the job has no pipeline of known size")
    scope = scopes(job)[-at]
    claims = job.value_claims("pipeline_parallel_size", scope)
    microbatches = MAX_MICROBATCHES
    for quantity in _MICROBATCHES:
        stated = known_int(job, quantity, scope)
        if stated is not None and stated > 1:
            microbatches = min(stated, MAX_MICROBATCHES)
            claims = (*claims, *job.value_claims(quantity, scope))
            break
    reason = pipeline_problem(world_size, stages, microbatches, ONE_F_ONE_B)
    return PipelinePlan(stages, microbatches, claims, reason)


#: The probes whose facts are needed to plan and judge a run.
PLAN_PROBES = (gpus, packages, limits, interfaces, resolve, free_ports)
#: Steps of exact and of DDP training; ten keep the comparison with one process within its tolerance.
STEPS = 10
#: The deadline of a rank, within the budget of the stage.
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The rendezvous of the ranks, and its source; with `any_port`, each run chooses a free port."""

    host: str
    port: int
    source: str
    claims: tuple[Claim, ...] = ()
    any_port: bool = False

    @property
    def spelling(self) -> str:
        """Return the endpoint for display: the same in every run, so a free port appears without its number."""
        return f"{self.host}, a free port" if self.any_port else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of the smoke run of a job.

    `reason` is why the job has no smoke run. `sharding` contains the claims that shard the model over ranks, `pipeline`
    the plan of pipeline stages, `backend` the backend of all ranks.
    """

    ranks_per_node: int
    meeting: MeetingPoint
    claims: tuple[Claim, ...]
    ranks_reason: str
    reason: str = ""
    sharding: tuple[Claim, ...] = ()
    pipeline: PipelinePlan = field(default_factory=PipelinePlan)
    backend: Backend = field(default_factory=Backend)


def not_planned(job: Job, fleet: Fleet) -> str:
    """Return why no collective smoke run is possible for this job; empty if one is."""
    if any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)):
        return "the job runs parameter servers, which have a separate run"
    if not fleet.nodes:
        return "the job has no known nodes"
    return ""


def plan_of(job: Job, fleet: Fleet, facts: Facts) -> Plan:
    """Return the number of ranks per node, their rendezvous, and the claims for both."""
    ranks, reason, claims = ranks_per_node(job, fleet, facts)
    meeting = _meeting_point(job, fleet, facts)
    sharding = sharding_claims(job)
    pipeline = pipeline_plan(job, ranks * len(fleet.nodes))
    staged = () if pipeline.reason else pipeline.claims
    backend = backend_of(job, fleet, facts, ranks)
    claims_used = tuple(dict.fromkeys((*claims, *meeting.claims, *sharding, *staged, *backend.claims)))
    return Plan(ranks, meeting, claims_used, reason, sharding=sharding, pipeline=pipeline, backend=backend)


@requests_for(run_rank)
def plan_smoke(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Yield one request per rank, in one group, on every node of the job: a smaller world would be a different job."""
    if not_planned(job, fleet):
        return
    plan = plan_of(job, fleet, facts)
    ranks = list(
        ranks_of(job, fleet, facts, fleet.nodes, f"smoke {job.name}", plan, {"steps": STEPS, **plan.pipeline.params})
    )
    yield from with_injected_fault(ranks, fleet.smoke_options.injected_fault, ["rank"] * len(ranks))


#: A check of the collective smoke run.
smoke_check = functools.partial(check, plan=plan_smoke, when="smoke")


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
    """Yield the requests for the ranks of one group on these nodes."""
    world_size = plan.ranks_per_node * len(nodes)
    framework = framework_of(job, fleet, facts).name
    together = nodes_share_machine(fleet)
    for index, node in enumerate(nodes):
        for local_rank in range(plan.ranks_per_node):
            params: dict[str, object] = {
                "rank": index * plan.ranks_per_node + local_rank,
                "world_size": world_size,
                "local_rank": local_rank,
                "local_world_size": plan.ranks_per_node,
                "master_addr": plan.meeting.host,
                "master_port": plan.meeting.port,
                "backend": plan.backend.name,
                **({"framework": framework} if framework else {}),
                **({"sharding": True} if plan.sharding else {}),
                **more,
            }
            interface, filtered = ("lo", False) if together else _interface(job, node, facts, plan.backend)
            if interface:
                params["interface"] = interface
            if filtered:
                params["filtered"] = True
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


def _meeting_point(job: Job, fleet: Fleet, facts: Facts) -> MeetingPoint:
    """Return the job's own endpoint if its files name it, or else the node of rank 0 and the default port."""
    master = fleet.nodes[0]
    endpoint = _endpoint(job)
    claims = endpoint.claims if endpoint is not None else ()
    port, port_source, free = _port(job, fleet, facts, endpoint)
    if nodes_share_machine(fleet):
        return MeetingPoint(
            "127.0.0.1", port, f"loopback, because all nodes are this machine, and {port_source}", claims, free
        )
    if endpoint is not None and endpoint.host:
        at = owner(fleet, endpoint)
        if len(fleet.nodes) == 1 or not is_loopback(endpoint.host):
            if at is None or at.name == master.name:
                return MeetingPoint(endpoint.host, port, f"{endpoint.what} as written in the job", claims, free)
            substitute = f"the job's {endpoint.host} is {at.name}, which does not run rank 0"
            return MeetingPoint(
                address_of(job, master, facts), port, f"{substitute}, so rank 0's node is used", claims, free
            )
    source = f"the address of rank 0's node and {port_source}"
    return MeetingPoint(address_of(job, master, facts), port, source, claims, free)


def _port(job: Job, fleet: Fleet, facts: Facts, endpoint: Endpoint | None) -> tuple[int, str, bool]:
    """Return the port that the files name, or else a free port if all nodes are one machine, or else the default
    port.
    """
    given = endpoint.port if endpoint is not None else 0
    named = endpoint is not None and endpoint.named
    free = free_ports_of(job, fleet, facts) if not (given and named) else ()
    if free:
        return free[0], "a free port there", True
    return (given, "the job's port", False) if given else (MASTER_PORT, "torch's default port", False)


def _endpoint(job: Job) -> Endpoint | None:
    found = store_endpoints(job)
    return found[0] if found else None


def _interface(job: Job, node: Node, facts: Facts, backend: Backend) -> tuple[str, bool]:
    """Return the interface for a rank on `node` if the job's filters do not apply to the smoke run's backend, and
    whether a filter of the job selects it.

    The filters of an NCCL job do not apply to Gloo if that replaces NCCL. A job without a filter gets no interface for
    its own backend, and NCCL never gets one that no filter selects, so that their real behaviour is tested.
    """
    seen = facts.of(interfaces, node.name)
    observed: tuple[Interface, ...] = tuple(seen.value.interfaces) if isinstance(seen, Observed) else ()
    choice = chosen(job, node.name, observed)
    if choice is not None:
        return choice.interface.name, True
    names, _ = backends(job)
    if backend.name in names or backend.name == NCCL or not names:
        return "", False
    address = address_of(job, node, facts)
    return next((i.name for i in observed if any(a.address == address for a in i.addresses)), ""), False


_LAST_LINES = 6
_FRAMES = 8


@dataclass(frozen=True)
class GroupRun:
    """The recorded run of one group."""

    records: tuple[FactRecord, ...]
    events: tuple[EventRecord, ...]
    culprit: Culprit | None
    claims: tuple[Claim, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that were to be started."""
        return members_of([record.request for record in self.records])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to name: the culprit's and those with the same fault; all nodes if there is no culprit."""
        by_rank = {member.rank: member.node for member in self.members}
        if self.culprit is None or self.culprit.rank is None:
            return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))
        also = [by_rank[rank] for rank in self.culprit.also if rank in by_rank]
        return tuple(dict.fromkeys((self.culprit.node, *also)))


def group_run_of(facts: Facts, group: str) -> GroupRun:
    """Return the recorded run of this group, with its culprit if it failed."""
    records = tuple(facts.records_of(group=group))
    keys = {record.request.key for record in records}
    events = tuple(event for event in facts.events() if event.request_key in keys)
    culprit = None
    if records and any(record.unavailable is not None for record in records):
        members = members_of([record.request for record in records])
        began_s = min(record.started_s for record in records)
        culprit = find_culprit(members, events, records, now_s=decision_time(events, records), began_s=began_s)
        if culprit is not None and culprit.rank is None:
            # The stacks were taken after the decision, as its evidence.
            culprit = (
                find_member_outside_framework(build_views(members, events, records, began_s=began_s), culprit)
                or culprit
            )
    claims = tuple(dict.fromkeys(claim for record in records for claim in record.request.because))
    return GroupRun(records, events, culprit, claims)


def observed_state(culprit: Culprit) -> str:
    """Return a short description of the observed state of the culprit."""
    phase = f"after phase {culprit.phase}" if culprit.phase else "before its first phase"
    return f"{culprit.kind} {phase}, during {culprit.doing}" if culprit.doing else f"{culprit.kind} {phase}"


def details(run: GroupRun, culprit: Culprit, fact: str) -> Iterator[Evidence]:
    """Yield the culprit's stack, or else its last output; without a culprit, the stack of the first member."""
    wanted = culprit.rank if culprit.rank is not None else min(member.rank for member in run.members)
    view = build_views(run.members, run.events, run.records, began_s=0.0)[wanted]
    if view.stacks.strip():
        yield Evidence(fact, "stack: " + stack_of(view.stacks), node=view.node, at_s=culprit.since_s)
        return
    for record in run.records:
        problem = record.unavailable
        if record.request.key == culprit.key and problem is not None and problem.detail.strip():
            lines = [line.strip() for line in problem.detail.splitlines() if line.strip()]
            words = " | ".join(lines[-_LAST_LINES:])
            yield Evidence(fact, "last output: " + words, node=culprit.node, at_s=record.finished_s)


#: Exit codes of a process that was killed: by Python's count, and by that of shells and containers.
_KILLED = (-9, 137)


def remedy_for_dead(run: GroupRun, culprit: Culprit) -> str:
    """Return the remedy for a process that ended on its own; only SIGKILL points to a lack of memory."""
    ended = next((record.unavailable for record in run.records if record.request.key == culprit.key), None)
    if ended is not None and ended.exit_code in _KILLED:
        return (
            f"Check {culprit.node}: SIGKILL usually comes from the out-of-memory killer (dmesg), or from the "
            "scheduler's memory limit."
        )
    if ended is not None and ended.exit_code is None and not ended.detail.strip():
        return f"Check {culprit.node}: the error that its process reported shows why it ended."
    if ended is not None and not ended.detail.strip():
        return f"Check {culprit.node}: the process printed nothing before it ended; run it there manually."
    return f"Check {culprit.node}: the process's last output, in the evidence, shows why it ended."


def stack_of(text: str) -> str:
    """Return the innermost frames of the member's own thread, innermost first, from faulthandler's dump."""
    frames = own_frames(text)
    if not frames:
        return " | ".join(line.strip() for line in text.splitlines()[:_LAST_LINES] if line.strip())
    return " < ".join(frame.text for frame in frames[:_FRAMES])


FACT = probe_name(run_rank)


@dataclass(frozen=True)
class SmokeRun(GroupRun):
    """The recorded collective smoke run of one job."""

    seen: tuple[FactRow[RankReport], ...]

    @property
    def reports(self) -> tuple[tuple[str, RankReport], ...]:
        """Node and report of each rank that completed."""
        return tuple((s.node, s.fact.value) for s in self.seen if isinstance(s.fact, Observed))

    @property
    def complete(self) -> bool:
        """Return whether every rank completed."""
        return bool(self.seen) and len(self.reports) == len(self.seen)


def run_of(job: Job, facts: Facts) -> SmokeRun:
    """Return the smoke run of `job`, with its culprit if it failed."""
    group = f"smoke {job.name}"
    seen = tuple(s for s in facts.each(run_rank) if s.asked.group == group)
    run = group_run_of(facts, group)
    return SmokeRun(run.records, run.events, run.culprit, run.claims, seen)


def missing_run_verdict(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """Return the verdict if there was no smoke run; None if there was one."""
    reason = not_planned(job, fleet)
    if reason:
        return not_applicable("smoke run", reason)
    if not run.records:
        return unknown("smoke run", "it was not run", required=True)
    if obstacles(run):
        return unknown("smoke run", "blocked by SMK008: the backend cannot be used")
    return none_started_verdict("smoke run", "rank", run)


def none_started_verdict(subject: str, kind: str, run: GroupRun) -> Verdict | None:
    """Return the verdict if no process of a run could start; None if any did. `kind` is `rank` or `process`."""
    kinds = {r.unavailable.kind if r.unavailable is not None else "" for r in run.records}
    if not kinds <= {"context", "missing"}:
        return None
    reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
    nodes = dict.fromkeys(r.request.node for r in run.records)
    text = f"no {kind} could start on {fold(nodes)}: {fold(reasons, 3)}"
    return unknown(subject, text, nodes=nodes, required=True)


def obstacles(run: GroupRun) -> dict[str, str]:
    """Return the nodes on which a rank cannot use the requested backend, with its reason."""
    nodes = {record.request.key: record.request.node for record in run.records}
    return {
        nodes[event.request_key]: str(event.data.get("error", ""))
        for event in sorted(run.events, key=lambda event: (str(nodes[event.request_key]), event.at_s))
        if event.data.get("event") == rank_events.PROBLEM and event.data.get("problem") == rank_events.NO_DEVICE
    }


def incomplete_run_verdict(job: Job, fleet: Fleet, run: SmokeRun) -> Verdict | None:
    """Return the verdict of result checks if some ranks have no result; None if all have a result."""
    early = missing_run_verdict(job, fleet, run)
    if early is not None and not early.required:
        return early
    if early is not None or not run.reports:
        return unknown("smoke run", "blocked by SMK001: no rank completed")
    return None


def complete_run(job: Job, fleet: Fleet, facts: Facts) -> Generator[Verdict, None, SmokeRun | None]:
    """Return the run of the job if ranks have results; otherwise yield the reason and return None.

    run = yield from complete_run(job, fleet, facts)
    if run is None:
        return
    """
    run = run_of(job, facts)
    early = incomplete_run_verdict(job, fleet, run)
    if early is None:
        return run
    yield early
    return None


def count(ranks: int) -> str:
    """Return `1 rank` or `4 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def numbered_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 3, 4`."""
    return ("rank " if len(ranks) == 1 else "ranks ") + fold([str(rank) for rank in ranks])
