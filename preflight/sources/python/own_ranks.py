"""Programs that start ranks themselves, and whether a script does something when run.

Such a program has no launch line, so the call is the launch. A program that a launcher starts as a rank is the
launcher's; its own calls then state nothing here.

Sources: torch/multiprocessing/spawn.py (2.9); paddle/distributed/spawn.py (3.2); detectron2/engine/launch.py (0.6);
lightning/pytorch/trainer/trainer.py and lightning/fabric/fabric.py (2.6); ray/train (2.51: trainers take
`scaling_config`); accelerate/launchers.py (1.14: notebook_launcher); submitit/core/core.py (1.5: update_parameters).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight.model.job import Claim, Known, Launch, Scope, Strength, Unresolved, Value, alternatives, as_int
from preflight.model.job.value import Symbol
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.process_group import spawned_processes
from preflight.sources.python.rank_conditions import RankSet, ranks_where_true
from preflight.sources.python.words import WORDS


class OwnLaunch(NamedTuple):
    """The launch that a call is, with the claims about its size."""

    launch: Launch
    claims: tuple[Claim, ...]


class _Size(NamedTuple):
    """The arguments of a call that state a size: the quantity, the name, and the position if it may have none."""

    quantity: str
    name: str
    position: int | None = None


_SPAWN = (_Size("processes_per_node", "nprocs", 2),)
_LIGHTNING = (_Size("nodes", "num_nodes"), _Size("processes_per_node", "devices"))
_CALLS: dict[str, tuple[_Size, ...]] = {
    "torch.multiprocessing.spawn": _SPAWN,
    "torch.multiprocessing.start_processes": _SPAWN,
    "paddle.distributed.spawn": _SPAWN,
    "detectron2.engine.launch": (
        _Size("nodes", "num_machines", 2),
        _Size("processes_per_node", "num_gpus_per_machine", 1),
    ),
    "accelerate.notebook_launcher": (_Size("nodes", "num_nodes"), _Size("processes_per_node", "num_processes", 2)),
    **{
        f"{root}.{name}": _LIGHTNING
        for root in (
            *("lightning", "lightning.pytorch", "lightning.fabric"),
            *("pytorch_lightning", "lightning_fabric", "nemo.lightning"),
        )
        for name in ("Trainer", "Fabric")
    },
}
_NAMES = tuple(dict.fromkeys(last(name) for name in _CALLS))
#: Calls that start several ranks only if one of these is given.
_ONLY_WITH = {"Trainer": ("devices", "num_nodes", "strategy"), "Fabric": ("devices", "num_nodes", "strategy")}
_SUBMITIT = (
    _Size("nodes", "nodes"),
    _Size("tasks_per_node", "tasks_per_node"),
    _Size("gpus_per_node", "gpus_per_node"),
)
_GROUP = re.compile(r"\binit_process_group\(|\binit_parallel_env\(")
_RELEVANT = re.compile(
    r"\bProcess\(|spawn|start_processes|detectron2|lightning|submitit|ScalingConfig|notebook_launcher"
)


def launches(module: Module) -> Iterator[OwnLaunch]:
    """The calls of a program that start its ranks; nothing for a module that only defines things."""
    if _RELEVANT.search(module.file.text) is None or next(entry_claims(module), None) is None:
        return
    of_ray = list(_ray(module))
    for call in module.named(*_NAMES):
        sizes = _CALLS.get(module.called(call))
        needed = _ONLY_WITH.get(last(module.called(call)), ())
        if sizes is None or (needed and all(argument(call, name) is None for name in needed)):
            continue
        claims = list(_sizes(module, call, sizes))
        # Inside of a trainer of Ray, Lightning runs in the ranks that Ray started.
        if needed and (of_ray or _is_single(module, call, claims)):
            continue
        if sizes is _SPAWN:
            # Each of several nodes may spawn. Where one does, the number is stated with the group.
            stated = claims or _without_count(module, call)
            yield _launch(module, call, "python", [] if any(spawned_processes(module, call)) else stated)
        else:
            yield _launch(module, call, "python", _with_nodes(module, call, claims))
    yield from of_ray
    yield from _submitit(module)
    yield from _processes(module)


def _processes(module: Module) -> Iterator[OwnLaunch]:
    """`for rank in range(4): Process(target=train, args=(rank,))` in a script that makes a process group."""
    if _GROUP.search(module.file.text) is None:
        return
    for call in module.named("Process"):
        given = argument(call, "args", 3)
        loop = next((outer for outer in module.outline.above(call) if isinstance(outer, ast.For)), None)
        if given is None or loop is None or last(module.called(call)) != "Process":
            continue
        counted = loop.iter
        passed = {node.id for node in ast.walk(value_of(given)) if isinstance(node, ast.Name)}
        is_range = isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1
        target = argument(call, "target", 1)
        functions = module.outline.functions(dotted(value_of(target))) if target is not None else []
        makes_group = any(_GROUP.search(module.source(function)) for function in functions)
        if is_range and makes_group and isinstance(counted, ast.Call) and dotted(loop.target) in passed:
            count = module.claim("processes_per_node", as_int(module.fold(counted.args[0])), counted)
            yield _launch(module, call, "python", [count])
            return


def _sizes(module: Module, call: ast.Call, sizes: tuple[_Size, ...]) -> Iterator[Claim]:
    for quantity, name, position in sizes:
        given = argument(call, name, position)
        if given is not None:
            expression = value_of(given)
            value = module.fold(expression)
            takes_all = any(item in ("auto", "-1", -1) for item in alternatives(value))
            value = Unresolved(Symbol.GPU_COUNT.value) if takes_all else as_int(value)
            yield module.claim(quantity, value, given)


def _without_count(module: Module, call: ast.Call) -> list[Claim]:
    """The processes of a spawn without `nprocs`: one with torch, one for each visible GPU with Paddle."""
    if module.called(call) == "paddle.distributed.spawn":
        value: Value = Unresolved(Symbol.GPU_COUNT.value)
        spelling = "spawn (without nprocs: one process for each visible GPU)"
    else:
        value, spelling = Known(1), f"{last(module.called(call))} (without nprocs: one process)"
    claim = module.claim("processes_per_node", value, call.func, strength=Strength.DEFAULT, spelling=spelling)
    return [claim]


def _is_single(module: Module, call: ast.Call, claims: list[Claim]) -> bool:
    """Whether a trainer runs in one process: on one device of one node, or with a strategy that starts none."""
    strategy = argument(call, "strategy")
    if strategy is not None and module.fold(value_of(strategy)) == Known("dp"):
        return True
    per_node = [claim.value for claim in claims if claim.quantity == "processes_per_node"]
    nodes = [claim.value for claim in claims if claim.quantity == "nodes"]
    return per_node == [Known(1)] and nodes in ([], [Known(1)])


def _with_nodes(module: Module, call: ast.Call, claims: list[Claim]) -> list[Claim]:
    """The sizes with one node, where the call does not give their number."""
    quantities = {claim.quantity for claim in claims}
    if "nodes" in quantities or "processes_per_node" not in quantities:
        return claims
    spelling = f"{last(module.called(call))} (without a number of nodes: one)"
    return [*claims, module.claim("nodes", Known(1), call.func, strength=Strength.DEFAULT, spelling=spelling)]


def _ray(module: Module) -> Iterator[OwnLaunch]:
    """`TorchTrainer(..., scaling_config=ScalingConfig(num_workers=8))`; the claims of `ScalingConfig` say how many."""
    for call in module.calls:
        given = argument(call, "scaling_config") if last(module.called(call)).endswith("Trainer") else None
        if given is not None:
            scaling = module.definition(value_of(given))
            workers = argument(scaling, "num_workers") if isinstance(scaling, ast.Call) else None
            claims = []
            if workers is not None:
                claims.append(module.claim("world_size", as_int(module.fold(value_of(workers))), workers, source="ray"))
            yield _launch(module, call, "python", claims)


def _submitit(module: Module) -> Iterator[OwnLaunch]:
    """`executor.update_parameters(nodes=2, tasks_per_node=8)`: every task calls the submitted function."""
    if "submitit" not in module.file.text:
        return
    for call in module.named("update_parameters"):
        claims = []
        for quantity, name, _ in _SUBMITIT:
            given = argument(call, name) or argument(call, f"slurm_{name}")
            given = given or (argument(call, "slurm_ntasks_per_node") if quantity == "tasks_per_node" else None)
            if given is not None:
                claims.append(module.claim(quantity, as_int(module.fold(value_of(given))), given, source="submitit"))
        if any(claim.quantity in ("nodes", "tasks_per_node") for claim in claims):
            tasks = [replace(c, quantity="processes_per_node") for c in claims if c.quantity == "tasks_per_node"]
            yield _launch(module, call, "submitit", _with_nodes(module, call, [*claims, *tasks]))


def _launch(module: Module, call: ast.Call, launcher: str, claims: list[Claim]) -> OwnLaunch:
    span = module.span(call.func)
    scope = Scope(launch=f"{span.path}:{span.line}")
    condition = module.condition(call)
    launch = Launch(id=scope.launch, launcher=launcher, span=span, program=module.file.path, condition=condition)
    stated = (replace(claim, scope=scope, condition=condition) for claim in claims)
    return OwnLaunch(launch, tuple(stated))


#: Calls with which modules set themselves up; they start nothing.
_SETUP_CALLS = WORDS["setup_calls"]
_EFFECTFUL_NODES = (ast.For, ast.While, ast.With, ast.AsyncFor)


def entry_claims(module: Module) -> Iterator[Claim]:
    """The claim that the script is an entry point, at the statement that makes it one."""
    for statement in module.tree.body:
        if _has_effect(module, statement):
            claim = module.claim("entry_point", True, statement, condition="", spelling="runs by itself")
            # The line itself is not informative, and may contain a secret.
            yield replace(claim, span=replace(claim.span, snippet=""))
            return


def _has_effect(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        if "__name__" in module.text(statement.test):
            return True
        if any(_has_effect(module, each) for each in (*statement.body, *statement.orelse)):
            return True
        # `if rank == 0: saver = Saver(path)`: only a script queries its rank at import.
        made = any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in statement.body)
        return made and ranks_where_true(module, statement.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.IfExp):
        return ranks_where_true(module, statement.value.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, _EFFECTFUL_NODES):
        return True
    if isinstance(statement, ast.Try):
        return any(_has_effect(module, each) for each in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = dotted(statement.value.func) or getattr(statement.value.func, "attr", "")
        return not any(each in name.lower() for each in _SETUP_CALLS)
    return False
