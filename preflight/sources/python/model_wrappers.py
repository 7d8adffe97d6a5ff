"""Claims about wrappers of a model for several ranks, and whether its gradients are exchanged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Value, alternatives, lift
from preflight.model.job.value import Plain
from preflight.sources.python.imports import libraries, texts_of_modules
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, ranks_of

_WRAPPER = "DistributedDataParallel"
#: Any of these words shows that something else assigns GPUs to ranks.
_OTHER_CHOICE = re.compile(
    r"CUDA_VISIBLE_DEVICES|set_visible_devices|visible_device_list|device_mesh|accelerat|fabric|deepspeed|lightning",
    re.IGNORECASE,
)
#: Any of these words shows that the script assigns GPUs to ranks, where it uses the default one.
_GPU_SELECTION_WORDS = re.compile(
    r"set_device|LOCAL_RANK|local_rank|device_ids|cuda:\{|cuda:%|device_count|get_device|local_world|current_device"
    r"|local_process|SLURM_LOCALID|device_id\b",
    re.IGNORECASE,
)
#: Uses of the local rank that choose no GPU: it is read, compared or printed.
_NO_CHOICE = re.compile(
    r"^[ \t]*\w*local_rank\w*[ \t]*=[ \t]*int\(os\.(?:environ|getenv).*$"
    r"|\blocal_rank(?:\(\))?[ \t]*(?:==|!=|in\b|not in\b)"
    r"|\bnot[ \t]+local_rank\b|\b(?:print|open|logg\w*\.\w+)\(.*$",
    re.MULTILINE,
)
_RANKS = re.compile(
    r"init_process_group\(|hvd\.init\(|horovod|fleet\.init\(|init_parallel_env\(|prepare_context\(|[\"']nccl2[\"']"
)
#: Position of the device among the arguments, by the last name of the call.
_CHOOSING = {"set_device": 0, "cuda": 0, "to": 0, "device": 0, "CUDAPlace": 0, "DistributedDataParallel": 1}
_FIRST_GPU = frozenset(("cuda:0", "gpu:0"))
#: Devices that are not the choice of a GPU.
_NO_GPU = frozenset(("cuda", "gpu", "cpu"))
#: Conditions that only ask whether there is a GPU.
_HAS_GPU = re.compile(
    r"[\w.]*(?:is_available|is_compiled_with_cuda)\(\)|(?:\w+\.)?(?:use_?)?(?:gpu|cuda)", re.IGNORECASE
)
#: Names in an expression that may be a device; any other argument of `to` is a type or a tensor.
_DEVICE_NAME = re.compile(r"dev|gpu|rank|place|local|cuda|ctx", re.IGNORECASE)


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about wrappers."""
    wrapped: dict[str, ast.Call] = {}
    for call in module.named(_WRAPPER, "convert_sync_batchnorm"):
        short = last(module.called(call))
        if short == _WRAPPER:
            wrapped.setdefault(module.bound_to(call), call)
            yield from _devices(module, call)
        elif short == "convert_sync_batchnorm" and call.args:
            earlier = wrapped.get(dotted(call.args[0])) if dotted(call.args[0]) else None
            inner = call.args[0] if isinstance(call.args[0], ast.Call) else None
            if inner is not None and last(module.called(inner)) == _WRAPPER:
                earlier = inner
            # `DDP(convert_sync_batchnorm(model))` converts first.
            is_inside = earlier is not None and any(node is call for node in ast.walk(earlier))
            if earlier is not None and not is_inside and _before(module, earlier, call):
                because = module.claim("uses_ddp", True, earlier)
                yield module.claim("sync_batchnorm_late", module.text(call.args[0]), call, because=(because,))
    if _RANKS.search(module.file.text) and not _OTHER_CHOICE.search(module.file.text):
        fixed = _first_gpu_of_all(module)
        if fixed is not None:
            yield module.claim("device_not_chosen", _device_text(module, fixed), fixed, condition="")
        elif not any(map(_may_choose, (module.file.text, *(each.text for each in texts_of_modules(module)[0])))):
            yield from _default_gpu_use(module)


def _may_choose(text: str) -> bool:
    return _GPU_SELECTION_WORDS.search(_NO_CHOICE.sub("", text)) is not None


def _first_gpu_of_all(module: Module) -> ast.Call | None:
    """Return the first call that chooses GPU 0 for every rank, in a script without any other choice."""
    first: ast.Call | None = None
    for call in sorted(module.named(*_CHOOSING), key=lambda call: (call.lineno, call.col_offset)):
        short = last(module.called(call))
        if short == "device" and module.called(call) != "torch.device":
            continue
        if argument(call, "index", 1 if short == "device" else None) is not None:
            return None
        given = argument(call, "device_ids" if short == _WRAPPER else "device", _CHOOSING[short])
        if given is None:
            continue
        chosen = constant_of(module, value_of(given))
        if isinstance(chosen, (ast.List, ast.Tuple)) and len(chosen.elts) == 1:
            chosen = constant_of(module, chosen.elts[0])
        if (
            isinstance(chosen, ast.Call)
            and module.called(chosen) in ("torch.device", "paddle.CUDAPlace")
            and chosen.args
        ):
            # It is examined itself.
            continue
        found = set(alternatives(module.fold(chosen)))
        is_first = bool(found & _FIRST_GPU) or any(item == 0 and item is not False for item in found)
        if is_first and not _on_every_gpu_node(module.condition(call)):
            return None
        if is_first and (short != "to" or found & _FIRST_GPU) and len(found - _NO_GPU) == 1:
            first = first or call
        elif (short != "to" or _names_device(chosen)) if not found else (short != "to" and found - _NO_GPU - {None}):
            return None
    return first


def _device_text(module: Module, call: ast.Call) -> str:
    """Return the texts of the values that variables pass to a call, such as `args.local_rank`."""
    given = [*call.args, *(each.value for each in call.keywords)]
    for _ in range(_MAX_DEPTH):
        given = [module.definition(each) for each in given]
    return " ".join(map(module.text, given))


def _on_every_gpu_node(condition: str) -> bool:
    """Return whether every rank with a GPU takes a branch: there is none, or it only tests for a GPU."""
    return not condition or _HAS_GPU.fullmatch(condition) is not None


def _names_device(expression: ast.expr) -> bool:
    """Return whether an expression names something that may be a device."""
    return any(
        _DEVICE_NAME.search(node.id if isinstance(node, ast.Name) else node.attr)
        for node in ast.walk(expression)
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def _before(module: Module, earlier: ast.Call, later: ast.Call) -> bool:
    """Return whether one call certainly precedes another: same function, same branches, earlier line."""
    same = module.outline.function_of(earlier) is module.outline.function_of(later)
    return same and earlier.lineno <= later.lineno and module.condition(earlier) in ("", module.condition(later))


def _devices(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield the number of devices in a literal `device_ids`."""
    given = argument(call, "device_ids", 1)
    listed = module.definition(value_of(given)) if given is not None else None
    if given is None or listed is None:
        return
    count: Value | None = None
    if isinstance(listed, (ast.List, ast.Tuple)) and not any(isinstance(item, ast.Starred) for item in listed.elts):
        count = Known(len(listed.elts))
    elif isinstance(listed, ast.Call) and module.called(listed) in ("range", "list") and len(listed.args) == 1:
        inner = listed.args[0]
        bound = inner.args[0] if isinstance(inner, ast.Call) and len(inner.args) == 1 else inner
        count = lift(_number, module.fold(bound))
    if count is not None:
        yield module.claim("ddp_device_count", count, given)


def _number(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    raise ValueError("not a number of devices")


def _default_gpu_use(module: Module) -> Iterator[Claim]:
    """Yield the first call that uses the default GPU, which is GPU 0 in every process."""
    for call in sorted(module.named("cuda", "to", "device"), key=lambda call: (call.lineno, call.col_offset)):
        short = last(module.called(call))
        moved = short == "cuda" and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords
        if short in ("to", "device") and call.args:
            moved = getattr(module.fold(call.args[0]), "value", None) in ("cuda", "cuda:0") and len(call.args) == 1
        if moved:
            yield module.claim("device_not_chosen", module.text(call), call)
            return


#: A default that is itself an option or entry is followed to this depth.
_MAX_DEPTH = 5


def constant_of(module: Module, expression: ast.expr) -> ast.expr:
    """Resolve an expression through variables, options and literal dictionaries; unchanged if it is unknown."""
    for _ in range(_MAX_DEPTH):
        meant = module.definition(expression)
        if isinstance(meant, ast.Attribute) and isinstance(meant.value, ast.Name):
            meant = _option_default(module, meant.attr) or meant
        elif isinstance(meant, ast.Subscript):
            meant = _entry(module, meant) or meant
        if meant is expression:
            break
        expression = meant
    return expression


def _option_default(module: Module, name: str) -> ast.expr | None:
    """Return the default of the script's one option of this name, if nothing assigns the attribute."""
    found = [call for call in module.named("add_argument") if name in _destinations(call)]
    if len(found) != 1 or any(
        end_of(node) == name and isinstance(node.ctx, ast.Store) for node in module.nodes(ast.Attribute)
    ):
        return None
    given = argument(found[0], "default")
    return value_of(given) if given is not None else None


def _destinations(call: ast.Call) -> list[str]:
    """Return the attributes that an option may be stored under."""
    given = argument(call, "dest")
    written = [value_of(given)] if given is not None else call.args
    texts = [str(item.value) for item in written if isinstance(item, ast.Constant)]
    return [text.lstrip("-").replace("-", "_") for text in texts]


def _entry(module: Module, subscript: ast.Subscript) -> ast.expr | None:
    """Return the value of `TABLE["key"]`, where TABLE is a literal dictionary."""
    table = module.definition(subscript.value)
    key = getattr(module.fold(subscript.slice), "value", None)
    if not isinstance(table, ast.Dict) or key is None:
        return None
    found = [value for name, value in zip(table.keys, table.values, strict=True) if _is_key(module, name, key)]
    return found[0] if len(found) == 1 else None


def _is_key(module: Module, name: ast.expr | None, key: object) -> bool:
    return name is not None and getattr(module.fold(name), "value", None) == key


#: Names of optimizers of torch and of the libraries beside it.
OPTIMIZER = re.compile(
    r"(?:\w*Adam\w*|SGD\w*|Lion\w*|Adagrad\w*|RMSprop|Adafactor|LAMB|Lamb|LARS|Muon|ASGD|Rprop|Adadelta)(?:8bit)?"
)
_DIVIDING = re.compile(r"Accelerator|configure_optimizers")


def early_optimizer_claims(module: Module) -> Iterator[Claim]:
    """Yield each optimizer of a model that is divided later: `prepare` (by Accelerate) or `lightning`."""
    if not _DIVIDING.search(module.file.text):
        return
    optimizers = [
        (call, model)
        for call in module.nodes(ast.Call)
        if _is_optimizer(module, call)
        for model in _models(module, call)
    ]
    accelerators = {module.bound_to(call) for call in module.named("Accelerator")} - {""}
    for call, model in optimizers:
        function = module.outline.function_of(call)
        if function is not None and function.name == "configure_optimizers" and re.match(r"self\b", model):
            yield module.claim("early_optimizer", "lightning", call)
            continue
        for prepared in module.named("prepare"):
            owner = prepared.func.value if isinstance(prepared.func, ast.Attribute) else None
            if owner is None or dotted(owner) not in accelerators:
                continue
            if _takes(prepared, model) and _takes(prepared, module.bound_to(call)) and _follows(module, call, prepared):
                yield module.claim("early_optimizer", "prepare", call)
                break


def _is_optimizer(module: Module, call: ast.Call) -> bool:
    return OPTIMIZER.fullmatch(last(module.called(call))) is not None


def _models(module: Module, call: ast.Call) -> set[str]:
    """Return the models whose parameters are passed to a call, also by groups."""
    found = set()
    for given in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "params")):
        for part in ast.walk(module.definition(given)):
            if isinstance(part, ast.Attribute) and part.attr in ("parameters", "named_parameters"):
                found.add(dotted(part.value))
    return found - {""}


def _takes(call: ast.Call, name: str) -> bool:
    return bool(name) and any(dotted(_moved_object(argument)) == name for argument in call.args)


def _moved_object(expression: ast.expr) -> ast.expr:
    """Return the object that `model.cuda()` and the like move or convert; otherwise the expression itself."""
    while (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr in ("cuda", "to", "half", "float", "bfloat16", "train")
    ):
        expression = expression.func.value
    return expression


def _follows(module: Module, optimizer: ast.Call, divided: ast.Call) -> bool:
    """Return whether a model is certainly divided after its optimizer was made, and no other optimizer is made
    afterwards.
    """
    same = module.outline.function_of(optimizer) is module.outline.function_of(divided)
    if not same or optimizer.lineno >= divided.lineno:
        return False
    if module.condition(optimizer) not in ("", module.condition(divided)):
        return False
    later = (call for call in module.nodes(ast.Call) if call.lineno > divided.lineno and _is_optimizer(module, call))
    return not any(module.bound_to(call) == module.bound_to(optimizer) for call in later)


#: Any of these words in a file of the job may exchange gradients, or replace the exchange.
_EXCHANGING = re.compile(
    r"DataParallel|\bDDP\b|\bFSDP|fully_shard|distributed_model\(|Distributed\w*(?:Optimizer|Tape)|[dD]eep[sS]peed"
    r"|[aA]ccelerat(?:e\b|or)|[lL]ightning|[fF]abric\b|(?<!Torch)Trainer\b|all_?reduce|reduce_scatter|\breduce\(|average_grad"
    r"|sync\w*_grad|grad\w*_sync|reduce_grad|apply_collective_grads|parallelize|shard_(?:optimizer|tensor|layer)"
    r"|DTensor|[pP]ipeline|\brpc\b|all_?gather|\.Engine\(|prepare(?:_model)?\(|replicate\(|group_sharded|colossal|byteps|bagua"
    r"|ZeroRedundancy|[lL]ocal_?SGD|DistModel|\bsend\(|broadcast_object|paddlenlp|megatron|nccl2"
    r"|tp_plan",
)
_JOINING = frozenset(("init_process_group", "init_parallel_env", "init", "TorchTrainer"))
_OF_RANKS = re.compile(
    r"(?:^|\.)(?:hvd|horovod\.\w+|fleet)\.init$|init_process_group$|init_parallel_env$|\bray\.train\.torch\.TorchTrainer$"
)
_HOROVOD_KERAS = re.compile(r"\bhorovod\.(?:tensorflow\.)?keras\b")
#: Libraries that exchange no gradients by themselves.
_LIBRARIES = frozenset(
    (
        "PIL", "apex", "cv2", "datasets", "einops", "hydra", "horovod", "matplotlib", "numpy", "omegaconf", "paddle",
        "pandas", "peft", "ray", "scipy", "sklearn", "tensorboard", "tensorboardX", "timm", "tokenizers", "torch",
        "torchaudio", "torchvision", "tqdm", "transformers", "visualdl", "wandb", "yaml",
    )
)  # fmt: skip
#: What uses nothing: an import, a comment.
_UNUSED = re.compile(r"^[ \t]*(?:from|import)[ \t].*$|#.*$", re.MULTILINE)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NO_GRADIENTS = frozenset(("no_grad", "inference_mode"))


def exchange_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about the exchange of gradients."""
    text = module.file.text
    exchanging = _EXCHANGING.search(_UNUSED.sub("", text))
    if exchanging is not None:
        yield module.claim("gradients_exchanged", exchanging.group(0), module.tree, condition="")
    for call in module.named(*sorted(_JOINING)):
        if _OF_RANKS.search(module.called(call)):
            yield module.claim("ranks_joined", module.called(call), call)
    if _HOROVOD_KERAS.search(text):
        fits = [call for call in module.named("fit", "fit_generator") if isinstance(call.func, ast.Attribute)]
        for call in fits[:1]:
            yield module.claim("gradients_taken", module.text(call.func), call, condition="")
    if "backward(" not in text:
        return
    steps = module.named("step", "minimize")
    taken = [call for call in module.named("backward") if not call.args and _in_loop(module, call) is not None]
    if steps and taken and ranks_of(module).guard_of(taken[0]).who in (RankSet.ALL, RankSet.UNDECIDED):
        yield module.claim("gradients_taken", module.text(taken[0]), taken[0], condition="")
        unread = sorted(set(libraries(module)) - _LIBRARIES)
        if unread:
            yield module.claim("exchange_libraries", tuple(unread), taken[0], condition="")
    for call in taken:
        yield from _bypasses(module, call)


def _bypasses(module: Module, backward: ast.Call) -> Iterator[Claim]:
    """Yield `model.module(x)`, in Paddle `model._layers(x)`, in a loop that never calls the wrapped model itself, or a
    step wholly under `no_sync`.
    """
    wraps = [(module.bound_to(call), call) for call in module.named("DistributedDataParallel", "DataParallel")]
    wrapped = {name for name, _ in wraps} - {""}
    loop = _in_loop(module, backward)
    if loop is None or not wrapped:
        return
    # `ddp = DDP(model)`, and the loop calls `model`, which is not a variable of another function.
    around = {None, *module.outline.above(loop)}
    plain = {
        model: name
        for name, call in wraps
        if name and (model := dotted(call.args[0]) if call.args else "") not in ("", name)
        if not module.condition(call) and ("." in model or module.outline.function_of(call) in around)
    }
    # What a function is given may be the wrapper, whatever its name.
    function = module.outline.function_of(loop)
    given = {item.arg for item in ast.walk(function.args) if isinstance(item, ast.arg)} if function is not None else ()
    inside = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    called = {dotted(call.func) for call in inside}
    for call in _unwrap(module, loop, backward, wrapped) if not _is_used(module, loop, wrapped) else ():
        yield module.claim("gradient_exchange_bypassed", module.text(call.func), call, condition="")
        return
    for call in inside:
        name = dotted(call.func)
        if plain.get(name, name) not in called and name in plain and name not in given:
            yield module.claim("gradient_exchange_bypassed", module.text(call.func), call, condition="")
            return
    for outer in module.outline.above(backward):
        if outer is loop:
            return
        if isinstance(outer, ast.With):
            for item in outer.items:
                opened = item.context_expr
                within = [node for node in ast.walk(outer) if isinstance(node, ast.Call)]
                others = [call for call in inside if last(dotted(call.func)) == "backward" and call not in within]
                # Every step of the loop, or the optimizer's step itself, is made without an exchange.
                function = module.outline.function_of(backward)
                beside = module.outline.calls_in(function) if function is not None else ()
                by_hand = any("reduce" in last(dotted(call.func)) for call in (*inside, *beside))
                alone = _steps([dotted(call.func) for call in within]) or not (others or by_hand)
                if isinstance(opened, ast.Call) and last(dotted(opened.func)) == "no_sync" and alone:
                    yield module.claim("gradient_exchange_bypassed", module.text(opened), opened, condition="")
                    return
        elif isinstance(outer, (ast.If, ast.FunctionDef, ast.AsyncFunctionDef)):
            return


#: Functions that a model is given for something else than its gradients.
_LOOKS = re.compile(r"eval|valid|test|save|log|print|watch|count", re.IGNORECASE)


def _is_used(module: Module, loop: ast.stmt, wrapped: set[str]) -> bool:
    """Return whether a wrapped model is called anywhere, given to something, or has another name."""
    around = module.outline.function_of(loop)
    for call in module.calls:
        name, function = dotted(call.func), module.outline.function_of(call)
        own = {item.arg for item in ast.walk(function.args) if isinstance(item, ast.arg)} if function else set()
        if name in wrapped and (function is around or name not in own):
            return True
        # The loop's own function gets the model, and these only look at it, or make it.
        looked = last(name) in ("isinstance", "DistributedDataParallel", "DataParallel")
        given = {dotted(item) for item in (*call.args, *(each.value for each in call.keywords))} & wrapped
        looked = looked or _LOOKS.search(name) is not None
        if given - (set() if function is around else own) and not looked and name != (around.name if around else ""):
            return True
    return any(dotted(node.value) in wrapped for node in module.nodes(ast.Assign))


def _unwrap(module: Module, loop: ast.stmt, backward: ast.Call, wrapped: set[str]) -> Iterator[ast.Call]:
    """Yield the calls that lead from the inner model to a `backward`, if none leads there from the wrapped one."""
    assigned: list[ast.Assign | ast.AugAssign | ast.AnnAssign] = []
    for node in ast.walk(loop):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            assigned.append(node)
    targets = {
        id(node): {each.id for each in ast.walk(_target(node)) if isinstance(each, ast.Name)} for node in assigned
    }
    names = {each.id for each in ast.walk(backward) if isinstance(each, ast.Name)}
    leading: list[ast.AST] = [backward]
    # From the loss back to what it is computed from, and once more for what a loop carries over.
    for made in (*reversed(assigned), *reversed(assigned)):
        if made.value is not None and names & targets[id(made)] and made.value not in leading:
            leading.append(made.value)
            names |= {each.id for each in ast.walk(made.value) if isinstance(each, ast.Name)}
    inner = {f"{name}.{part}" for name in wrapped for part in ("module", "_layers")}
    for alias in module.nodes(ast.Assign):
        parts = {dotted(each) for each in ast.walk(alias.value) if isinstance(each, ast.Attribute)}
        if not isinstance(alias.value, ast.Call) and parts & inner:
            inner |= {dotted(target) for target in alias.targets} - wrapped
    found = []
    for call in (each for value in leading for each in ast.walk(value) if isinstance(each, ast.Call)):
        used = {dotted(call.func), *map(dotted, call.args), *(dotted(each.value) for each in call.keywords)}
        if last(dotted(call.func)) == "isinstance" or _without_gradients(module, call):
            continue
        if used & wrapped:
            return
        if any(name == each or name.startswith(f"{each}.") for name in used for each in inner):
            found.append(call)
    yield from found


def _without_gradients(module: Module, call: ast.Call) -> bool:
    """Return whether a call is under `with torch.no_grad():` or the like."""
    blocks = (outer for outer in module.outline.above(call) if isinstance(outer, ast.With))
    opened = (item.context_expr for block in blocks for item in block.items)
    return any(isinstance(each, ast.Call) and last(dotted(each.func)) in _NO_GRADIENTS for each in opened)


def _target(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> ast.AST:
    return ast.Tuple(node.targets) if isinstance(node, ast.Assign) else node.target


def _steps(names: list[str]) -> bool:
    return any(last(name) in ("step", "minimize") for name in names)


def _in_loop(module: Module, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
    """Return the innermost loop around a node in its function; the function's own calls in a loop count as well."""
    for outer in module.outline.above(node):
        if isinstance(outer, _LOOPS):
            return outer
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in module.outline.calls_named(outer.name):
                if module.outline.function_of(call) is not outer:
                    return next((each for each in module.outline.above(call) if isinstance(each, _LOOPS)), None)
            return None
    return None
