"""How many ranks of a smoke run each node gets, and how they share their model: as the job says, as far as it goes."""

from __future__ import annotations

from preflight.job import Claim, Job, Known
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import backends, deciding, known_int, scopes, stand_ins
from preflight_checks.host.processors import usable_cores
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.limits import limits
from preflight_checks.probes.packages import packages

#: From this stage on DeepSpeed keeps only a part of the parameters on each rank, as FSDP does.
_SHARDING_STAGE = 3


def ranks_per_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, str, tuple[Claim, ...]]:
    """As many as the job starts, as far as every node has GPUs for them; a job for Gloo alone, cores.

    Returns the number, why it is that, and the claims that say so. A job for GPUs trains with one rank a node where
    there are none: more of them would only take turns.
    """
    wanted, claims = 1, ()  # type: int, tuple[Claim, ...]
    for scope in scopes(job):
        said = known_int(job, "processes_per_node", scope)
        if said is not None and said > wanted:
            wanted, claims = said, deciding(job, "processes_per_node", scope)
    least = min((gpus_on(facts, node.name) for node in fleet.nodes), default=0)
    if least and least < wanted:
        return least, f"{least} ranks a node, one a GPU, instead of the job's {wanted}", claims
    if least or wanted == 1:
        return wanted, f"{wanted} ranks a node, as the job starts them" if least else "one rank a node", claims
    if backends(job)[0] != {"gloo"}:
        return 1, "one rank a node, because no GPU can be used on some node", claims
    return _on_processors(fleet, facts, wanted, claims)


def _on_processors(
    fleet: Fleet, facts: Facts, wanted: int, claims: tuple[Claim, ...]
) -> tuple[int, str, tuple[Claim, ...]]:
    cores = _least_cores(fleet, facts)
    if cores is None:
        return 1, f"one rank a node instead of the job's {wanted}, because no node's usable cores are known", claims
    number = max(1, min(wanted, cores))
    if number == wanted:
        return number, f"{number} ranks a node, as the job starts them", claims
    ranks = "one rank" if number == 1 else f"{number} ranks"
    return number, f"{ranks} a node, one a usable core, instead of the job's {wanted}", claims


def _least_cores(fleet: Fleet, facts: Facts) -> int | None:
    """The cores that the ranks of a node may use, on the node that has fewest; stand-ins share those of one machine."""
    seen = [facts.of(limits, node.name) for node in fleet.nodes]
    known = [usable_cores(fact.value) for fact in seen if isinstance(fact, Observed)]
    cores = [int(count) for count in known if count]
    if not cores:
        return None
    return min(cores) // len(fleet.nodes) if stand_ins(fleet) else min(cores)


def gpus_on(facts: Facts, node: str) -> int:
    """GPUs that the ranks' framework can use on `node`: working ones, if torch, or paddle without torch, has CUDA."""
    seen, installed = facts.of(gpus, node), facts.of(packages, node)
    if not isinstance(seen, Observed) or not isinstance(installed, Observed):
        return 0
    framework = installed.value.torch or installed.value.paddle
    if framework is None or not framework.cuda:
        return 0
    return sum(not item.problem for item in seen.value.gpus)


def sharding_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that say that every rank holds only a part of the parameters (FSDP, ZeRO-3); empty when none does."""
    found: list[Claim] = []
    for scope in scopes(job):
        stage = known_int(job, "zero_stage", scope)
        if stage is not None and stage >= _SHARDING_STAGE:
            found.extend(deciding(job, "zero_stage", scope))
        for quantity, sharding in (
            ("uses_fsdp", True),
            ("sharding_library", "fsdp"),
            ("distributed_type", "FSDP"),
            ("lightning_strategy", "fsdp"),
        ):
            if job.value(quantity, scope) == Known(sharding):
                found.extend(deciding(job, quantity, scope))
    return tuple(dict.fromkeys(found))
