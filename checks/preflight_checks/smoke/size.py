"""The number of ranks of a smoke run on each node, and how they shard their model."""

from __future__ import annotations

from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed
from preflight_checks.host.processors import usable_cores
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.limits import limits
from preflight_checks.probes.packages import packages
from preflight_checks.requirements.backends import backends
from preflight_checks.requirements.claims import claims_in_force, known_int, scopes
from preflight_checks.requirements.hosts import nodes_share_machine

#: From this ZeRO stage on, DeepSpeed shards the parameters over ranks, as FSDP does.
_SHARDING_STAGE = 3


def ranks_per_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[int, str, tuple[Claim, ...]]:
    """The number of ranks that the job starts, limited by the GPUs of every node (for Gloo jobs, by the cores).

    Returns the number, the reason, and the claims that state it. Without GPUs, a GPU job trains with one rank per
    node: more would only take turns.
    """
    wanted, claims = 1, ()  # type: int, tuple[Claim, ...]
    for scope in scopes(job):
        stated = known_int(job, "processes_per_node", scope)
        if stated is not None and stated > wanted:
            wanted, claims = stated, claims_in_force(job, "processes_per_node", scope)
    least = min((gpus_on(facts, node.name) for node in fleet.nodes), default=0)
    if least and least < wanted:
        return least, f"{least} ranks per node, one per GPU, instead of the job's {wanted}", claims
    if least or wanted == 1:
        return wanted, f"{wanted} ranks per node, as the job starts them" if least else "one rank per node", claims
    if backends(job)[0] != {"gloo"}:
        return 1, "one rank per node, because at least one node has no usable GPU", claims
    return _on_processors(fleet, facts, wanted, claims)


def _on_processors(
    fleet: Fleet, facts: Facts, wanted: int, claims: tuple[Claim, ...]
) -> tuple[int, str, tuple[Claim, ...]]:
    cores = _min_cores(fleet, facts)
    if cores is None:
        return 1, f"one rank per node instead of the job's {wanted}, because no node's usable cores are known", claims
    number = max(1, min(wanted, cores))
    if number == wanted:
        return number, f"{number} ranks per node, as the job starts them", claims
    ranks = "one rank" if number == 1 else f"{number} ranks"
    return number, f"{ranks} per node, one per usable core, instead of the job's {wanted}", claims


def _min_cores(fleet: Fleet, facts: Facts) -> int | None:
    """The usable cores of the node with the fewest; nodes on one machine share its cores."""
    seen = [facts.of(limits, node.name) for node in fleet.nodes]
    known = [usable_cores(fact.value) for fact in seen if isinstance(fact, Observed)]
    cores = [int(count) for count in known if count]
    if not cores:
        return None
    return min(cores) // len(fleet.nodes) if nodes_share_machine(fleet) else min(cores)


def gpus_on(facts: Facts, node: str) -> int:
    """GPUs that the ranks' framework can use on `node`: working ones, if torch, or paddle without torch, was built for
    them: with CUDA for NVIDIA's, with ROCm for AMD's.
    """
    seen, installed = facts.of(gpus, node), facts.of(packages, node)
    if not isinstance(seen, Observed) or not isinstance(installed, Observed):
        return 0
    framework = installed.value.torch or installed.value.paddle
    if framework is None or not (framework.hip if seen.value.vendor == "amd" else framework.cuda):
        return 0
    return sum(not item.problem for item in seen.value.gpus)


def sharding_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that shard the parameters over ranks (FSDP, ZeRO-3); empty if there are none."""
    found: list[Claim] = []
    for scope in scopes(job):
        stage = known_int(job, "zero_stage", scope)
        if stage is not None and stage >= _SHARDING_STAGE:
            found.extend(claims_in_force(job, "zero_stage", scope))
        for quantity, sharding in (
            ("uses_fsdp", True),
            ("sharding_library", "fsdp"),
            ("distributed_type", "FSDP"),
            ("lightning_strategy", "fsdp"),
        ):
            if job.value(quantity, scope) == Known(sharding):
                found.extend(claims_in_force(job, quantity, scope))
    return tuple(dict.fromkeys(found))
