"""Features of a script that a framework refuses in company with others, or that make ranks wait for each other.

Each is stated as one claim, `script_feature`, at the place that shows it. Rules know which of them exclude each other,
together with settings of files and command lines (`data/combinations.toml` of the rules). A feature alone is fine.

Sources: torch/utils/data/dataloader.py, torch/nn/parallel/distributed.py, torch/distributed/fsdp/_flat_param.py,
torch/utils/checkpoint.py, torch/amp/grad_scaler.py (2.9); multiprocessing/spawn.py (Python 3.12);
paddle/distributed/spawn.py, paddle/io/reader.py (3.2); accelerate/launchers.py (1.10: notebook_launcher).
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from preflight._util.budget import spend
from preflight.model.job import Claim, Known, alternatives
from preflight.sources.python.collectives import is_collective
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import (
    SPAWNS,
    Module,
    argument,
    exclude_each_other,
    is_none,
    last,
    place_of,
    places_given,
    value_of,
)
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, ranks_of, ranks_where_true, variable_read

_LOADERS = ("DataLoader", "StatefulDataLoader", "WebLoader")
#: Base classes of data that can only be iterated; torch's pipes accept `shuffle`.
_STREAMS = frozenset(("IterableDataset", "IterDataPipe"))
#: Methods that pass such data on.
_PASSED_ON = frozenset(
    ("shuffle", "decode", "to_tuple", "map", "filter", "with_format", "batched", "map_tuple", "select_columns", "take")
)
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_OPTIMIZER = re.compile(r"(?:\w*Adam\w*|SGD|Momentum|Lion|Adagrad|RMSprop|Adafactor|LAMB|Lamb|Muon)(?:8bit)?")
#: Base classes of models that use no layer themselves.
_MODULE_BASES = frozenset(("Module", "Layer", "LightningModule"))
_HALF = frozenset(("torch.float16", "torch.half", "float16", "fp16"))
#: A layer with parameters, by the last name of the call that makes it.
_LAYER = re.compile(
    r"Linear|Conv[123][dD](?:Transpose)?|Embedding|LSTM|GRU|LayerNorm|BatchNorm[123]?[dD]?|Transformer\w+"
)
#: Code that reaches layers without naming them.
_UNNAMED_ACCESS = re.compile(r"getattr\(|children\(|_modules|modules\(|sublayers\(|__dict__|named_parameters\(")
#: Settings of DDP that spare it the search for unused parameters, made after its constructor.
_STATIC = re.compile(r"_set_static_graph|_params_and_buffers_to_ignore")
#: Attributes of a module that change none of its layers.
_HARMLESS = frozenset(
    (
        "cuda",
        "eval",
        "float",
        "load_state_dict",
        "module",
        "named_parameters",
        "parameters",
        "state_dict",
        "to",
        "train",
    )
)
_BUFFERS = re.compile(r"BatchNorm|InstanceNorm|register_buffer|resnet|ResNet|mobilenet|efficientnet|densenet|vgg16_bn")
#: A policy that gives the adapters units of their own.
_NAMES_ADAPTERS = re.compile(r"lora|peft|adapter", re.IGNORECASE)
_USES_CUDA = re.compile(r"torch\.cuda\.(?!is_available|device_count|is_initialized|amp|get_arch|FloatTensor)\w+")
_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
_OTHER_RANKS = (RankSet.OTHERS, RankSet.LOCAL_OTHERS)
#: Stands for any function in a set of names.
_ANY = "*"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SPAWNING = (Known("spawn"), Known("forkserver"))
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_AGREED = re.compile(r"reduce|gather|broadcast|sync|mean_across|average_over", re.IGNORECASE)
#: Functions that call functions are followed to this depth.
_MAX_DEPTH = 4


def claims(module: Module) -> Iterator[Claim]:
    """Every feature of a script."""
    text = module.file.text
    for words, reader in _READERS:
        if any(word in text for word in words):
            yield from reader(module)


def notebook_claims(module: Module) -> Iterator[Claim]:
    """Features that only the cells of a notebook can have."""
    for call in module.named("spawn", "start_processes"):
        target = call.args[0] if call.args else None
        starts = module.called(call) in SPAWNS and not _forks(module, call)
        if starts and isinstance(target, ast.Name) and module.outline.functions(target.id):
            yield _feature(module, "spawned_in_notebook", call)
    for call in module.named("notebook_launcher"):
        count = argument(call, "num_processes", 2)
        if count is not None and module.fold(value_of(count)) == Known(1):
            continue
        earlier = _gpu_use_before(module, call)
        if earlier is not None:
            yield _feature(module, "gpu_used_before_notebook_launcher", call, earlier)


def _feature(module: Module, name: str, at: ast.AST, *others: ast.AST, condition: str | None = None) -> Claim:
    because = tuple(module.claim("script_feature", f"part of {name}", other, condition="") for other in others)
    return module.claim("script_feature", name, at, because=because, condition=condition)


def _gpu_use_before(module: Module, launcher: ast.Call) -> ast.AST | None:
    """The first use of a GPU, or the first Accelerator, that the cells make before the launcher is called."""
    for call in module.calls:
        if module.outline.function_of(call) is not None or call.lineno >= launcher.lineno + 1:
            continue
        name = module.called(call)
        moved = last(name) == "cuda" and isinstance(call.func, ast.Attribute) and not call.args
        given = argument(call, "device", 0) if last(name) == "to" else argument(call, "device")
        named = given is not None and any(
            isinstance(item, str) and item.startswith("cuda") for item in alternatives(module.fold(value_of(given)))
        )
        made = name.endswith("Accelerator") and name.startswith("accelerate")
        if call is not launcher and (moved or named or made or _USES_CUDA.fullmatch(name)):
            return call
    return None


def _forks(module: Module, call: ast.Call) -> bool:
    method = argument(call, "start_method", 5)
    return method is not None and module.fold(value_of(method)) != Known("spawn")


def _spawned_at_import(module: Module) -> Iterator[Claim]:
    """`mp.spawn` that runs while the module is imported, as it is again in every process that it starts."""
    for call in module.named("spawn", "start_processes"):
        if module.called(call) not in SPAWNS or _forks(module, call):
            continue
        if _runs_at_import(module, call):
            yield _feature(module, "spawned_at_import", call)


def _runs_at_import(module: Module, node: ast.AST, depth: int = 0) -> bool:
    spend()
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If) and "__name__" in module.text(outer.test):
            return False
        if isinstance(outer, (ast.ClassDef, ast.Lambda, ast.Try)):
            return False
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if outer.decorator_list or depth >= _MAX_DEPTH:
                return False
            callers = [call for call in module.outline.calls_named(outer.name) if isinstance(call.func, ast.Name)]
            return any(_runs_at_import(module, call, depth + 1) for call in callers)
    return True


def _loaders_passed_to_spawn(module: Module) -> Iterator[Claim]:
    """A loader among the arguments of Paddle's spawn: it holds a place, which cannot be pickled."""
    for call in module.named("spawn"):
        given = argument(call, "args", 1)
        if module.called(call) != "paddle.distributed.spawn" or given is None:
            continue
        items = value_of(given)
        for item in items.elts if isinstance(items, (ast.Tuple, ast.List)) else ():
            made = module.definition(item)
            if isinstance(made, ast.Call) and module.called(made) == "paddle.io.DataLoader":
                yield _feature(module, "loader_passed_to_spawn", call, made)
                break


def _streams(module: Module) -> Iterator[Claim]:
    """A sampler or `shuffle=True` for data that can only be iterated."""
    for call in module.named(*_LOADERS):
        data = argument(call, "dataset", 0)
        kind = _stream_kind(module, value_of(data)) if data is not None else ""
        if not kind:
            continue
        paddle = module.called(call).startswith("paddle")
        for name, position in (("sampler", 3), ("batch_sampler", 4)):
            given = argument(call, name, None if paddle else position)
            if given is not None and not is_none(value_of(given)):
                yield _feature(module, "sampler_of_stream", given, call)
        shuffled = argument(call, "shuffle", None if paddle else 2)
        if shuffled is not None and kind != "IterDataPipe" and module.fold(value_of(shuffled)) == Known(True):
            yield _feature(module, "shuffle_of_stream", shuffled, call)


def _stream_kind(module: Module, expression: ast.expr, depth: int = 0) -> str:
    """The base class of data that can only be iterated; empty for any other."""
    made = module.definition(expression)
    if not isinstance(made, ast.Call) or depth > _MAX_DEPTH:
        return ""
    short = last(module.called(made))
    streaming = argument(made, "streaming")
    if short == "load_dataset" and streaming is not None and module.fold(value_of(streaming)) == Known(True):
        return "IterableDataset"
    if short == "WebDataset":
        return "IterableDataset"
    if short == "IterableWrapper":
        return "IterDataPipe"
    for each in module.nodes(ast.ClassDef):
        if each.name == short:
            return next((end for base in each.bases if (end := last(module.name(base))) in _STREAMS), "")
    if isinstance(made.func, ast.Attribute) and made.func.attr in _PASSED_ON:
        return _stream_kind(module, made.func.value, depth + 1)
    return ""


def _fsdp_parameters(module: Module) -> Iterator[Claim]:
    """FSDP 1 that puts several parameters into one flat one, and adapters beside frozen weights."""
    for call in module.named("FullyShardedDataParallel"):
        if not module.called(call).startswith("torch.distributed.fsdp") or any(
            each.arg is None for each in call.keywords
        ):
            continue
        kept = argument(call, "use_orig_params")
        if kept is not None and module.fold(value_of(kept)) != Known(False):
            continue
        policy = argument(call, "auto_wrap_policy", 3)
        alone = policy is None or is_none(value_of(policy))
        for model in call.args[:1]:
            for name in filter(None, (_own_name(module, model), place_of(module, model))):
                yield _feature(module, f"flattened_{'whole' if alone else 'by_unit'}:{name}", call)
        if policy is not None and _names_adapters(module, value_of(policy)):
            yield _feature(module, "units_of_adapters", policy)


def _names_adapters(module: Module, policy: ast.expr) -> bool:
    """Whether a policy of units, or anything that is assigned to its name, mentions adapters."""
    assigned = [
        each.value
        for each in module.nodes(ast.Assign)
        if isinstance(policy, ast.Name) and any(dotted(target) == policy.id for target in each.targets)
    ]
    return any(_NAMES_ADAPTERS.search(module.source(each)) for each in (policy, *assigned))


def _own_name(module: Module, model: ast.expr) -> str:
    """A text that stands for one model of one file: its variable, or its line where it has none."""
    name = dotted(model) or module.bound_to(model) or f"line {model.lineno}"
    return f"{name} of {module.file.path}"


def _adapters(module: Module) -> Iterator[Claim]:
    for call in module.named("get_peft_model"):
        yield _feature(module, "adapters_added", call)
        for place in (_own_name(module, call), *(place for _, place in places_given(module, module.bound_to(call)))):
            yield _feature(module, f"adapters_added:{place}", call.func)
    for call in module.named("fsdp_auto_wrap_policy"):
        yield _feature(module, "units_of_adapters", call)
    # The trainer of transformers sets this policy itself, since 4.39.
    for call in module.named("Trainer", "SFTTrainer", "DPOTrainer"):
        yield _feature(module, "units_of_adapters_by_trainer", call)


def _four_bits(module: Module) -> Iterator[Claim]:
    """Weights that are loaded in 4 bits, and the type in which they are stored."""
    for call in module.named("BitsAndBytesConfig", "from_pretrained"):
        given = argument(call, "load_in_4bit")
        if given is not None and module.fold(value_of(given)) != Known(False):
            yield _feature(module, "loaded_in_4bit", given)
        if argument(call, "bnb_4bit_quant_storage") is not None or any(each.arg is None for each in call.keywords):
            yield _feature(module, "storage_of_4bit", call)


def _half_weights(module: Module) -> Iterator[Claim]:
    """Trained weights in float16, and a scaler of gradients, which unscales those in float32 only."""
    trained = _trained_names(module)
    for call in module.named("half"):
        if not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
            continue
        bound = module.bound_to(call)
        receiver = dotted(call.func.value)
        if (bound and bound in trained) or (receiver and receiver in trained):
            yield _feature(module, "trained_in_half", call)
    for call in module.named("from_pretrained"):
        given = argument(call, "torch_dtype") or argument(call, "dtype")
        if given is None or module.bound_to(call) not in trained:
            continue
        expression = value_of(given)
        found = {module.name(expression), *(str(item) for item in alternatives(module.fold(expression)))}
        if found & _HALF:
            yield _feature(module, "trained_in_half", given)
    for call in module.named("GradScaler"):
        enabled = argument(call, "enabled")
        if enabled is not None and module.fold(value_of(enabled)) != Known(True):
            continue
        name = module.bound_to(call)
        steps = [each for each in module.named("step") if name and dotted(each.func) == f"{name}.step"]
        if steps and module.called(call).startswith("torch."):
            yield _feature(module, "gradients_unscaled", call, steps[0])
    for call in module.named("Trainer"):
        given = argument(call, "precision")
        if given is not None and any(
            str(item) in ("16", "16-mixed") for item in alternatives(module.fold(value_of(given)))
        ):
            yield _feature(module, "gradients_unscaled", given)


def _trained_names(module: Module) -> frozenset[str]:
    """Variables whose parameters an optimizer takes, or that a trainer trains."""
    found: set[str] = set()
    for call in module.calls:
        short = last(module.called(call))
        if _OPTIMIZER.fullmatch(short):
            for given in (
                *call.args[:1],
                *(each.value for each in call.keywords if each.arg in ("params", "parameters")),
            ):
                if (
                    isinstance(given, ast.Call)
                    and isinstance(given.func, ast.Attribute)
                    and given.func.attr == "parameters"
                ):
                    found.add(dotted(given.func.value))
        elif short == "fit" or short.endswith("Trainer"):
            model = argument(call, "model", 0)
            if model is not None:
                found.add(dotted(value_of(model)))
    return frozenset(found - {""})


def _reentrant_checkpoints(module: Module) -> Iterator[Claim]:
    for call in module.named("checkpoint", "checkpoint_sequential"):
        if not module.called(call).startswith("torch.utils.checkpoint."):
            continue
        again = argument(call, "use_reentrant")
        if again is None or module.fold(value_of(again)) == Known(True):
            yield _feature(module, "reentrant_checkpoint", call)
            return
    # transformers' own method, whose checkpoints reenter unless it is told otherwise.
    for call in module.named("gradient_checkpointing_enable"):
        if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
            yield _feature(module, "reentrant_checkpoint_of_transformers", call)
            return


def _unused_searched(module: Module) -> Iterator[Claim]:
    for call in module.named(
        "DistributedDataParallel", "DistributedDataParallelKwargs", "DDPStrategy", "MMDistributedDataParallel"
    ):
        searched = argument(call, "find_unused_parameters")
        if searched is None or module.fold(value_of(searched)) != Known(True):
            continue
        static = argument(call, "static_graph")
        if static is not None and module.fold(value_of(static)) != Known(False):
            continue
        if not any(True for _ in module.named("_set_static_graph")):
            yield _feature(module, "unused_searched", searched)


def _own_layers(module: Module) -> Iterator[Claim]:
    """A backward pass of its own, which Paddle's DataParallel of older releases does not exchange."""
    own = {
        each.name for each in module.nodes(ast.ClassDef) if any(last(module.name(b)) == "PyLayer" for b in each.bases)
    }
    for call in module.named("apply"):
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) in own:
            yield _feature(module, "own_backward", call)
            break


def _paddle_wrapped(module: Module) -> Iterator[Claim]:
    for call in module.named("DataParallel"):
        if module.called(call).startswith("paddle"):
            yield _feature(module, "paddle_data_parallel", call)


def _left_out_layers(module: Module) -> Iterator[Claim]:
    """A layer with parameters that nothing in the file uses, in a model that is wrapped without a search for such."""
    classes = {each.name: each for each in module.nodes(ast.ClassDef)}
    bases = {last(module.name(base)) for each in classes.values() for base in each.bases}
    for call in module.named(*_WRAPPERS):
        name = module.called(call)
        if not (name.startswith("paddle") or last(name) == "DistributedDataParallel") or not call.args:
            continue
        searched = argument(call, "find_unused_parameters")
        if searched is not None or any(each.arg is None for each in call.keywords):
            continue
        if _STATIC.search(module.file.text):
            return
        made = _constructor(module, call.args[0])
        model = classes.get(last(module.called(made))) if made is not None else None
        if made is not None and model is None and "." in module.called(made):
            if "requires_grad" in module.file.text:
                continue
            where = ".".join(module.called(made).split(".")[-2:])
            condition = f"{module.bound_to(made)} is changed" if _is_changed(module, made) else None
            yield _feature(module, f"wrapped_class:{where}", call, condition=condition)
        if model is None or model.name in bases:
            continue
        left_out = _left_out_of(module, model)
        if left_out is not None:
            yield _feature(module, "layer_left_out", left_out, call)
            return


def _is_changed(module: Module, made: ast.Call) -> bool:
    """Whether the script does more to a model than every module allows: `net.head = Identity()`."""
    name = module.bound_to(made)
    if not name:
        return False
    used = any(
        dotted(node.value) == name and (isinstance(node.ctx, ast.Store) or node.attr not in _HARMLESS)
        for node in module.nodes(ast.Attribute)
    )
    return used or any(
        last(module.called(call)) not in (*_WRAPPERS, "print") and any(dotted(item) == name for item in call.args)
        for call in module.calls
    )


def _left_out_of_classes(module: Module) -> Iterator[Claim]:
    """A layer with parameters that nothing in the file uses, in a model that another file may wrap."""
    classes = module.nodes(ast.ClassDef)
    bases = {last(module.name(base)) for each in classes for base in each.bases}
    stem = PurePosixPath(module.file.path).stem
    for model in classes:
        left_out = _left_out_of(module, model) if model.name not in bases else None
        if left_out is not None:
            yield _feature(module, f"layer_left_out_of:{stem}.{model.name}", left_out)


def _left_out_of(module: Module, model: ast.ClassDef) -> ast.Assign | None:
    """The first layer of a model that the file names only where it is made."""
    own = {each.name for each in module.nodes(ast.ClassDef)}
    bases = {last(module.name(base)) for base in model.bases}
    # A class of another file may use the layers that it finds.
    if _UNNAMED_ACCESS.search(module.file.text) or not bases <= own | _MODULE_BASES:
        return None
    for assigned in _layers(module, model):
        target = assigned.targets[0]
        if isinstance(target, ast.Attribute):
            uses = re.findall(rf"\.{re.escape(target.attr)}\b", module.file.text)
            if len(uses) == 1 and f'"{target.attr}' not in module.file.text:
                return assigned
    return None


def _constructor(module: Module, expression: ast.expr, depth: int = 0) -> ast.Call | None:
    """The call that makes a model: `Net()` in `Net().cuda()`, or what a name is assigned once."""
    made = module.definition(expression)
    if not isinstance(made, ast.Call) or depth > _MAX_DEPTH:
        return None
    if isinstance(made.func, ast.Attribute) and made.func.attr in ("cuda", "to", "train", "float"):
        return _constructor(module, made.func.value, depth + 1)
    return made


def _layers(module: Module, model: ast.ClassDef) -> Iterator[ast.Assign]:
    """The assignments of layers in the constructor of a model."""
    for function in model.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
            continue
        for statement in function.body:
            if (
                isinstance(statement, ast.Assign)
                and len(statement.targets) == 1
                and isinstance(statement.targets[0], ast.Attribute)
                and isinstance(statement.value, ast.Call)
                and _LAYER.fullmatch(last(module.called(statement.value)))
            ):
                yield statement


#: Names of what was saved during training.
_CHECKPOINT = re.compile(r"ckpt|check_?point|resum|model|weight|state|snapshot|optim|load_from|net\b", re.IGNORECASE)


def _loads(module: Module) -> Iterator[Claim]:
    """`torch.load` that puts tensors back on the GPU from which they were saved."""
    if "map_location" not in module.file.text:
        for call in module.named("load"):
            # Data sets are rarely saved from a GPU.
            name, parent = module.bound_to(call), module.parent(call)
            given_to = dotted(parent.func) if isinstance(parent, ast.Call) else ""
            restored = bool(name) and f"load_state_dict({name}" in module.file.text
            of_model = restored or _CHECKPOINT.search(f"{name} {given_to} {module.text(call)}")
            if module.called(call) == "torch.load" and len(call.args) == 1 and of_model:
                yield _feature(module, "loaded_where_saved", call)
                return


def _local_plateaus(module: Module) -> Iterator[Claim]:
    """A learning rate that each rank lowers by the loss of its own batch."""
    losses = {dotted(each.func.value) for each in module.named("backward") if isinstance(each.func, ast.Attribute)} - {
        ""
    }
    for call in module.named("ReduceOnPlateau", "ReduceLROnPlateau"):
        name = module.bound_to(call)
        for step in module.named("step") if name else ():
            if dotted(step.func) != f"{name}.step" or not step.args:
                continue
            value = (
                step.args[0].func.value
                if isinstance(step.args[0], ast.Call) and isinstance(step.args[0].func, ast.Attribute)
                else step.args[0]
            )
            if dotted(value) in losses and not _is_agreed(module, dotted(value)):
                yield _feature(module, "plateau_of_own_loss", step, call)


def _is_agreed(module: Module, name: str) -> bool:
    return any(
        _AGREED.search(last(module.called(call))) and any(dotted(item) == name for item in call.args)
        for call in module.calls
    )


def _forward_on_one_rank(module: Module) -> Iterator[Claim]:
    """A wrapped model that one rank calls alone: its forward pass exchanges the model's buffers."""
    wrappers = module.named("DistributedDataParallel")
    wrapped = {module.bound_to(call) for call in wrappers} - {""}
    if not wrapped or any(argument(call, "broadcast_buffers") is not None for call in wrappers):
        return
    buffers = _BUFFERS.search(module.file.text) is not None
    for call in module.calls:
        guard = ranks_of(module).inside(call)
        if guard.who not in _FIRST_RANKS or guard.test is None or isinstance(guard.test, ast.BoolOp):
            continue
        called = dotted(call.func) in wrapped
        passed = isinstance(call.func, ast.Name) and any(
            dotted(item) in wrapped and _calls_argument(module, call.func.id, index)
            for index, item in enumerate(call.args)
        )
        within = dotted(call.func).startswith("self.") and any(
            dotted(inner.func) in wrapped
            for function in module.outline.functions(last(dotted(call.func)))
            for inner in module.outline.calls_in(function)
        )
        if (called or passed or within) and not _others_call_too(module, guard.test, wrapped):
            if not buffers and all(_is_of_own_class(module, wrapper) for wrapper in wrappers):
                return
            name = "forward_on_one_rank_with_buffers" if buffers else "forward_on_one_rank"
            yield _feature(module, name, call, guard.test, condition="")
            return


def _is_of_own_class(module: Module, wrapper: ast.Call) -> bool:
    """Whether the wrapped model is made of a class of this file, whose layers can be seen here."""
    made = _constructor(module, wrapper.args[0]) if wrapper.args else None
    name = last(module.called(made)) if made is not None else ""
    return any(each.name == name for each in module.nodes(ast.ClassDef))


def _calls_argument(module: Module, name: str, index: int) -> bool:
    """Whether a function of the script calls its argument at this position."""
    for function in module.outline.functions(name):
        if index < len(function.args.args):
            given = function.args.args[index].arg
            if any(
                isinstance(call.func, ast.Name) and call.func.id == given for call in module.outline.calls_in(function)
            ):
                return True
    return False


def _others_call_too(module: Module, test: ast.expr, names: set[str]) -> bool:
    branch = module.parent(test)
    otherwise = branch.orelse if isinstance(branch, ast.If) else []
    return any(
        isinstance(node, ast.Call) and (dotted(node.func) in names or any(dotted(item) in names for item in node.args))
        for statement in otherwise
        for node in ast.walk(statement)
    )


def _skipped_collectives(module: Module) -> Iterator[Claim]:
    """`continue` of one rank in a loop in which the others come to a collective."""
    left: list[ast.stmt] = [*module.nodes(ast.Continue), *module.nodes(ast.Break)]
    for node in left:
        guard = ranks_of(module).inside(node)
        if guard.who not in (*_FIRST_RANKS, *_OTHER_RANKS) or guard.test is None or isinstance(guard.test, ast.BoolOp):
            continue
        branch = module.parent(guard.test)
        outer = list(module.outline.above(node))
        loop = next((each for each in outer if isinstance(each, _LOOPS)), None)
        if not isinstance(branch, ast.If) or loop is None or not any(branch is each for each in outer):
            continue
        # A loop inside the branch ends for the rank that is in it; the others are not in that loop.
        if not any(loop is each for each in module.outline.above(branch)):
            continue
        for statement in module.outline.following(branch):
            for call in ast.walk(statement):
                if (
                    isinstance(call, ast.Call)
                    and is_collective(module, call)
                    and ranks_of(module).inside(call).who is RankSet.ALL
                ):
                    yield _feature(module, "rank_skips_collective", node, call, condition="")
                    return


def _functions_on_one_rank(module: Module) -> Iterator[Claim]:
    """A function that contains a collective, called where only one rank comes."""
    holders: dict[str, ast.Call] = {}
    functions: list[Function] = [*module.nodes(ast.FunctionDef), *module.nodes(ast.AsyncFunctionDef)]
    for function in functions:
        call = _collective_of(module, function)
        if call is not None:
            holders[function.name] = call
            stem = PurePosixPath(module.file.path).stem
            yield module.claim("script_feature", f"collective_in:{stem}.{function.name}", call, condition="")
    calls_of_others = functools.cache(functools.partial(_calls_of_others, module))
    imported = 0
    for call in module.calls:
        if not isinstance(call.func, ast.Name):
            continue
        guard = ranks_of(module).inside(call)
        if guard.who not in _FIRST_RANKS or guard.test is None or _has_other_branch(module, guard.test):
            continue
        if isinstance(guard.test, ast.BoolOp) and not isinstance(guard.test.op, ast.And):
            continue
        name = call.func.id
        # The other ranks may call the same function, or come to a collective of their own.
        if calls_of_others(module.outline.function_of(call)) & {_ANY, module.called(call)}:
            continue
        if name in holders:
            yield _feature(module, "collective_called_on_one_rank", call, holders[name], condition="")
        elif "." in module.called(call) and imported < 8:
            imported += 1
            where = ".".join(module.called(call).split(".")[-2:])
            yield module.claim("script_feature", f"called_on_one_rank:{where}", call, condition="")


def _calls_of_others(module: Module, function: Function | None) -> frozenset[str]:
    """What ranks other than the first call in a function, where a collective counts as any function."""
    others = [c for c in module.outline.calls_in(function) if ranks_of(module).inside(c).who in _OTHER_RANKS]
    return frozenset(_ANY if is_collective(module, call) else module.called(call) for call in others)


def _has_other_branch(module: Module, test: ast.expr) -> bool:
    branch = module.parent(test)
    while isinstance(branch, ast.BoolOp):
        branch = module.parent(branch)
    return isinstance(branch, ast.If) and bool(branch.orelse)


def _collective_of(module: Module, function: Function, depth: int = 0) -> ast.Call | None:
    """A collective that the first rank comes to whenever it calls a function; None if that is not certain."""
    spend()
    for call in module.outline.calls_in(function):
        if is_collective(module, call):
            tests = [outer for outer in module.outline.above(call) if isinstance(outer, ast.If)]
            certain = all(_is_of_first(module, outer, call) for outer in tests)
            blocked = any(
                isinstance(outer, (ast.Try, ast.While, ast.Lambda, ast.IfExp)) for outer in module.outline.above(call)
            )
            if certain and not blocked:
                return call
        elif isinstance(call.func, ast.Name) and depth < _MAX_DEPTH and not module.condition(call):
            for inner in module.outline.functions(call.func.id):
                if inner is not function:
                    found = _collective_of(module, inner, depth + 1)
                    if found is not None:
                        return found
    return None


def _is_of_first(module: Module, branch: ast.If, call: ast.Call) -> bool:
    """Whether the first rank takes a branch: it is `rank == 0`, or asks whether there is a group at all."""
    if module.outline.is_else(call) or isinstance(branch.test, ast.BoolOp):
        return False
    if ranks_where_true(module, branch.test) in _FIRST_RANKS:
        return True
    return last(dotted(branch.test.func)) == "is_initialized" if isinstance(branch.test, ast.Call) else False


def _returns_by_file(module: Module) -> Iterator[Claim]:
    """A rank that does not see a file leaves, and a collective follows for those that do."""
    for branch in module.nodes(ast.If):
        if branch.orelse or not isinstance(branch.body[-1], (ast.Return, ast.Continue, ast.Break)):
            continue
        asked = next(
            (call for call in ast.walk(branch.test) if isinstance(call, ast.Call) and _asks_for_file(module, call)),
            None,
        )
        function = module.outline.function_of(branch)
        if asked is None or function is None or isinstance(branch.test, ast.BoolOp):
            continue
        for statement in module.outline.following(branch):
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and is_collective(module, call) and not module.condition(call):
                    yield _feature(module, "return_by_file_before_collective", branch.test, call, condition="")
                    return


def _asks_for_file(module: Module, call: ast.Call) -> bool:
    name = module.called(call)
    return name in ("os.path.exists", "os.path.isfile", "os.path.isdir") or (
        last(name) in ("is_file", "exists", "is_dir") and not call.args and isinstance(call.func, ast.Attribute)
    )


def _frozen_while_training(module: Module) -> Iterator[Claim]:
    """Parameters that are frozen in the forward pass or in the training loop, after DDP counted them."""
    changed: list[ast.AST] = [
        call
        for call in module.named("requires_grad_")
        if (given := argument(call, "requires_grad", 0)) is not None
        and module.fold(value_of(given)) == Known(False)
        # A copy for evaluation or a snapshot is not what DDP wraps.
        and not any(isinstance(each, ast.Call) and last(module.called(each)) == "deepcopy" for each in ast.walk(call))
    ]
    for assigned in module.nodes(ast.Assign):
        target = assigned.targets[0]
        if (
            isinstance(target, ast.Attribute)
            and target.attr == "requires_grad"
            and module.fold(assigned.value) == Known(False)
            and not _is_parameter(module, target.value)
        ):
            changed.append(assigned)
    for node in changed:
        function = module.outline.function_of(node)
        in_forward = function is not None and function.name == "forward"
        if in_forward or _in_training_loop(module, node):
            yield _feature(module, "frozen_while_training", node, condition="")
            return


def _is_parameter(module: Module, expression: ast.expr) -> bool:
    """Whether this is what a function is given, such as the target of a loss."""
    function = module.outline.function_of(expression)
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs] if function is not None else []
    return isinstance(expression, ast.Name) and any(each.arg == expression.id for each in given)


def _in_training_loop(module: Module, node: ast.AST) -> bool:
    """Whether a node is under a condition in a loop that also runs a backward pass."""
    outer = list(module.outline.above(node))
    loops = [each for each in outer if isinstance(each, _LOOPS)]
    conditional = any(isinstance(each, ast.If) for each in outer)
    return conditional and any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        for loop in loops
        for call in ast.walk(loop)
    )


def _ddp_without_search(module: Module) -> Iterator[Claim]:
    """A wrapper that waits for the gradient of every parameter that needed one when it was made."""
    for call in module.named("DistributedDataParallel"):
        given = [argument(call, name) for name in ("find_unused_parameters", "static_graph")]
        if not any(given) and all(each.arg for each in call.keywords):
            yield _feature(module, "ddp_without_search", call)
            return


def _accumulation(module: Module) -> Iterator[Claim]:
    """Accelerate's own accumulation, which skips the exchange of gradients by the model's `no_sync`."""
    for call in module.named("accumulate"):
        if isinstance(call.func, ast.Attribute) and "accelerator" in dotted(call.func).lower():
            yield _feature(module, "accumulated_by_accelerate", call)
            return


def _own_fsdp_state(module: Module) -> Iterator[Claim]:
    """The state of an optimizer that FSDP divided, asked for on one rank."""
    for call in module.named("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"):
        guard = ranks_of(module).guard_of(call)
        if guard.who in _FIRST_RANKS and guard.test is not None and not isinstance(guard.test, ast.BoolOp):
            yield _feature(module, "divided_state_on_one_rank", call, guard.test, condition="")
            return
        function = module.outline.function_of(call)
        for caller in module.outline.calls_named(function.name) if function is not None else ():
            if function is None or dotted(caller.func) not in (function.name, f"self.{function.name}"):
                # `torch.save` is no call of the script's own `save`.
                continue
            outer = ranks_of(module).inside(caller)
            if outer.who in _FIRST_RANKS and outer.test is not None and not _has_other_branch(module, outer.test):
                yield _feature(module, "divided_state_on_one_rank", caller, call, condition="")
                return


def _shuffled_beside_sampler(module: Module) -> Iterator[Claim]:
    """`shuffle=True` in a loader that gets a sampler in a distributed run and None in any other."""
    for call in module.named(*_LOADERS):
        # Under a condition it may be the branch without a sampler.
        if not module.called(call).startswith("torch.") or module.condition(call):
            continue
        shuffled, given = argument(call, "shuffle", 2), argument(call, "sampler", 3)
        if shuffled is None or given is None or module.fold(value_of(shuffled)) != Known(True):
            continue
        made = list(_values(module, value_of(given)))
        samplers = [
            each for each in made if isinstance(each, ast.Call) and last(module.called(each)).endswith("Sampler")
        ]
        # One that is certainly given is a claim about the loader itself (data_loaders.py).
        if 0 < len(samplers) < len(made) and all("Distributed" in module.called(each) for each in samplers):
            yield _feature(module, "shuffled_beside_sampler_of_ranks", shuffled, samplers[0])


def _values(module: Module, expression: ast.expr) -> Iterator[ast.expr]:
    """What a name or a conditional expression may be: each value that its function assigns to it."""
    if isinstance(expression, ast.IfExp):
        yield from _values(module, expression.body)
        yield from _values(module, expression.orelse)
        return
    name = dotted(expression)
    assigned = module.outline.assignments(module.outline.function_of(expression)).get(name, []) if name else []
    for each in assigned or [expression]:
        if isinstance(each, ast.IfExp):
            yield from (each.body, each.orelse)
        else:
            yield each


def _unpicklable(module: Module) -> Iterator[Claim]:
    """A lambda or a local function that has to be pickled for a process that is spawned."""
    for call in module.named("spawn", "start_processes"):
        given = argument(call, "args", 1)
        if module.called(call) not in SPAWNS or _forks(module, call):
            continue
        items = value_of(given) if given is not None else None
        for item in (*call.args[:1], *(items.elts if isinstance(items, (ast.Tuple, ast.List)) else ())):
            if _is_local_function(module, item):
                yield _feature(module, "unpicklable_for_spawn", item)
                return
    spawning = any(
        call.args and module.fold(call.args[0]) in _SPAWNING and not module.condition(call)
        for call in module.named("set_start_method")
    )
    for call in module.named(*_LOADERS):
        workers, context = argument(call, "num_workers", 5), argument(call, "multiprocessing_context")
        named = context is not None and module.fold(value_of(context)) in _SPAWNING
        if workers is None or not (named or (context is None and (spawning or _is_in_spawned(module, call)))):
            continue
        count = module.fold(value_of(workers))
        if count == Known(0):
            continue
        condition = None if isinstance(count, Known) else f"{module.text(value_of(workers))} is not 0"
        for name in ("worker_init_fn", "collate_fn"):
            given = argument(call, name)
            if given is not None and any(_is_local_function(module, each) for each in _passed(module, value_of(given))):
                yield _feature(module, "unpicklable_for_worker", given, call, condition=condition)
                return


def _is_in_spawned(module: Module, node: ast.AST) -> bool:
    """Whether a spawned process comes here, which starts its own processes in the same way."""
    around = {each.name for each in module.outline.above(node) if isinstance(each, _FUNCTIONS)}
    return any(
        module.called(call) in SPAWNS and call.args and dotted(call.args[0]) in around and not _forks(module, call)
        for call in module.named("spawn", "start_processes")
    )


def _passed(module: Module, expression: ast.expr) -> Iterator[ast.expr]:
    """An expression; for a parameter, what the calls of its function give it."""
    yield expression
    function = module.outline.function_of(expression)
    if not isinstance(expression, ast.Name) or function is None:
        return
    names = [each.arg for each in function.args.args]
    if expression.id in names:
        for call in module.outline.calls_named(function.name):
            given = argument(call, expression.id, names.index(expression.id))
            if given is not None:
                yield value_of(given)


def _is_local_function(module: Module, expression: ast.expr) -> bool:
    """A lambda, or a function that is defined in another function."""
    if isinstance(module.definition(expression), ast.Lambda):
        return True
    if not isinstance(expression, ast.Name):
        return False
    found = module.outline.functions(expression.id)
    around = [each for each in module.outline.above(expression) if isinstance(each, _FUNCTIONS)]
    given = {each.arg for function in around for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return len(found) == 1 and module.parent(found[0]) in around and expression.id not in given


def _deepspeed_parts(module: Module) -> Iterator[Claim]:
    """An optimizer of the program that DeepSpeed gets, and layers of experts."""
    for call in module.named("initialize"):
        given = argument(call, "optimizer", 2)
        if module.called(call) != "deepspeed.initialize" or given is None:
            continue
        if "DeepSpeedCPUAdam" in module.file.text:
            # The script chooses by whether it offloads.
            continue
        made = _latest(module, value_of(given), call)
        name = module.called(made) if isinstance(made, ast.Call) else ""
        known = re.match(r"(?:torch\.optim|transformers|bitsandbytes|apex)\.", name) and _OPTIMIZER.fullmatch(
            last(name)
        )
        if (known or name.endswith(".FusedAdam")) and not module.condition(made):
            yield _feature(module, "optimizer_of_program", given, made, condition=_call_condition(module, call))
    for call in module.named("MoE"):
        if module.called(call).startswith("deepspeed."):
            condition = None if _is_constructed(module, call) else "the layer is made"
            yield _feature(module, "experts_of_deepspeed", call, condition=condition)
            return


def _call_condition(module: Module, call: ast.Call) -> str:
    """The branches around a call, or around the calls in this file of the function that it is in."""
    function = module.outline.function_of(call)
    callers = module.outline.calls_named(function.name) if function is not None else ()
    return module.condition(call) or next((found for each in callers if (found := module.condition(each))), "")


def _is_constructed(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether a node is always reached, also in the constructor of a class of which the script makes an object."""
    function = module.outline.function_of(node)
    owner = module.parent(function) if function is not None else None
    if not isinstance(owner, ast.ClassDef) or function is None or function.name != "__init__" or depth > _MAX_DEPTH:
        return always_reached(module, node)
    calls = [call for call in module.outline.calls_named(owner.name) if isinstance(call.func, ast.Name)]
    return not module.condition(node) and any(_is_constructed(module, call, depth + 1) for call in calls)


def _latest(module: Module, expression: ast.expr, before: ast.AST) -> ast.expr:
    """The value that a name has at a node: the last one that its function assigns to it in an earlier line."""
    name = dotted(expression)
    values = module.outline.assignments(module.outline.function_of(before)).get(name, []) if name else []
    line = getattr(before, "lineno", 0)
    earlier = [value for value in values if value.lineno < line and value is not before]
    return max(earlier, key=lambda value: value.lineno, default=module.definition(expression))


def _distributed_if_several(module: Module) -> Iterator[Claim]:
    """A program that joins ranks where a launcher has started several, and runs alone otherwise."""
    for call in module.named("init_parallel_env", "init_process_group"):
        condition = module.condition(call)
        if re.search(r"Process\(|spawn\(|device_ids|\bnn\.DataParallel\(", module.file.text):
            # The script starts the other processes, or uses the other cards, itself.
            return
        if condition and re.search(r"world_size|get_world_size|WORLD_SIZE|nranks|num_gpus|distributed", condition):
            yield _feature(module, "distributed_if_several", call, condition="")
            return


def _tuned_by_scaling(module: Module) -> Iterator[Claim]:
    """A trial of Ray Tune that gets the resources of a trainer, whose first bundle has no GPU."""
    for call in module.named("with_resources"):
        given = argument(call, "resources", 1)
        made = module.definition(value_of(given)) if given is not None else None
        if given is None or not isinstance(made, ast.Call) or last(module.called(made)) != "ScalingConfig":
            continue
        if not (isinstance(call.args[0], ast.Call) if call.args else False):
            yield _feature(module, "trial_of_scaling", call, made)


def _items_of_local_rank(module: Module) -> Iterator[Claim]:
    """A part of a sorted list of files that a rank chooses by its number on its node."""
    for node in module.nodes(ast.Subscript):
        index = dotted(node.slice) if isinstance(node.slice, (ast.Name, ast.Attribute)) else ""
        if not re.fullmatch(r"(?:\w+\.)*local_?rank", index, re.IGNORECASE) or not isinstance(node.ctx, ast.Load):
            continue
        listed = module.definition(node.value)
        if isinstance(listed, ast.Call) and last(module.called(listed)) in ("sorted", "glob", "listdir"):
            yield _feature(module, "file_of_local_rank", node)
            return


def _servers_before_mode(module: Module) -> Iterator[Claim]:
    """Paddle's servers, started in a program in which no distributed optimizer has chosen the way they work."""
    if re.search(r"minimize\(|distributed_optimizer|DistributeTranspiler|init_worker_by|ps_mode", module.file.text):
        return
    # Another file may build the model and its optimizer.
    if any(
        name.partition(".")[0] not in sys.stdlib_module_names | {"paddle", "numpy"}
        for name in (
            *(each.name for node in module.nodes(ast.Import) for each in node.names),
            *(node.module or "." for node in module.nodes(ast.ImportFrom)),
        )
    ):
        return
    for call in module.named("init_server", "run_server"):
        if dotted(call.func).startswith("fleet."):
            condition = module.condition(call)
            own = "" if condition in ("", "fleet.is_server()") else condition
            yield _feature(module, "servers_before_mode", call, condition=own)
            return


def _wrapped_twice(module: Module) -> Iterator[Claim]:
    """A model of Paddle that is wrapped in DataParallel and then sharded."""
    for call in module.named("group_sharded_parallel"):
        model = argument(call, "model", 0)
        for outer in module.named("DataParallel") if model is not None else ():
            name = dotted(value_of(model)) if model is not None else ""
            apart = exclude_each_other(module.condition(outer), module.condition(call))
            if name and module.bound_to(outer) == name and outer.lineno < call.lineno and not apart:
                yield _feature(module, "sharded_after_wrapping", call, outer)
                return


#: The readers, each with words of which a script must have one.
def _layers_of_one_rank(module: Module) -> Iterator[Claim]:
    """A layer that only some ranks add to the model: `if rank == 0: self.probe = nn.Linear(8, 1)`."""
    for node in module.nodes(ast.Assign):
        made = node.value
        if not isinstance(made, ast.Call) or not isinstance(node.targets[0], ast.Attribute):
            continue
        if _LAYER.fullmatch(last(module.called(made))) and ranks_of(module).guard_of(node).who in (
            *_FIRST_RANKS,
            *_OTHER_RANKS,
        ):
            yield _feature(module, "layer_of_some_ranks", node, condition="")


#: What fetches or unpacks data, and folders that each node has for itself.
_PREPARES = re.compile(r"extract(?:all|_archive)?|unpack_archive|\w*download\w*|urlretrieve|copytree|copy2?|copyfile")
_OWN_FOLDER = re.compile(
    r"/(?:tmp|var/tmp|dev/shm|local_?scratch|scratch/local|raid|nvme\w*|mnt/(?:nvme|local)\w*)(?:/|$)"
)


def _prepared_by_first_rank(module: Module) -> Iterator[Claim]:
    """Data that only rank 0 of the whole job puts into a folder which each node has for itself."""
    for call in module.calls:
        if not _PREPARES.fullmatch(last(module.called(call))):
            continue
        given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        values = [item for each in given for item in alternatives(module.fold(value_of(each)))]
        own = any(isinstance(item, str) and _OWN_FOLDER.match(item) for item in values)
        if own and ranks_of(module).guard_of(call).who is RankSet.FIRST:
            yield _feature(module, "prepared_by_first_rank", call, condition="")


def _forked_with_gpu(module: Module) -> Iterator[Claim]:
    """Processes that are forked after this one has used the GPU, and that use it themselves."""
    if re.search(r"[\"'](?:spawn|forkserver)[\"']", module.file.text):
        return
    for call in module.named("Process"):
        target = argument(call, "target", 1)
        functions = module.outline.functions(dotted(value_of(target))) if target is not None else ()
        earlier = _gpu_use_before(module, call)
        if earlier is not None and any(_uses_gpu(module, function) for function in functions):
            yield _feature(module, "forked_with_gpu", call, earlier)
            return


def _uses_gpu(module: Module, function: Function) -> bool:
    return any(
        last(module.called(call)) == "cuda" or _USES_CUDA.fullmatch(module.called(call))
        for call in module.outline.calls_in(function)
    )


def _kept_by_prepare_data(module: Module) -> Iterator[Claim]:
    """What `prepare_data` of Lightning keeps in the object, though one process of a node alone calls it."""
    for node in module.nodes(ast.Assign):
        function = module.outline.function_of(node)
        kept = [dotted(target) for target in node.targets if dotted(target).startswith("self.")]
        # `self.path = Path(self.path)` only converts what every rank has.
        kept = [
            name
            for name in kept
            if name not in {dotted(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
        ]
        if kept and function is not None and function.name == "prepare_data":
            yield _feature(module, "kept_by_prepare_data", node, condition="")


def _text_compared_with_number(module: Module) -> Iterator[Claim]:
    """`os.environ["RANK"] == 0`, which no text equals."""
    for node in module.nodes(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            continue
        name = variable_read(module, module.definition(node.left))
        other = node.comparators[0]
        number = isinstance(other, ast.Constant) and isinstance(other.value, int) and not isinstance(other.value, bool)
        if name is not None and "RANK" in name and number:
            yield _feature(module, "rank_text_compared_with_number", node, condition="")


def _steps_without_sync(module: Module) -> Iterator[Claim]:
    """A step of the optimizer inside `with model.no_sync()`, before the gradients were exchanged."""
    for block in module.nodes(ast.With):
        calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if not any(last(module.called(call)) == "no_sync" for call in calls):
            continue
        inside = (node for statement in block.body for node in ast.walk(statement) if isinstance(node, ast.Call))
        for call in inside:
            if end_of(call.func) == "step" and _OPTIMIZERS.search(dotted(call.func)):
                yield _feature(module, "step_without_sync", call, calls[0])
                break


#: Names of an optimizer whose step is made.
_OPTIMIZERS = re.compile(r"opt|adam|sgd|scaler", re.IGNORECASE)


def _loaded_by_first(module: Module) -> Iterator[Claim]:
    """A model that is loaded while the other ranks wait: `with accelerator.main_process_first():`."""
    for block in module.nodes(ast.With):
        entered = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if not any(_FIRST_BLOCK.search(last(module.called(call))) for call in entered):
            continue
        for statement in block.body:
            for call in ast.walk(statement):
                name = dotted(call.func) if isinstance(call, ast.Call) else ""
                if name.endswith(".from_pretrained") and _MODEL_CLASS.search(name):
                    yield _feature(module, "model_loaded_by_first_rank", call, entered[0], condition="")
                    return


_FIRST_BLOCK = re.compile(r"main_process_first$|zero_first$|rank_zero_first$")
_MODEL_CLASS = re.compile(r"Model(?:For\w+)?\.|For\w+\.from_pretrained$")


_READERS: tuple[tuple[tuple[str, ...], Callable[[Module], Iterable[Claim]]], ...] = (
    (("spawn", "start_processes"), _spawned_at_import),
    (("spawn",), _loaders_passed_to_spawn),
    (_LOADERS, _streams),
    (("FullyShardedDataParallel",), _fsdp_parameters),
    (("get_peft_model", "fsdp_auto_wrap_policy"), _adapters),
    (("load_in_4bit",), _four_bits),
    (("half()", "GradScaler", "float16", "precision"), _half_weights),
    (("checkpoint",), _reentrant_checkpoints),
    (("find_unused_parameters",), _unused_searched),
    (("PyLayer",), _own_layers),
    (("DataParallel",), _paddle_wrapped),
    (("DataParallel",), _left_out_layers),
    (("torch.load",), _loads),
    (("Plateau",), _local_plateaus),
    (("DistributedDataParallel",), _forward_on_one_rank),
    (("continue", "break"), _skipped_collectives),
    (("barrier", "reduce", "gather", "broadcast", "rank"), _functions_on_one_rank),
    (("is_file", "exists", "isfile", "is_dir", "isdir"), _returns_by_file),
    (("requires_grad",), _frozen_while_training),
    (("DistributedDataParallel",), _ddp_without_search),
    (("accumulate(",), _accumulation),
    (("optim_state_dict",), _own_fsdp_state),
    (("def forward(",), _left_out_of_classes),
    (("shuffle",), _shuffled_beside_sampler),
    (("lambda", "def "), _unpicklable),
    (("deepspeed",), _deepspeed_parts),
    (("init_parallel_env", "init_process_group"), _distributed_if_several),
    (("with_resources",), _tuned_by_scaling),
    (("local_rank", "localrank"), _items_of_local_rank),
    (("init_server",), _servers_before_mode),
    (("group_sharded_parallel",), _wrapped_twice),
    (("DataParallel", "fully_shard"), _layers_of_one_rank),
    (("Process(",), _forked_with_gpu),
    (("def prepare_data",), _kept_by_prepare_data),
    (("RANK",), _text_compared_with_number),
    (("no_sync",), _steps_without_sync),
    (("process_first", "zero_first"), _loaded_by_first),
    (("extract", "unpack", "download", "copy"), _prepared_by_first_rank),
)
