"""Claims of scripts of single frameworks: Ray, TensorFlow, HugeCTR, NeMo-Run, Horovod.

Source: HugeCTR 25.03, HugeCTR/src/resource_manager.cpp (which requires one process for each list of `vvgpu`) and
HugeCTR/src/pybind/model.cpp (which divides the batch equally among all GPUs).

Source: nemo_run/core/execution (slurm, local, docker, skypilot, dgxcloud, lepton, kubeflow) of NeMo-Run 0.11. The
script is started by plain Python; its executors start the ranks, so each executor is a launch.

Source: python/ray/actor.py of Ray 2.48: an actor that names resources holds them until it ends; one that names none
holds no CPU while it runs.

Sources: horovod/common/basics.py (rank() and its like stop before init()) and horovod/torch/optimizer.py (an optimizer
takes backward_passes_per_step backward passes a step) of 0.28; byteps/common/__init__.py of 0.2.5, derived from it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from preflight._util.budget import truncate
from preflight.model.job import (
    Claim,
    Known,
    Launch,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
)
from preflight.model.job.value import SECTION
from preflight.sources.formats.structured import Kind
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import MAX_CALL_DEPTH, Module, argument, last, parse_silently, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.shards import bound_value, setting_of


def ray_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about placement groups and waiting for them."""
    if "ray" not in module.file.text:
        return
    for call in module.named("placement_group", "get", "wait", "ScalingConfig"):
        name = module.called(call)
        if last(name) == "placement_group" and (name.startswith("ray") or name == "placement_group"):
            yield from _group(module, call)
        elif last(name) == "ScalingConfig":
            yield from _workers(module, call)
            yield from _arguments(module, call)
        elif name in ("ray.get", "ray.wait") and call.args and argument(call, "timeout") is None:
            yield from _waits(module, call)


def _group(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "bundles", 0)
    bundles = module.definition(value_of(given)) if given is not None else None
    if given is not None and bundles is not None:
        yield module.claim("ray_workers", _count(module, bundles), given, source="ray")
    if isinstance(bundles, ast.BinOp) and isinstance(bundles.op, ast.Mult):
        bundles = bundles.left if isinstance(bundles.left, ast.List) else bundles.right
    listed = bundles.elts if isinstance(bundles, ast.List) else []
    if isinstance(bundles, ast.ListComp):
        listed = [bundles.elt]
    shown: list[str] = []
    for bundle in listed:
        parts = _resources(module, bundle)
        if parts:
            shown.append(parts)
    if shown and given is not None:
        largest = max(shown, key=len) if len(set(shown)) > 1 else shown[0]
        yield module.claim("ray_bundle", largest, given, source="ray")


def _count(module: Module, bundles: ast.expr) -> Value:
    """Return the number of bundles in a literal list, `[{"GPU": 1}] * workers`, or a comprehension over
    `range(workers)`.
    """
    if isinstance(bundles, ast.List):
        return Known(len(bundles.elts))
    if isinstance(bundles, ast.BinOp) and isinstance(bundles.op, ast.Mult):
        listed, times = bundles.left, bundles.right
        if not isinstance(listed, ast.List):
            listed, times = times, listed
        if isinstance(listed, ast.List) and len(listed.elts) == 1:
            return module.fold(times)
    if isinstance(bundles, ast.ListComp) and len(bundles.generators) == 1 and not bundles.generators[0].ifs:
        counted = bundles.generators[0].iter
        if isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1:
            return module.fold(counted.args[0])
    return Unresolved(f"{module.text(bundles)}: known only at run time")


def _resources(module: Module, bundle: ast.expr) -> str:
    """Return `CPU 2, GPU 1` from a literal bundle."""
    table = module.definition(bundle)
    parts = []
    for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
        amount = alternatives(module.fold(value))
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(amount) == 1:
            parts.append(f"{key.value} {amount[0]}")
    return ", ".join(parts)


def _workers(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield `ScalingConfig(use_gpu=False, resources_per_worker={"GPU": 1})`; without `use_gpu` it is False."""
    workers = argument(call, "num_workers")
    if workers is not None:
        count = bound_value(module, value_of(workers)) or value_of(workers)
        yield module.claim("ray_workers", module.fold(count), workers, source="ray")
    given = argument(call, "resources_per_worker")
    if given is None or call.args or any(keyword.arg is None for keyword in call.keywords):
        return
    table = module.definition(value_of(given))
    if not isinstance(table, ast.Dict):
        return
    uses = argument(call, "use_gpu")
    because: tuple[Claim, ...] = ()
    if uses is not None:
        because = (module.claim("ray_train_uses_gpu", module.fold(value_of(uses)), uses, source="ray"),)
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "GPU":
            yield module.claim("ray_train_worker_gpus", module.fold(value), given, because=because, source="ray")


def _arguments(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield the call with its arguments; nothing if not all arguments are literal."""
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return
    found: list[Claim] = []
    for keyword in call.keywords:
        value, name = module.definition(keyword.value), f"setting.ray.{keyword.arg}"
        if isinstance(value, ast.Dict):
            found.append(module.claim(name, Known(SECTION), keyword, source="ray"))
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append(module.claim(f"{name}.{key.value}", module.fold(inner), keyword, source="ray"))
        elif isinstance(value, ast.List):
            # Lists are not taken for tuples; all that counts of one is its length.
            found.append(module.claim(name, Known("a list"), keyword, source="ray"))
            found.append(module.claim(f"{name}.count", Known(len(value.elts)), keyword, source="ray"))
        else:
            given = bound_value(module, keyword.value) or keyword.value
            found.append(module.claim(name, module.fold(given), keyword, source="ray"))
            found += _from_settings(module, name, keyword)
    found += _trial(module, call)
    yield module.claim("ray_scaling", Known("ScalingConfig"), call, because=tuple(found), source="ray")


def _trial(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield what a trial of Ray Tune holds while the function that it runs starts the workers of a ScalingConfig.

    Without resources of its own a function has one CPU. Source: ray/tune/trainable/function_trainable.py and
    ray/tune/execution/placement_groups.py of Ray 2.34.
    """
    function = module.outline.function_of(call)
    name = function.name if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""
    for tune in module.named("Tuner", "run") if name else ():
        if not module.called(tune).startswith(("ray.tune.", "tune.")):
            continue
        given = argument(tune, "trainable", 0) or argument(tune, "run_or_experiment", 0)
        trainable = module.definition(value_of(given)) if given is not None else None
        stated = argument(tune, "resources_per_trial")
        if isinstance(trainable, ast.Call) and last(module.called(trainable)) == "with_resources":
            stated = argument(trainable, "resources", 1)
            given = argument(trainable, "trainable", 0)
            trainable = value_of(given) if given is not None else None
        if trainable is None or dotted(trainable) != name:
            continue
        if stated is None and given is not None:
            yield module.claim("setting.ray.trial.CPU", Known(1), given, source="ray")
        elif stated is not None:
            yield from _held_by_trial(module, stated)


def _held_by_trial(module: Module, stated: ast.keyword | ast.expr) -> Iterator[Claim]:
    """Yield the sums of the bundles of a trial; unresolved where the program computes them."""
    made = module.definition(value_of(stated))
    bundles: list[ast.expr] = [made]
    if isinstance(made, ast.Call) and last(module.called(made)) == "PlacementGroupFactory":
        given = argument(made, "bundles", 0)
        listed = module.definition(value_of(given)) if given is not None else None
        bundles = list(listed.elts) if isinstance(listed, ast.List) else []
        if isinstance(listed, ast.BinOp) and isinstance(listed.op, (ast.Add, ast.Mult)):
            bundles = _repeated(module, listed)
    tables = [module.definition(bundle) for bundle in bundles]
    if not tables or not all(isinstance(table, ast.Dict) for table in tables):
        for resource in ("CPU", "GPU"):
            unresolved = Unresolved("the program computes the resources of a trial")
            yield module.claim(f"setting.ray.trial.{resource}", unresolved, stated, source="ray")
        return
    for resource in ("CPU", "GPU"):
        amounts = [
            module.fold(value)
            for table in tables
            if isinstance(table, ast.Dict)
            for key, value in zip(table.keys, table.values, strict=True)
            if isinstance(key, ast.Constant) and str(key.value).upper() == resource
        ]
        if amounts:
            total = lift(lambda *items: sum(float(str(item)) for item in items), *amounts)
            yield module.claim(f"setting.ray.trial.{resource}", total, stated, source="ray")


def _repeated(module: Module, listed: ast.expr) -> list[ast.expr]:
    """Return the bundles of `[{"CPU": 1}] + [{"CPU": 2}] * 2`; nothing if a number is known only at run time."""
    if isinstance(listed, ast.List):
        return list(listed.elts)
    if isinstance(listed, ast.BinOp) and isinstance(listed.op, ast.Add):
        left, right = _repeated(module, listed.left), _repeated(module, listed.right)
        return left + right if left and right else []
    if isinstance(listed, ast.BinOp) and isinstance(listed.op, ast.Mult):
        parts, times = (listed.left, listed.right) if isinstance(listed.left, ast.List) else (listed.right, listed.left)
        count = alternatives(module.fold(times))
        if isinstance(parts, ast.List) and len(count) == 1 and isinstance(count[0], int) and 0 < count[0] <= _MAX_TIMES:
            return list(parts.elts) * count[0]
    return []


#: Repetitions of a bundle that are written out.
_MAX_TIMES = 1000


def _from_settings(module: Module, name: str, given: ast.keyword) -> Iterator[Claim]:
    """Yield `NAME.in_settings`: what the one file of settings near the script has for an argument."""
    setting = setting_of(module, given.value) if isinstance(given.value, ast.Subscript) else None
    if setting is not None and setting.node.kind is Kind.SCALAR:
        claim = module.claim(f"{name}.in_settings", Known(setting.node.value), given, source="ray")
        yield replace(claim, because=(replace(claim, span=setting.span),))


def _waits(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield `ray.get(pg.ready())` without a timeout, where `pg` is a placement group."""
    awaited = module.definition(call.args[0])
    if isinstance(awaited, ast.List) and len(awaited.elts) == 1:
        awaited = awaited.elts[0]
    if not (isinstance(awaited, ast.Call) and last(module.called(awaited)) == "ready"):
        return
    receiver = awaited.func.value if isinstance(awaited.func, ast.Attribute) else None
    made = module.definition(receiver) if receiver is not None else None
    if not (isinstance(made, ast.Call) and last(module.called(made)) == "placement_group"):
        return
    because = tuple(_group(module, made))
    yield module.claim(
        "ray_wait_unbounded", module.text(receiver) if receiver else "", call, because=because, source="ray"
    )


_STRATEGIES = (
    "ParameterServerStrategy",
    "ParameterServerStrategyV1",
    "ParameterServerStrategyV2",
    "MultiWorkerMirroredStrategy",
    "CollectiveAllReduceStrategy",
)
#: Parts of a cluster that are known only at run time become null.
_MAX_DEPTH = 6
_MAX_ENTRIES = 2000


def tensorflow_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about clusters and strategies."""
    if "TF_CONFIG" not in module.file.text and "Strategy" not in module.file.text:
        return
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Subscript) or module.name(target.value) != "os.environ":
                continue
            if getattr(module.fold(target.slice), "value", None) != "TF_CONFIG":
                continue
            dumped = module.definition(node.value)
            if isinstance(dumped, ast.Call) and module.called(dumped) == "json.dumps" and dumped.args:
                table = module.definition(dumped.args[0])
                if isinstance(table, ast.Dict):
                    yield module.claim("tf_config", json.dumps(_plain(module, table, 0)), table)
    for call in module.named(*_STRATEGIES):
        yield module.claim("tf_strategy", last(module.called(call)), call)


def _plain(module: Module, expression: ast.expr, depth: int) -> Any:
    """Return a literal as JSON; null for values known only at run time."""
    definition = module.definition(expression)
    if depth > _MAX_DEPTH:
        return None
    if isinstance(definition, ast.Dict):
        keys = truncate(definition.keys, _MAX_ENTRIES, "entries of TF_CONFIG")
        pairs = zip(keys, definition.values[:_MAX_ENTRIES], strict=True)
        return {
            str(key.value): _plain(module, value, depth + 1) for key, value in pairs if isinstance(key, ast.Constant)
        }
    if isinstance(definition, (ast.List, ast.Tuple)):
        return [
            _plain(module, item, depth + 1) for item in truncate(definition.elts, _MAX_ENTRIES, "entries of TF_CONFIG")
        ]
    found = alternatives(module.fold(definition))
    return found[0] if len(found) == 1 and isinstance(found[0], (str, int, float, bool)) else None


def hugectr_claims(module: Module) -> Iterator[Claim]:
    """Yield the processes, GPUs and batch of every solver."""
    for call in module.named("CreateSolver"):
        if not module.called(call).startswith("hugectr"):
            continue
        devices = argument(call, "vvgpu")
        lists = module.definition(value_of(devices)) if devices is not None else None
        if devices is not None and isinstance(lists, ast.List):
            inner = [module.definition(item) for item in lists.elts]
            if inner and all(isinstance(item, ast.List) and item.elts for item in inner):
                yield module.claim(
                    "world_size", Known(len(inner)), devices, relation=Relation.REQUIRES, source="hugectr"
                )
                most = max(len(item.elts) for item in inner if isinstance(item, ast.List))
                yield module.claim("gpus_per_node", Known(most), devices, relation=Relation.AT_LEAST, source="hugectr")
        batch = argument(call, "batchsize")
        if batch is not None:
            yield module.claim("train_batch_size", as_int(module.fold(value_of(batch))), batch, source="hugectr")


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
    """Yield every NeMo-Run executor that the script creates with an explicit process count."""
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
    """Return whether a claim of a recipe is about the launch of its executor."""
    return claim.quantity in REQUIRED and claim.relation is Relation.REQUIRES


#: The argument for each resource.
_RESOURCES = {"CPU": "num_cpus", "GPU": "num_gpus"}
#: What ends actors, or holds resources for them in another way.
_ENDS = re.compile(r"\bray\.kill\(|\bdel \w|exit_actor|placement_group|PlacementGroup|ray\.shutdown\(|ActorPool")


class _Made(NamedTuple):
    """A call that makes actors: the resources of one, and how many it makes."""

    call: ast.Call
    each: dict[str, Value]
    times: Value


def claims(module: Module) -> Iterator[Claim]:
    """Yield the total resources of each call's actors, and the resources of the cluster that the script itself
    starts.
    """
    if "ray" not in module.file.text or ("remote" not in module.file.text and "ScalingConfig" not in module.file.text):
        return
    for call in module.named("init"):
        if module.called(call) == "ray.init" and argument(call, "address", 0) is None:
            for resource, name in _RESOURCES.items():
                given = argument(call, name)
                if given is not None:
                    yield module.claim(
                        f"ray_own_{resource.lower()}s", module.fold(value_of(given)), given, source="ray"
                    )
    if _ENDS.search(module.file.text) is not None:
        return
    for made in _created_object(module):
        for resource, amount in made.each.items():
            held = lift(lambda a, b: float(str(a)) * float(str(b)), amount, made.times)
            name = f"ray_held_{resource.lower()}s"
            of_one = module.claim(name, amount, made.call, source="ray")
            yield module.claim(name, held, made.call, source="ray", because=(of_one,))


def _created_object(module: Module) -> Iterator[_Made]:
    classes = dict(_classes(module.tree)) if "@ray.remote" in module.file.text else {}
    for imported in imports.texts_of_modules(module)[0]:
        if "ray.remote" in imported.text:
            try:
                classes = {**dict(_classes(parse_silently(imported.text))), **classes}
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    for call in module.named("remote"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        options = owner if isinstance(owner, ast.Call) and last(module.called(owner)) == "options" else None
        if options is not None:
            owner = options.func.value if isinstance(options.func, ast.Attribute) else None
        decorator = classes.get(last(dotted(owner)))
        times = _times(module, call)
        if decorator is None or times is None:
            continue
        given = {
            resource: argument(options, name)
            if options is not None and argument(options, name)
            else argument(decorator, name)
            for resource, name in _RESOURCES.items()
        }
        each = {name: module.fold(value_of(item)) for name, item in given.items() if item is not None}
        yield _Made(call, each, times)


def _classes(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the actor classes of a module, with the call that decorates them: `@ray.remote(num_gpus=1)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and dotted(decorator.func) == "ray.remote":
                    yield node.name, decorator
                elif dotted(decorator) == "ray.remote":
                    yield node.name, ast.Call(decorator, [], [])


def _times(module: Module, call: ast.Call) -> Value | None:
    """Return how many actors a call makes that are kept; None where that is not known."""
    parent = module.parent(call)
    if isinstance(parent, ast.Assign) and always_reached(module, parent):
        loops = [outer for outer in module.outline.above(parent) if isinstance(outer, (ast.For, ast.While))]
        return None if loops else Known(1)
    comprehension = parent if isinstance(parent, ast.ListComp) and parent.elt is call else None
    kept = module.parent(comprehension) if comprehension is not None else None
    if comprehension is None or not isinstance(kept, ast.Assign) or not always_reached(module, kept):
        return None
    source = comprehension.generators[0]
    counted = source.iter
    if len(comprehension.generators) > 1 or source.ifs or not isinstance(counted, ast.Call):
        return None
    is_range = module.called(counted) == "range" and len(counted.args) == 1
    return module.fold(counted.args[0]) if is_range else None


_OPTIMIZERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "DistributedTrainer")
#: Calls that give all ranks the same initial weights; elastic states do it on synchronisation.
_BROADCAST = re.compile(
    r"broadcast_(?:parameters|variables|global_variables|object|optimizer_state)|[Bb]roadcastGlobalVariables\w*"
    r"|BroadcastParameters|(?:Torch|TensorFlow|TensorFlowKeras|Object)?(?:Keras)?State\(|elastic\.run|hvd\.broadcast\("
)
#: What keeps and restores the state of an elastic training.
_ELASTIC = re.compile(r"elastic\.run|(?:Torch|TensorFlow|TensorFlowKeras|Object|Keras)State\(|elastic\.\w*State")


def horovod_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about Horovod."""
    if "horovod" not in module.file.text:
        return
    broadcast = _BROADCAST.search(module.file.text)
    if broadcast is not None:
        yield module.claim("horovod_broadcasts", broadcast.group(0).rstrip("("), module.tree, condition="")
    elastic = _ELASTIC.search(module.file.text)
    if elastic is not None:
        yield module.claim("elastic_state", elastic.group(0).rstrip("("), module.tree, condition="")
    for call in module.named("init", *_OPTIMIZERS):
        name = module.called(call)
        if not name.startswith("horovod."):
            continue
        if last(name) == "init":
            yield module.claim("horovod_started", True, call)
        elif last(name) in _OPTIMIZERS:
            yield module.claim("horovod_optimizer", last(name), call)


#: Questions to Horovod and BytePS that stop before `init()`.
_QUESTIONS = ("rank", "local_rank", "size", "local_size", "cross_rank", "cross_size")
_PACKAGES = ("horovod.", "byteps.")
_STARTS = re.compile(r"\b(?:hvd|bps|horovod|byteps)\S*\.init\(|from (?:horovod|byteps)\S* import [^\n]*\binit\b")
#: Libraries that start nothing, beside the frameworks.
_HARMLESS = frozenset(("PIL", "cv2", "matplotlib", "pandas", "scipy", "sklearn", "tensorboardX", "tqdm", "yaml"))
#: Libraries that may start Horovod themselves.
_STARTERS = re.compile(r"lightning|ludwig|tensorpack|ignite|composer|determined|catalyst|texar|opennmt|fairseq|nvidia")


#: Places in the order in which a script comes to them.
_Way: TypeAlias = "tuple[tuple[int, int], ...]"


def asked_before_start(module: Module) -> Iterator[Claim]:
    """Yield the first query before Horovod is started: in the script, or in a module while it is imported.

    A module states its own queries, the script the modules that it imports too early.
    """
    asked = [call for call in module.named(*_QUESTIONS) if module.called(call).startswith(_PACKAGES)]
    asked = [call for call in asked if always_reached(module, call)]
    starts = [call for call in module.named("init") if module.called(call).startswith(_PACKAGES)]
    started = _first(module, starts)
    if starts and started is None:
        # In a method, or in a function that something else calls.
        return
    for call in asked:
        if module.outline.function_of(call) is None and _comes_before(_first(module, [call]), started):
            yield module.claim("script_feature", f"asked_at_import:{module.file.path}", call, condition="")
            break
    modules, complete = imports.texts_of_modules(module)
    if not complete or any(_STARTS.search(each.text) for each in modules):
        return
    libraries = set(imports.libraries(module))
    if any(map(_STARTERS.search, libraries)):
        return
    condition = "" if starts or libraries <= imports.FRAMEWORKS | _HARMLESS else "unless a library starts Horovod"
    first = min(((way, call) for call in asked for way in _ways(module, call)), key=lambda item: item[0], default=None)
    if first is not None and _comes_before(first[0], started):
        yield module.feature(f"asked_before_start:{module.file.path}", first[1], *starts[:1], condition=condition)
    asking = {each.path for each in modules if any(package in each.text for package in _PACKAGES)}
    lines = {each.span.line: each.target for each in imports.references(module, "") if each.target in asking}
    for node in (*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)):
        if node.lineno in lines and always_reached(module, node) and _comes_before(_first(module, [node]), started):
            name = f"imported_before_start:{lines[node.lineno]}"
            yield module.claim("script_feature", name, node, condition=condition)


def _ways(module: Module, node: ast.AST, depth: int = 0) -> Iterator[_Way]:
    """Yield the places of the calls that lead to a node, and that of the node."""
    function = module.outline.function_of(node)
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    if function is None:
        yield (place,)
        return
    for call in module.outline.calls_named(function.name) if depth < MAX_CALL_DEPTH else ():
        if isinstance(call.func, ast.Name) and module.outline.function_of(call) is not function:
            for way in _ways(module, call, depth + 1):
                yield (*way, place)


def _first(module: Module, nodes: Sequence[ast.AST]) -> _Way | None:
    return min((way for node in nodes for way in _ways(module, node)), default=None)


def _comes_before(way: _Way | None, started: _Way | None) -> bool:
    return way is not None and (started is None or way < started)


#: Ends the exchange of the passes so far, or changes how many there are.
_SYNCHRONIZES = re.compile(r"\.synchronize\(|set_backward_passes_per_step")


def single_pass_optimizers(module: Module) -> Iterator[Claim]:
    """Yield optimizers of Horovod and BytePS that take one backward pass a step."""
    for call in module.named("DistributedOptimizer"):
        if not module.called(call).startswith(("horovod.torch", "byteps.torch")):
            continue
        passes = argument(call, "backward_passes_per_step", 3)
        open_ended = any(each.arg is None for each in call.keywords)
        one = passes is None or module.fold(value_of(passes)) == Known(1)
        if one and not open_ended and _SYNCHRONIZES.search(module.file.text) is None:
            yield module.feature("optimizer_of_one_pass", call)


def repeated_passes(module: Module) -> Iterator[Claim]:
    """Yield the first of several backward passes before one step of an optimizer."""
    if _SYNCHRONIZES.search(module.file.text) is not None:
        return
    for step in module.named("step"):
        owner = step.args[0] if step.args and "scaler" in module.called(step) else step.func
        if "opt" not in module.text(owner).lower() or (owner is step.func and step.args):
            continue
        function = module.outline.function_of(step)
        for backward in module.named("backward"):
            if module.outline.function_of(backward) is not function:
                continue
            times = _passes(module, backward, step)
            if times is not None and times != Known(1):
                certain = all(isinstance(item, int) and item > 1 for item in alternatives(times) or (0,))
                condition = "" if certain else "if there are several passes"
                yield module.feature("backward_repeated", backward, step, condition=condition)
                return


def _passes(module: Module, backward: ast.Call, step: ast.Call) -> Value | None:
    """Return how many backward passes lead to a step; None where there is one, or they are not in one place."""
    around, above = list(module.outline.above(step)), list(module.outline.above(backward))
    shared = next((node for node in above if any(node is other for other in around)), None)
    inner = above[: next((n for n, node in enumerate(above) if node is shared), 0)]
    outer = around[: next((n for n, node in enumerate(around) if node is shared), 0)]
    loops = [node for node in inner if isinstance(node, (ast.For, ast.While))]
    if len(loops) == 1 and backward.lineno < step.lineno and not any(isinstance(node, ast.If) for node in inner):
        return _rounds(module, loops[0])
    branches = [node for node in outer if isinstance(node, ast.If)]
    in_loop = isinstance(shared, (ast.For, ast.While))
    if not loops and in_loop and len(branches) == 1 and not any(isinstance(node, ast.If) for node in inner):
        every = [n for n in ast.walk(branches[0].test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
        return module.fold(every[0].right) if len(every) == 1 and not isinstance(branches[0].test, ast.BoolOp) else None
    return None


def _rounds(module: Module, loop: ast.For | ast.While) -> Value:
    """Return how often a loop runs, as far as `range(4)` shows it."""
    counted = loop.iter if isinstance(loop, ast.For) else None
    if isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1:
        return module.fold(counted.args[0])
    listed = module.definition(counted) if counted is not None else None
    if isinstance(listed, (ast.List, ast.Tuple)) and not any(isinstance(each, ast.Starred) for each in listed.elts):
        return Known(len(listed.elts))
    return Unresolved("a number of rounds that is known only at run time")
