"""The ranks of a smoke run (number per node, sharding, backend, framework), and the fault that a user injects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.agent import rank_events
from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import EventRecord, Facts, Fleet, InjectedFault, Observed
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict
from preflight_checks.host.processors import usable_cores
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.limits import limits
from preflight_checks.probes.packages import packages
from preflight_checks.requirements import asked_backend, backends, fold, known_int, nodes_share_machine, scopes

Judge = Callable[[Job, Fleet, Facts], Iterable[Verdict]]
#: The kinds of processes that take a fault without a target; the last process of the first kind that takes part.
_DEFAULT_TARGETS = ("rank", "worker", "server")
#: The default collective or step of the fault, in the phase with known results.
STEPS = {"rank": 5, "worker": 1, "server": 1}
#: Seconds of each injected delay.
DELAY_S = {"rank": 0.5, "worker": 0.2, "server": 0.2}


@dataclass(frozen=True, slots=True)
class AppliedFault:
    """An injected fault as recorded: its process, and its time in the run (`at_s`, None if it did not happen)."""

    fault: InjectedFault
    role: str
    index: int
    node: str
    key: str
    rank: int
    at_s: float | None

    @property
    def title(self) -> str:
        """`worker 1 on node-b`."""
        return f"{self.role} {self.index} on {self.node}"


def with_injected_fault(
    requests: Sequence[Request], fault: InjectedFault | None, roles: Sequence[str]
) -> Iterator[Request]:
    """Yield the requests of a run (with `roles`), with the fault injected into its target."""
    number = _target_index(fault, roles) if fault is not None else None
    for place, request in enumerate(requests):
        if fault is None or place != number:
            yield request
            continue
        role = roles[place]
        given = {
            "kind": fault.kind,
            "step": STEPS[role] if fault.step is None else fault.step,
            "seconds": DELAY_S[role],
        }
        yield replace(request, params={**request.params, "injected_fault": given})


def _target_index(fault: InjectedFault, roles: Sequence[str]) -> int | None:
    """Return the index of the request that the fault targets; None if the run has no such process."""
    role = fault.role or next((role for role in _DEFAULT_TARGETS if role in roles), "")
    places = [place for place, here in enumerate(roles) if here == role]
    index = len(places) - 1 if fault.index is None else fault.index
    return places[index] if 0 <= index < len(places) else None


def applied_fault(fleet: Fleet, facts: Facts) -> AppliedFault | None:
    """Return the injected fault as recorded; None if none was injected, or if it had no target."""
    fault = fleet.smoke_options.injected_fault
    if fault is None:
        return None
    for record in facts.records_of():
        params = record.request.params
        if record.request.group and "injected_fault" in params:
            role = str(params.get("role", "rank"))
            index = int(params["rank"]) if role == "rank" else int(params["index"])
            key = record.request.key
            at_s = min((event.at_s for event in facts.events() if _reports(event, key)), default=None)
            return AppliedFault(fault, role, index, record.request.node, key, int(params["rank"]), at_s)
    return None


def _reports(event: EventRecord, key: str) -> bool:
    return event.request_key == key and event.data.get("event") == rank_events.FAULT_INJECTED


def may_fail_by_injection(*kinds: str) -> Callable[[Judge], Judge]:
    """Make findings that these injected faults cause informational; for `kill`, `stop` and `delay`, only on the
    target's node.
    """

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            fault = fleet.smoke_options.injected_fault
            found = applied_fault(fleet, facts) if fault is not None and fault.kind in kinds else None
            for verdict in judge(job, fleet, facts):
                yield _as_expected(verdict, found) if found is not None and _is_caused_by(verdict, found) else verdict

        return judged

    return decorate


def _is_caused_by(verdict: Verdict, applied: AppliedFault) -> bool:
    if verdict.status is not Status.FAIL or applied.at_s is None:
        return False
    return applied.fault.kind in ("loss", "double", "flip") or applied.node in verdict.nodes


def _as_expected(verdict: Verdict, applied: AppliedFault) -> Verdict:
    message = f"as expected of the injected fault {applied.fault.option_text}: {verdict.message}"
    return replace(
        verdict,
        message=message,
        severity=Severity.INFO,
        remedy="No action is needed: this fault was injected on request.",
    )


#: From this ZeRO stage on, DeepSpeed shards the parameters over ranks, as FSDP does.
_SHARDING_STAGE = 3


def ranks_per_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, str, tuple[Claim, ...]]:
    """Return the number of ranks that the job starts, limited by the GPUs of every node (for Gloo jobs, by the cores).

    Returns the number, the reason, and the claims that give it. Without GPUs, a GPU job trains with one rank per node,
    because more would only take turns.
    """
    rank_count, claims = 1, ()  # type: int, tuple[Claim, ...]
    for scope in scopes(job):
        stated = known_int(job, "processes_per_node", scope)
        if stated is not None and stated > rank_count:
            rank_count, claims = stated, job.value_claims("processes_per_node", scope)
    least = min((gpus_on(facts, node.name) for node in fleet.nodes), default=0)
    if least and least < rank_count:
        return least, f"{least} ranks per node, one per GPU, instead of the job's {rank_count}", claims
    if least or rank_count == 1:
        return (
            rank_count,
            f"{rank_count} ranks per node, as the job starts them" if least else "one rank per node",
            claims,
        )
    if backends(job)[0] != {"gloo"}:
        return 1, "one rank per node, because at least one node has no usable GPU", claims
    return _ranks_on_processors(fleet, facts, rank_count, claims)


def _ranks_on_processors(
    fleet: Fleet, facts: Facts, rank_count: int, claims: tuple[Claim, ...]
) -> tuple[int, str, tuple[Claim, ...]]:
    cores = _min_cores(fleet, facts)
    if cores is None:
        return (
            1,
            f"one rank per node instead of the job's {rank_count}, because no node's usable cores are known",
            claims,
        )
    number = max(1, min(rank_count, cores))
    if number == rank_count:
        return number, f"{number} ranks per node, as the job starts them", claims
    ranks = "one rank" if number == 1 else f"{number} ranks"
    return number, f"{ranks} per node, one per usable core, instead of the job's {rank_count}", claims


def _min_cores(fleet: Fleet, facts: Facts) -> int | None:
    """Return the usable cores of the node with the fewest; nodes on one machine share its cores."""
    seen = [facts.of(limits, node.name) for node in fleet.nodes]
    known = [usable_cores(fact.value) for fact in seen if isinstance(fact, Observed)]
    cores = [int(count) for count in known if count]
    if not cores:
        return None
    return min(cores) // len(fleet.nodes) if nodes_share_machine(fleet) else min(cores)


def gpus_on(facts: Facts, node: str) -> int:
    """Return the number of working GPUs on `node` for which the ranks' framework was built (CUDA or ROCm)."""
    seen, installed = facts.of(gpus, node), facts.of(packages, node)
    if not isinstance(seen, Observed) or not isinstance(installed, Observed):
        return 0
    framework = installed.value.torch or installed.value.paddle
    if framework is None or not (framework.hip if seen.value.vendor == "amd" else framework.cuda):
        return 0
    return sum(not item.problem for item in seen.value.gpus)


def sharding_claims(job: Job) -> tuple[Claim, ...]:
    """Return the claims that shard the parameters over ranks (FSDP, ZeRO-3); empty if there are none."""
    claims: list[Claim] = []
    for scope in scopes(job):
        stage = known_int(job, "zero_stage", scope)
        if stage is not None and stage >= _SHARDING_STAGE:
            claims.extend(job.value_claims("zero_stage", scope))
        for quantity, sharding in (
            ("uses_fsdp", True),
            ("sharding_library", "fsdp"),
            ("distributed_type", "FSDP"),
            ("lightning_strategy", "fsdp"),
        ):
            if job.value(quantity, scope) == Known(sharding):
                claims.extend(job.value_claims(quantity, scope))
    return tuple(dict.fromkeys(claims))


#: The backends that the reference trainer runs over.
NCCL, GLOO, AUTO = "nccl", "gloo", "auto"


@dataclass(frozen=True, slots=True)
class Backend:
    """The backend with which every rank is started.

    Args:
        name: `nccl`, `gloo`, or `auto`: the ranks agree on one, because the facts about their GPUs are missing.
        why: the reason, for display.
        claims: the claims that request a backend or GPUs; empty if there are none.
        untested: why this backend is not the one that the job requests; empty if it is.
        by_option: whether the user chose it with `--smoke-backend`.
    """

    name: str = AUTO
    why: str = ""
    claims: tuple[Claim, ...] = ()
    untested: str = ""
    by_option: bool = False


def backend_of(job: Job, fleet: Fleet, facts: Facts, ranks: int) -> Backend:
    """Return the backend of all ranks: the user's choice, or else the job's, or else the one for which every node has
    GPUs.

    Args:
        ranks: the number of ranks per node.
    """
    asked_name, claims = asked_backend(job)
    chosen = fleet.smoke_options.backend
    if chosen:
        untested = (
            f"the job requests {title(asked_name)}, which was not tested" if asked_name and asked_name != chosen else ""
        )
        return Backend(chosen, f"{title(chosen)} as set by --smoke-backend", claims, untested, by_option=True)
    unknown = [node.name for node in fleet.nodes if not _are_known(facts, node.name)]
    usable = {node.name: gpus_on(facts, node.name) for node in fleet.nodes}
    if nodes_share_machine(fleet):
        ranks *= len(fleet.nodes)
    if asked_name == NCCL and nodes_share_machine(fleet) and 0 < min(usable.values(), default=0) < ranks:
        untested = (
            "the job requests NCCL, which was not tested: all nodes are this machine, which has "
            f"{min(usable.values())} usable GPUs for {ranks} ranks"
        )
        return Backend(GLOO, "Gloo, because all nodes are this machine", claims, untested)
    if asked_name:
        return Backend(asked_name, f"{title(asked_name)} as the job requests", claims)
    if unknown:
        return Backend(AUTO, f"NCCL if every rank has a GPU, which is unknown for {fold(unknown)}", claims)
    short = [node for node, count in usable.items() if count < ranks]
    if not short:
        return Backend(NCCL, "NCCL, because every rank has a GPU", claims)
    names = backends(job)[0] - {"ps"}
    untested = ""
    if len(short) < len(usable) and {NCCL, GLOO} <= names:
        untested = (
            f"the job uses NCCL or Gloo, but {fold(short)} {has_or_have(short)} too few GPUs for NCCL: if each rank "
            "chooses the backend by the GPUs that it finds, the ranks never connect"
        )
    elif names and not names & {NCCL, GLOO}:
        untested = f"the job's backend {fold(sorted(names))} was not tested"
    return Backend(GLOO, f"Gloo, because {fold(short)} {has_or_have(short)} too few GPUs for NCCL", claims, untested)


def nodes_without_gpus(fleet: Fleet, facts: Facts) -> Iterator[str]:
    """Yield the nodes that are known to have no GPU that the ranks' framework can use."""
    for node in fleet.nodes:
        if _are_known(facts, node.name) and not gpus_on(facts, node.name):
            yield node.name


def _are_known(facts: Facts, node: str) -> bool:
    return isinstance(facts.of(gpus, node), Observed) and isinstance(facts.of(packages, node), Observed)


def has_or_have(nodes: Sequence[str]) -> str:
    """Return `has` or `have`."""
    return "has" if len(nodes) == 1 else "have"


def title(name: str) -> str:
    """Return `NCCL` or `Gloo`."""
    return {NCCL: "NCCL", GLOO: "Gloo"}.get(name, name)


#: Launchers that start ranks of Paddle.
_LAUNCHERS = ("paddle.distributed.launch", "fleetrun")
#: Quantities that only Paddle scripts state.
_PADDLE_QUANTITIES = ("fleet_calls", "imports_fluid", "parallel_environment")
#: Modes of the reference trainer that Paddle's servers lack.
_REFERENCE_ONLY_MODES = ("ssp",)


@dataclass(frozen=True, slots=True)
class Framework:
    """The framework with which every process is started.

    Args:
        name: `paddle`; or empty for torch if the interpreter has it, otherwise paddle.
        untested: why it is not the one that the job trains with; empty if it is.
    """

    name: str = ""
    untested: str = ""


def framework_of(job: Job, fleet: Fleet, facts: Facts) -> Framework:
    """Return the framework of all processes: paddle if the job trains with it and any node has it."""
    options = fleet.smoke_options
    if not trains_with_paddle(job):
        return Framework()
    if options.mode in _REFERENCE_ONLY_MODES or options.backup:
        chosen = f"--mode {options.mode}" if options.mode in _REFERENCE_ONLY_MODES else "--backup"
        return Framework(
            "torch", f"the job trains with Paddle, which has no {chosen}: preflight's own servers ran in torch"
        )
    package_facts = {node.name: facts.of(packages, node.name) for node in fleet.nodes}
    known = {node: fact.value for node, fact in package_facts.items() if isinstance(fact, Observed)}
    if any(value.paddle is not None for value in known.values()):
        return Framework("paddle")
    if len(known) < len(package_facts) or not known:
        return Framework()
    return Framework(
        "", f"the job trains with Paddle, which is not installed on {fold(known)}: the run used torch instead"
    )


def trains_with_paddle(job: Job) -> bool:
    """Return whether a launcher or the script belongs to Paddle."""
    return any(launch.launcher in _LAUNCHERS for launch in job.launches) or any(True for _ in _paddle_claims(job))


def _paddle_claims(job: Job) -> Iterator[Claim]:
    for quantity in _PADDLE_QUANTITIES:
        yield from job.about(quantity)
    yield from (claim for claim in job.about("imported_framework") if "paddle" in claim.alternatives)
    yield from (claim for claim in job.about("ps_mode") if claim.source == "paddle")
