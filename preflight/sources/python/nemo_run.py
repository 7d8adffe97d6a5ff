"""NeMo-Run's executors: `run.SlurmExecutor(nodes=2, ntasks_per_node=8)`, `run.LocalExecutor(ntasks_per_node=8)`.

Source: nemo_run/core/execution (slurm, local, docker, skypilot, dgxcloud, lepton, kubeflow) of NeMo-Run 0.11. The
script is started by plain Python; its executors start the ranks, so each executor is a launch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Known, Launch, Relation, Scope, Strength, Value, as_int, lift
from preflight.sources.python.module import Module, argument, last, value_of


class Size(NamedTuple):
    """The arguments of one executor that determine how many ranks it starts; the first one given counts."""

    nodes: str
    processes: tuple[str, ...]
    gpus: str = "gpus_per_node"


_EXECUTORS = {
    "SlurmExecutor": Size("nodes", ("ntasks_per_node",)),
    "LocalExecutor": Size("nodes", ("ntasks_per_node",), ""),
    "DockerExecutor": Size("", ("ntasks_per_node",), "num_gpus"),
    "SkypilotExecutor": Size("num_nodes", ("gpus_per_node",)),
    "SkypilotJobsExecutor": Size("num_nodes", ("gpus_per_node",)),
    "DGXCloudExecutor": Size("nodes", ("nprocs_per_node", "gpus_per_node")),
    "LeptonExecutor": Size("nodes", ("nprocs_per_node", "gpus_per_node")),
    "KubeflowExecutor": Size("num_nodes", ("nprocs_per_node", "gpus_per_node")),
}
_SOURCE = "nemo-run"


class ExecutorLaunch(NamedTuple):
    """The launch of one executor, with its claims."""

    launch: Launch
    claims: tuple[Claim, ...]


def launches(module: Module) -> Iterator[ExecutorLaunch]:
    """Every executor that a script makes with a number of processes."""
    if "nemo_run" not in module.file.text:
        return
    for call in module.named(*_EXECUTORS):
        name = last(module.called(call))
        size = _EXECUTORS[name]
        processes = next((given for key in size.processes if (given := argument(call, key)) is not None), None)
        if processes is not None:
            yield _launch_of(module, call, name, size, processes)


def _launch_of(
    module: Module, call: ast.Call, name: str, size: Size, processes: ast.keyword | ast.expr
) -> ExecutorLaunch:
    span = module.span(call.func)
    scope = Scope(launch=f"{span.path}:{span.line}")
    condition = module.condition(call)
    launch = Launch(id=scope.launch, launcher=_SOURCE, span=span, condition=condition)
    own = Module.claim
    claims: list[Claim] = []

    def state(quantity: str, value: Value, at: ast.AST, **more: object) -> None:
        claim = own(module, quantity, value, at, source=_SOURCE, condition=condition, **more)  # type: ignore[arg-type]
        claims.append(_in(claim, scope))

    nodes = argument(call, size.nodes) if size.nodes else None
    if nodes is not None:
        state("nodes", as_int(module.fold(value_of(nodes))), nodes)
    else:
        spelling = f"{name} (without {size.nodes or 'several nodes'}: one node)"
        state("nodes", Known(1), call.func, spelling=spelling, strength=Strength.DEFAULT)
    state("processes_per_node", as_int(module.fold(value_of(processes))), processes)
    gpus = argument(call, size.gpus) if size.gpus else None
    if gpus is not None:
        state("gpus_per_node", as_int(module.fold(value_of(gpus))), gpus)
    partition = argument(call, "partition")
    if partition is not None:
        state("partition", lift(str, module.fold(value_of(partition))), partition)
    return ExecutorLaunch(launch, tuple(claims))


def _in(claim: Claim, scope: Scope) -> Claim:
    return Claim(
        claim.quantity,
        claim.value,
        claim.span,
        claim.spelling,
        claim.source,
        scope=scope,
        strength=claim.strength,
        relation=claim.relation,
        condition=claim.condition,
    )


#: Quantities that a recipe requires of its executor; with several executors it is unknown which one runs it.
REQUIRED = frozenset(("nodes", "processes_per_node"))


def is_required(claim: Claim) -> bool:
    """Whether a claim of a recipe is about the launch of its executor."""
    return claim.quantity in REQUIRED and claim.relation is Relation.REQUIRES
