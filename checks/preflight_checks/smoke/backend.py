"""The backend of a smoke run, chosen once for all of its ranks from the job's claims and the facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.packages import packages
from preflight_checks.requirements.backends import asked_backend, backends
from preflight_checks.requirements.hosts import fold, nodes_share_machine
from preflight_checks.smoke.size import gpus_on

#: The backends that the reference trainer runs over.
NCCL, GLOO, AUTO = "nccl", "gloo", "auto"


@dataclass(frozen=True, slots=True)
class Backend:
    """The backend that every rank is started with.

    Args:
        name: `nccl`, `gloo`, or `auto`: the ranks agree on one, because the facts about their GPUs are missing.
        why: the reason, for display.
        claims: the claims that ask for a backend or for GPUs; empty if nothing does.
        untested: why this backend is not the one that the job asks for; empty if it is.
        by_option: whether the user chose it, by `--smoke-backend`.
    """

    name: str = AUTO
    why: str = ""
    claims: tuple[Claim, ...] = ()
    untested: str = ""
    by_option: bool = False


def backend_of(job: Job, fleet: Fleet, facts: Facts, ranks: int) -> Backend:
    """The backend of all ranks: as set by the user, else as the job asks, else what every node has GPUs for.

    Args:
        ranks: the number of ranks on each node.
    """
    asked, claims = asked_backend(job)
    chosen = fleet.smoke_options.backend
    if chosen:
        untested = f"the job asks for {title(asked)}, which was not tested" if asked and asked != chosen else ""
        return Backend(chosen, f"{title(chosen)} as set by --smoke-backend", claims, untested, by_option=True)
    unknown = [node.name for node in fleet.nodes if not _are_known(facts, node.name)]
    usable = {node.name: gpus_on(facts, node.name) for node in fleet.nodes}
    if nodes_share_machine(fleet):
        ranks *= len(fleet.nodes)
    if asked == NCCL and nodes_share_machine(fleet) and 0 < min(usable.values(), default=0) < ranks:
        untested = (
            "the job asks for NCCL, which was not tested: all nodes are this machine, which has "
            f"{min(usable.values())} usable GPUs for {ranks} ranks"
        )
        return Backend(GLOO, "Gloo, because all nodes are this machine", claims, untested)
    if asked:
        return Backend(asked, f"{title(asked)} as the job asks", claims)
    if unknown:
        return Backend(AUTO, f"NCCL if every rank has a GPU, which is not known of {fold(unknown)}", claims)
    short = [node for node, count in usable.items() if count < ranks]
    if not short:
        return Backend(NCCL, "NCCL, because every rank has a GPU", claims)
    names = backends(job)[0] - {"ps"}
    untested = ""
    if len(short) < len(usable) and {NCCL, GLOO} <= names:
        untested = (
            f"the job uses NCCL or Gloo, and {fold(short)} {has(short)} too few GPUs for NCCL: if each rank decides by "
            "the GPUs that it finds, they never meet"
        )
    elif names and not names & {NCCL, GLOO}:
        untested = f"the job's backend {fold(sorted(names))} was not tested"
    return Backend(GLOO, f"Gloo, because {fold(short)} {has(short)} too few GPUs for NCCL", claims, untested)


def nodes_without_gpus(fleet: Fleet, facts: Facts) -> Iterator[str]:
    """The nodes on which facts show that the ranks' framework can use no GPU."""
    for node in fleet.nodes:
        if _are_known(facts, node.name) and not gpus_on(facts, node.name):
            yield node.name


def _are_known(facts: Facts, node: str) -> bool:
    return isinstance(facts.of(gpus, node), Observed) and isinstance(facts.of(packages, node), Observed)


def has(nodes: Sequence[str]) -> str:
    """`has` or `have`."""
    return "has" if len(nodes) == 1 else "have"


def title(name: str) -> str:
    """`NCCL` or `Gloo`."""
    return {NCCL: "NCCL", GLOO: "Gloo"}.get(name, name)
