"""How a script makes, wraps and trains its model.

Sources: torch/nn/parallel/distributed.py, torch/distributed/fsdp/_flat_param.py, torch/utils/checkpoint.py,
torch/amp/grad_scaler.py (2.9).
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from preflight.model.job import Claim, Known, alternatives
from preflight.sources.base import SourceFile
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import (
    MAX_CALL_DEPTH,
    Module,
    argument,
    enclosing,
    is_implied,
    is_none,
    last,
    parse_silently,
    place_of,
    places_given,
    value_of,
)
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, is_of_rank, ranks_of
from preflight.sources.python.words import WORDS

_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_OPTIMIZER = re.compile(r"(?:\w*Adam\w*|SGD|Momentum|Lion|Adagrad|RMSprop|Adafactor|LAMB|Lamb|Muon)(?:8bit)?")
#: Base classes of models that use no layer themselves.
_MODULE_BASES = frozenset(("Module", "Layer", "LightningModule"))
_HALF = frozenset(("torch.float16", "torch.half", "float16", "fp16"))
#: A layer with parameters, by the last name of the call that makes it.
LAYER = re.compile(
    r"Linear|Conv[123][dD](?:Transpose)?|Embedding|LSTM|GRU|LayerNorm|BatchNorm[123]?[dD]?|Transformer\w+"
)
#: Code that reaches layers without naming them.
_UNNAMED_ACCESS = re.compile(r"getattr\(|children\(|_modules|modules\(|sublayers\(|__dict__|named_parameters\(")
#: Settings of DDP that spare it the search for unused parameters, made after its constructor.
_STATIC = re.compile(r"_set_static_graph|_params_and_buffers_to_ignore")
#: Attributes of a module that change none of its layers.
_HARMLESS = frozenset(WORDS["harmless_attributes"])
#: A policy that gives the adapters units of their own.
_NAMES_ADAPTERS = re.compile(r"lora|peft|adapter", re.IGNORECASE)
#: Policies of torch that give each layer a unit, whatever of it is frozen.
_BY_CLASS = re.compile(r"size_based_auto_wrap_policy|transformer_auto_wrap_policy|ModuleWrapPolicy")
#: Methods that give the model itself.
MOVES = frozenset(("cuda", "to", "train", "float"))
LOOPS = (ast.For, ast.While, ast.AsyncFor)


def fsdp_parameters(module: Module) -> Iterator[Claim]:
    """Yield claims about FSDP 1, which flattens several parameters into one, and adapters beside frozen weights."""
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
                yield module.feature(f"flattened_{'whole' if alone else 'by_unit'}:{name}", call)
        if policy is not None and _mentions(module, value_of(policy), _NAMES_ADAPTERS):
            yield module.feature("units_of_adapters", policy)
        frozen = next(filter(None, (_frozen_by_name(module, model) for model in call.args[:1])), None)
        if frozen is not None and (policy is None or alone or _mentions(module, value_of(policy), _BY_CLASS)):
            yield module.feature(f"partly_frozen_{'whole' if alone else 'by_unit'}", call, frozen)


def _frozen_by_name(module: Module, model: ast.expr) -> ast.AST | None:
    """Return the place that freezes the parameters of a model by name: `p.requires_grad = "norm" in name` for all of
    them.
    """
    for loop in module.nodes(ast.For):
        call = loop.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr != "named_parameters" or not dotted(model) or dotted(call.func.value) != dotted(model):
            continue
        if enclosing(module, loop) is not enclosing(module, model):
            continue
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and dotted(node.targets[0]).endswith(".requires_grad"):
                chosen = module.condition(node) or not isinstance(node.value, ast.Constant)
                if chosen:
                    return node
    return None


def _mentions(module: Module, policy: ast.expr, words: re.Pattern[str]) -> bool:
    """Return whether a policy of units, or anything that is assigned to its name, mentions one of these words."""
    assigned = [
        each.value
        for each in module.nodes(ast.Assign)
        if isinstance(policy, ast.Name) and any(dotted(target) == policy.id for target in each.targets)
    ]
    return any(words.search(module.source(each)) for each in (policy, *assigned))


def _own_name(module: Module, model: ast.expr) -> str:
    """Return a text that identifies one model of one file: its variable, or its line if it has none."""
    name = dotted(model) or module.bound_to(model) or f"line {model.lineno}"
    return f"{name} of {module.file.path}"


def adapters(module: Module) -> Iterator[Claim]:
    for call in module.named("get_peft_model"):
        yield module.feature("adapters_added", call)
        for place in (_own_name(module, call), *(place for _, place in places_given(module, module.bound_to(call)))):
            yield module.feature(f"adapters_added:{place}", call.func)
    for call in module.named("fsdp_auto_wrap_policy"):
        yield module.feature("units_of_adapters", call)
    # The trainer of transformers sets this policy itself, since 4.39.
    for call in module.named("Trainer", "SFTTrainer", "DPOTrainer"):
        yield module.feature("units_of_adapters_by_trainer", call)


def four_bits(module: Module) -> Iterator[Claim]:
    """Yield weights that are loaded in 4 bits, and the type that stores them."""
    for call in module.named("BitsAndBytesConfig", "from_pretrained"):
        given = argument(call, "load_in_4bit")
        if given is not None and module.fold(value_of(given)) != Known(False):
            yield module.feature("loaded_in_4bit", given)
        if argument(call, "bnb_4bit_quant_storage") is not None or any(each.arg is None for each in call.keywords):
            yield module.feature("storage_of_4bit", call)


def half_weights(module: Module) -> Iterator[Claim]:
    """Yield trained weights in float16 with a gradient scaler, which unscales only float32 gradients."""
    if "paddle" in module.file.text and "torch" not in module.file.text:
        return
    trained = _trained_names(module)
    # Adapters are kept in float32 (peft/tuners/tuners_utils.py, `autocast_adapter_dtype`), and they alone are trained.
    if any(argument(call, "peft_config") is not None for call in module.calls) or module.named("get_peft_model"):
        return
    for call in module.named("half"):
        if not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
            continue
        bound = module.bound_to(call)
        receiver = dotted(call.func.value)
        # Of `model.half(); model.head.float()` the second may be what is trained, and so may `p.data = p.data.float()`.
        own = (f"{bound or receiver}.", "p.", "param.", "parameter.", "module.", "m.")
        kept = any(dotted(each.func).startswith(own) for each in module.named("float"))
        if not kept and ((bound and bound in trained) or (receiver and receiver in trained)):
            yield module.feature("trained_in_half", call)
    for call in module.named("from_pretrained"):
        given = argument(call, "torch_dtype") or argument(call, "dtype")
        if given is None or module.bound_to(call) not in trained:
            continue
        expression = value_of(given)
        found = {module.name(expression), *(str(item) for item in alternatives(module.fold(expression)))}
        if found & _HALF:
            yield module.feature("trained_in_half", given)
    for call in module.named("GradScaler"):
        enabled = argument(call, "enabled")
        if enabled is not None and module.fold(value_of(enabled)) != Known(True):
            continue
        name = module.bound_to(call)
        steps = [each for each in module.named("step") if name and dotted(each.func) == f"{name}.step"]
        if steps and module.called(call).startswith("torch."):
            yield module.feature("gradients_unscaled", call, steps[0])
    for call in module.named("Trainer"):
        given = argument(call, "precision")
        if given is not None and any(
            str(item) in ("16", "16-mixed") for item in alternatives(module.fold(value_of(given)))
        ):
            yield module.feature("gradients_unscaled", given)


def _trained_names(module: Module) -> frozenset[str]:
    """Return variables whose parameters an optimizer takes, or that a trainer trains."""
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


def reentrant_checkpoints(module: Module) -> Iterator[Claim]:
    for call in module.named("checkpoint", "checkpoint_sequential"):
        if not module.called(call).startswith("torch.utils.checkpoint."):
            continue
        if any(keyword.arg is None for keyword in call.keywords):
            # `**kwargs` may hold it.
            continue
        again = argument(call, "use_reentrant")
        if again is None or module.fold(value_of(again)) == Known(True):
            yield module.feature("reentrant_checkpoint", call)
            return
    # transformers' own method, whose checkpoints reenter unless it is told otherwise.
    for call in module.named("gradient_checkpointing_enable"):
        if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
            yield module.feature("reentrant_checkpoint_of_transformers", call)
            return


def unused_searched(module: Module) -> Iterator[Claim]:
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
            yield module.feature("unused_searched", searched)


def own_layers(module: Module) -> Iterator[Claim]:
    """Yield custom backward passes, which Paddle's DataParallel of older releases does not exchange."""
    own = {
        each.name for each in module.nodes(ast.ClassDef) if any(last(module.name(b)) == "PyLayer" for b in each.bases)
    }
    for call in module.named("apply"):
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) in own:
            yield module.feature("own_backward", call)
            break


def paddle_wrapped(module: Module) -> Iterator[Claim]:
    for call in module.named("DataParallel"):
        if module.called(call).startswith("paddle"):
            yield module.feature("paddle_data_parallel", call)


def left_out_layers(module: Module) -> Iterator[Claim]:
    """Yield a layer with parameters that nothing in the file uses, in a model that is wrapped without a search for
    such.
    """
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
            yield module.feature(f"wrapped_class:{where}", call, condition=condition)
        if model is None or model.name in bases:
            continue
        left_out = _left_out_of(module, model)
        if left_out is not None:
            yield module.feature("layer_left_out", left_out, call)
            return
        sometimes = _sometimes_used(module, model)
        if sometimes is not None:
            yield module.feature("layer_used_sometimes", sometimes, call)
            return


def _is_changed(module: Module, made: ast.Call) -> bool:
    """Return whether the script does more to a model than every module allows: `net.head = Identity()`."""
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


def left_out_of_classes(module: Module) -> Iterator[Claim]:
    """Yield a layer with parameters that nothing in the file uses, in a model that another file may wrap."""
    classes = module.nodes(ast.ClassDef)
    bases = {last(module.name(base)) for each in classes for base in each.bases}
    stem = PurePosixPath(module.file.path).stem
    for model in classes:
        left_out = _left_out_of(module, model) if model.name not in bases else None
        if left_out is not None:
            yield module.feature(f"layer_left_out_of:{stem}.{model.name}", left_out)
        sometimes = _sometimes_used(module, model) if model.name not in bases else None
        if sometimes is not None:
            yield module.feature(f"layer_used_sometimes_of:{stem}.{model.name}", sometimes)


def _left_out_of(module: Module, model: ast.ClassDef) -> ast.Assign | None:
    """Return the first layer of a model that the file names only where it is made."""
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


_CONTAINERS = frozenset(("ModuleDict", "ModuleList", "LayerDict", "LayerList"))
#: What a step draws, or reads from its batch.
_OF_BATCH = re.compile(r"\brand\w*\(|\brandom\.|\.(?:mean|sum|max|min|any|all|item)\(")


def _sometimes_used(module: Module, model: ast.ClassDef) -> ast.AST | None:
    """Return a layer that the forward pass of a model uses only in some steps, as the batch or a draw decides.

    That is an item of a container that a parameter selects, or a layer in one branch of a condition on the batch.
    """
    forward = next((each for each in model.body if isinstance(each, ast.FunctionDef) and each.name == "forward"), None)
    made = [node for node in ast.walk(model) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    kinds = {
        target.attr: last(module.called(node.value))
        for node in made
        if isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute) and dotted(target.value) == "self"
    }
    if forward is None or _UNNAMED_ACCESS.search(module.source(model)):
        return None
    parameters = {each.arg for each in (*forward.args.args[1:], *forward.args.kwonlyargs)}
    for name, kind in kinds.items():
        is_layer = LAYER.fullmatch(kind) is not None
        uses = [node for node in ast.walk(model) if isinstance(node, ast.Attribute) and dotted(node) == f"self.{name}"]
        uses = [node for node in uses if isinstance(node.ctx, ast.Load)]
        if len(uses) != 1 or module.outline.function_of(uses[0]) is not forward:
            continue
        outer = module.parent(uses[0])
        key = outer.slice if isinstance(outer, ast.Subscript) and kind in _CONTAINERS else None
        if isinstance(key, ast.Name) and key.id in parameters:
            return outer
        if is_layer and any(_is_of_batch(above, uses[0], parameters) for above in module.outline.above(uses[0])):
            return uses[0]
    return None


def _is_of_batch(above: ast.AST, use: ast.AST, parameters: set[str]) -> bool:
    """Return whether a statement or expression decides by the batch, or by a draw, whether the layer in it is used."""
    if not isinstance(above, (ast.If, ast.IfExp)) or use in ast.walk(above.test):
        return False
    names = {node.id for node in ast.walk(above.test) if isinstance(node, ast.Name)}
    return _OF_BATCH.search(ast.unparse(above.test)) is not None and bool(
        names & (parameters | {"random", "torch", "paddle", "np", "numpy"})
    )


def _constructor(module: Module, expression: ast.expr, depth: int = 0) -> ast.Call | None:
    """Return the call that makes a model: `Net()` in `Net().cuda()`, or what a name is assigned once."""
    made = module.definition(expression)
    if not isinstance(made, ast.Call) or depth > MAX_CALL_DEPTH:
        return None
    if isinstance(made.func, ast.Attribute) and made.func.attr in MOVES:
        return _constructor(module, made.func.value, depth + 1)
    return made


def _layers(module: Module, model: ast.ClassDef) -> Iterator[ast.Assign]:
    """Yield the assignments of layers in the constructor of a model."""
    for function in model.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
            continue
        for statement in function.body:
            if (
                isinstance(statement, ast.Assign)
                and len(statement.targets) == 1
                and isinstance(statement.targets[0], ast.Attribute)
                and isinstance(statement.value, ast.Call)
                and LAYER.fullmatch(last(module.called(statement.value)))
            ):
                yield statement


#: Names of what was saved during training.
_CHECKPOINT = re.compile(r"ckpt|check_?point|resum|model|weight|state|snapshot|optim|load_from|net\b", re.IGNORECASE)


def loads(module: Module) -> Iterator[Claim]:
    """Yield `torch.load` that puts tensors back on the GPU from which they were saved."""
    if "map_location" not in module.file.text:
        for call in module.named("load"):
            if module.called(call) != "torch.load" or len(call.args) != 1:
                continue
            # Data sets are rarely saved from a GPU.
            name, parent = module.bound_to(call), module.parent(call)
            given_to = dotted(parent.func) if isinstance(parent, ast.Call) else ""
            restored = bool(name) and f"load_state_dict({name}" in module.file.text
            of_model = restored or _CHECKPOINT.search(f"{name} {given_to} {module.text(call)}")
            who = ranks_of(module).guard_of(call).who
            # What calls the method of a class, and in which processes, is in another file.
            apart = who is RankSet.UNDECIDED and any(
                isinstance(outer, ast.ClassDef) for outer in module.outline.above(call)
            )
            alone = who in (RankSet.FIRST, RankSet.LOCAL_FIRST) or is_of_rank(module, call.args[0])
            if of_model and not alone and not apart:
                yield module.feature("loaded_where_saved", call)
                return


def frozen_while_training(module: Module) -> Iterator[Claim]:
    """Yield parameters that are frozen in the forward pass or in the training loop, after DDP counted them."""
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
            yield module.feature("frozen_while_training", node, condition="")
            return


def _is_parameter(module: Module, expression: ast.expr) -> bool:
    """Return whether the expression is an argument of a function, such as the target of a loss."""
    function = module.outline.function_of(expression)
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs] if function is not None else []
    return isinstance(expression, ast.Name) and any(each.arg == expression.id for each in given)


def _in_training_loop(module: Module, node: ast.AST) -> bool:
    """Return whether a node is under a condition in a loop that also runs a backward pass."""
    outer = list(module.outline.above(node))
    loops = [each for each in outer if isinstance(each, LOOPS)]
    conditional = any(isinstance(each, ast.If) for each in outer)
    return conditional and any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        for loop in loops
        for call in ast.walk(loop)
    )


def ddp_without_search(module: Module) -> Iterator[Claim]:
    """Yield a DistributedDataParallel call without `find_unused_parameters`: it waits for a gradient from every
    parameter that required one at construction.
    """
    for call in module.named("DistributedDataParallel"):
        given = [argument(call, name) for name in ("find_unused_parameters", "static_graph")]
        if not any(given) and all(each.arg for each in call.keywords):
            yield module.feature("ddp_without_search", call)
            return


def accumulation(module: Module) -> Iterator[Claim]:
    """Yield Accelerate's own accumulation, which skips the exchange of gradients by the model's `no_sync`."""
    for call in module.named("accumulate"):
        if isinstance(call.func, ast.Attribute) and "accelerator" in dotted(call.func).lower():
            yield module.feature("accumulated_by_accelerate", call)
            return


def deepspeed_parts(module: Module) -> Iterator[Claim]:
    """Yield an optimizer of the program that DeepSpeed gets, layers of experts, and a file of its line that it
    drops.
    """
    for node in module.nodes(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == "deepspeed_config":
            yield module.feature("config_of_line_replaced", node, condition="")
            break
    for call in module.named("initialize"):
        given = argument(call, "optimizer", 2)
        if module.called(call) != "deepspeed.initialize" or given is None:
            continue
        holder, made = _returned_expression(module, latest(module, value_of(given), call))
        if "DeepSpeedCPUAdam" in module.file.text + holder.file.text:
            # The script chooses by whether it offloads.
            continue
        name = holder.called(made) if isinstance(made, ast.Call) else ""
        known = re.match(r"(?:torch\.optim|transformers|bitsandbytes|apex)\.", name) and _OPTIMIZER.fullmatch(
            last(name)
        )
        if (known or name.endswith(".FusedAdam")) and not holder.condition(made):
            parts = [made] if holder is module else []
            yield module.feature("optimizer_of_program", given, *parts, condition=_call_condition(module, call))
    for call in module.named("MoE"):
        # Recipes for dense models share the code of those with experts.
        if module.called(call).startswith("deepspeed.") and "expert" not in module.condition(call):
            condition = None if _is_constructed(module, call) else "the layer is made"
            yield module.feature("experts_of_deepspeed", call, condition=condition)
            return


def _returned_expression(module: Module, made: ast.expr) -> tuple[Module, ast.expr]:
    """Return the expression of the only `return` of a called function that the program defines, with its file.

    Any other expression is returned unchanged.
    """
    name = dotted(made.func).rpartition(".")[2] if isinstance(made, ast.Call) else ""
    for holder in (module, *modules_with(module, f"def {name}(")) if name else ():
        functions = holder.outline.functions(name)
        given = [node.value for node in holder.nodes(ast.Return) if holder.outline.function_of(node) in functions]
        if len(functions) == len(given) == 1 and given[0] is not None:
            return holder, holder.definition(given[0])
    return module, made


def modules_with(module: Module, text: str) -> Iterator[Module]:
    """Yield the user's own modules that a script imports and that contain a text."""
    for path in [each.path for each in imports.texts_of_modules(module)[0] if text in each.text]:
        file = module.files.read(path)
        if isinstance(file, SourceFile):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                yield Module(file, parse_silently(file.text), module.files, module.scope)


def _call_condition(module: Module, call: ast.Call) -> str:
    """Return the branches around a call, or around the calls in this file of the function that it is in."""
    function = module.outline.function_of(call)
    callers = module.outline.calls_named(function.name) if function is not None else ()
    return module.condition(call) or next((found for each in callers if (found := module.condition(each))), "")


def _is_constructed(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a node is always reached, also in the constructor of a class of which the script makes an
    object.
    """
    function = module.outline.function_of(node)
    owner = module.parent(function) if function is not None else None
    if not isinstance(owner, ast.ClassDef) or function is None or function.name != "__init__" or depth > MAX_CALL_DEPTH:
        return always_reached(module, node)
    calls = [call for call in module.outline.calls_named(owner.name) if isinstance(call.func, ast.Name)]
    return not module.condition(node) and any(_is_constructed(module, call, depth + 1) for call in calls)


def latest(module: Module, expression: ast.expr, before: ast.AST) -> ast.expr:
    """Return the value that a name has at a node: the last one that its function assigns to it in an earlier line."""
    name = dotted(expression)
    values = module.outline.assignments(module.outline.function_of(before)).get(name, []) if name else []
    line = getattr(before, "lineno", 0)
    earlier = [value for value in values if value.lineno < line and value is not before]
    return max(earlier, key=lambda value: value.lineno, default=module.definition(expression))


def distributed_if_several(module: Module) -> Iterator[Claim]:
    """Yield a program that joins ranks where a launcher has started several, and runs alone otherwise."""
    for call in module.named("init_parallel_env", "init_process_group"):
        condition = module.condition(call)
        if re.search(r"Process\(|spawn\(|device_ids|\bnn\.DataParallel\(", module.file.text):
            # The script starts the other processes, or uses the other cards, itself.
            return
        if condition and re.search(r"world_size|get_world_size|WORLD_SIZE|nranks|num_gpus|distributed", condition):
            yield module.feature("distributed_if_several", call, condition="")
            return


def tuned_by_scaling(module: Module) -> Iterator[Claim]:
    """Yield a trial of Ray Tune that gets the resources of a trainer, whose first bundle has no GPU."""
    for call in module.named("with_resources"):
        given = argument(call, "resources", 1)
        made = module.definition(value_of(given)) if given is not None else None
        if given is None or not isinstance(made, ast.Call) or last(module.called(made)) != "ScalingConfig":
            continue
        if not (isinstance(call.args[0], ast.Call) if call.args else False):
            yield module.feature("trial_of_scaling", call, made)


def trained_from_dataset(module: Module) -> Iterator[Claim]:
    """Yield the training over a dataset of files by an executor of Paddle."""
    for call in module.named("train_from_dataset"):
        yield module.feature("trained_from_dataset", call)
        return


def networks_before_environment(module: Module) -> Iterator[Claim]:
    """Yield a network of Paddle's dynamic graph that is made before the parallel environment and then wrapped."""
    starts = [call for call in module.named("init_parallel_env") if not module.condition(call)]
    wraps = [call for call in module.named("DataParallel") if module.called(call).startswith("paddle.")]
    if len(starts) != 1 or not wraps or "set_device(" in module.file.text or "fleet.init(" in module.file.text:
        return
    (start,) = starts
    networks = {
        each.name
        for each in module.nodes(ast.ClassDef)
        if any(last(module.name(base)) == "Layer" for base in each.bases)
    }
    for call in module.nodes(ast.Call):
        name = module.called(call)
        is_network = (
            name in networks or re.match(r"paddle\.vision\.models\.\w+$|paddle\.nn\.[A-Z]\w*$", name) is not None
        )
        together = module.outline.function_of(call) is module.outline.function_of(start)
        if not is_network or not together or call.lineno >= start.lineno or module.condition(call):
            continue
        if module.bound_to(call) and not any(isinstance(each, ast.ClassDef) for each in module.outline.above(call)):
            yield module.feature("network_before_environment", call, start)
            return


def servers_before_mode(module: Module) -> Iterator[Claim]:
    """Yield Paddle's servers started in a program where no distributed optimizer has chosen their mode."""
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
            yield module.feature("servers_before_mode", call, condition=own)
            return


def wrapped_twice(module: Module) -> Iterator[Claim]:
    """Yield a Paddle model that is wrapped in DataParallel and then sharded."""
    for call in module.named("group_sharded_parallel"):
        model = argument(call, "model", 0)
        for outer in module.named("DataParallel") if model is not None else ():
            name = dotted(value_of(model)) if model is not None else ""
            together = is_implied(module.condition(outer), module.condition(call))
            if name and module.bound_to(outer) == name and outer.lineno < call.lineno and together:
                yield module.feature("sharded_after_wrapping", call, outer)
                return


def steps_without_sync(module: Module) -> Iterator[Claim]:
    """Yield a step of the optimizer inside `with model.no_sync()`, before the gradients were exchanged."""
    for block in module.nodes(ast.With):
        calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if not any(last(module.called(call)) == "no_sync" for call in calls):
            continue
        inside = (node for statement in block.body for node in ast.walk(statement) if isinstance(node, ast.Call))
        for call in inside:
            if end_of(call.func) == "step" and _OPTIMIZERS.search(dotted(call.func)):
                yield module.feature("step_without_sync", call, calls[0])
                break


#: Names of an optimizer whose step is made.
_OPTIMIZERS = re.compile(r"opt|adam|sgd|scaler", re.IGNORECASE)
