"""Operations of only some ranks: collective operations, forward passes, files and folders of a single rank; and all
features of a script that a framework rejects in combination, or that make ranks wait for each other.

Each is stated as one claim, `script_feature`, at the place that shows it. Rules define which of them exclude each
other, together with settings of files and command lines (`data/combinations.toml` of the rules). A feature alone is
fine.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from preflight.model.job import Claim, alternatives
from preflight.sources.python import (
    checkpoint_names,
    collectives,
    data_loaders,
    frameworks,
    gradients,
    model_features,
    worker_processes,
)
from preflight.sources.python.collectives import is_collective
from preflight.sources.python.model_features import LAYER, LOOPS, MOVES, latest
from preflight.sources.python.module import MAX_CALL_DEPTH, Module, argument, last, value_of
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.program import Program
from preflight.sources.python.rank_conditions import RankSet, is_rank, ranks_of, variable_read

_BUFFERS = re.compile(r"BatchNorm|InstanceNorm|register_buffer|resnet|ResNet|mobilenet|efficientnet|densenet|vgg16_bn")
_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
_OTHER_RANKS = (RankSet.OTHERS, RankSet.LOCAL_OTHERS)
#: Names that one value has, one after the other.
_MAX_NAMES = 5
_AGREED = re.compile(r"reduce|gather|broadcast|sync|mean_across|average_(?:over|all)", re.IGNORECASE)


def local_plateaus(module: Module) -> Iterator[Claim]:
    """Yield a learning rate that each rank lowers by the loss of its own batch."""
    losses = {dotted(each.func.value) for each in module.named("backward") if isinstance(each.func, ast.Attribute)} - {
        ""
    }
    calls = module.named("ReduceOnPlateau", "ReduceLROnPlateau")
    for call in calls:
        name = module.bound_to(call)
        # A library may return the scheduler under another name.
        named = re.compile(rf"{re.escape(name)}\.step" + (r"|\w*sched\w*\.step" if len(calls) == 1 else ""))
        for step in module.named("step") if name else ():
            if not named.fullmatch(dotted(step.func)) or not step.args:
                continue
            names = _names_of(module, step.args[0])
            if losses & set(names) and not any(_is_agreed(module, name) for name in names):
                yield module.feature("plateau_of_own_loss", step, call)


def _names_of(module: Module, value: ast.expr) -> list[str]:
    """Return the names of a value that it had before: `metric` and `loss` of `metric = loss.detach()`."""
    found: list[str] = []
    while len(found) <= _MAX_NAMES:
        if dotted(value):
            found.append(dotted(value))
            made = module.definition(value)
            if made is value:
                break
            value = made
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        elif isinstance(value, ast.Call) and last(module.called(value)) == "float" and value.args:
            value = value.args[0]
        else:
            break
    return found


def _is_agreed(module: Module, name: str) -> bool:
    """Return whether a call averages a variable in place, or gives the variable what it returns."""
    return any(
        _AGREED.search(last(module.called(call)))
        and any(dotted(item) == name for item in call.args)
        and (module.bound_to(call) in ("", name) or last(module.called(call)) == "all_reduce")
        for call in module.calls
    )


def forward_on_one_rank(module: Module) -> Iterator[Claim]:
    """Yield a wrapped model that one rank calls alone: its forward pass exchanges the model's buffers."""
    # Apex's wrapper does not exchange buffers.
    named = module.named("DistributedDataParallel")
    wrappers = [call for call in named if not module.called(call).startswith("apex.")]
    wrapped = {module.bound_to(call) for call in wrappers} - {""}
    if not wrapped or any(argument(call, "broadcast_buffers") is not None for call in wrappers):
        return
    program = module.program or Program(module)
    buffers = any(_BUFFERS.search(each.file.text) for each in program.modules)
    for call in module.calls:
        guard = ranks_of(module).inside(call)
        if guard.who not in _FIRST_RANKS or guard.test is None or isinstance(guard.test, ast.BoolOp):
            continue
        called = dotted(call.func) in wrapped
        passed = any(
            dotted(item) in wrapped and _calls_argument(other, function, index)
            for index, item in enumerate(call.args)
            for other, function in program.functions(module, call.func)
        )
        within = dotted(call.func).startswith("self.") and any(
            dotted(inner.func) in wrapped
            for function in module.outline.functions(last(dotted(call.func)))
            for inner in module.outline.calls_in(function)
        )
        if (called or passed or within) and not _others_call_too(module, guard.test, wrapped):
            if not buffers and all(_is_of_own_class(program, module, each) for each in wrappers):
                return
            # Of several models the one with buffers may be another.
            certain = buffers and len(wrapped) == 1
            name = "forward_on_one_rank_with_buffers" if certain else "forward_on_one_rank"
            yield module.feature(name, call, guard.test, condition="")
            return


def _is_of_own_class(program: Program, module: Module, wrapper: ast.Call) -> bool:
    """Return whether a wrapped model is made of a class of the program, whose layers can be seen."""
    at, made = program.meaning(module, latest(module, wrapper.args[0], wrapper)) if wrapper.args else (module, wrapper)
    for _ in range(MAX_CALL_DEPTH):
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute) or made.func.attr not in MOVES:
            break
        at, made = program.meaning(at, latest(at, made.func.value, made))
    return isinstance(made, ast.Call) and any(program.classes(at, made.func))


def _calls_argument(module: Module, function: Function, index: int) -> bool:
    """Return whether a function calls its argument at this position."""
    given = function.args.args[index].arg if index < len(function.args.args) else ""
    return any(isinstance(call.func, ast.Name) and call.func.id == given for call in module.outline.calls_in(function))


def _others_call_too(module: Module, test: ast.expr, names: set[str]) -> bool:
    branch = module.parent(test)
    otherwise = branch.orelse if isinstance(branch, ast.If) else []
    return any(
        isinstance(node, ast.Call) and (dotted(node.func) in names or any(dotted(item) in names for item in node.args))
        for statement in otherwise
        for node in ast.walk(statement)
    )


def skipped_collectives(module: Module) -> Iterator[Claim]:
    """Yield `continue` of one rank in a loop where the others reach a collective."""
    left: list[ast.stmt] = [*module.nodes(ast.Continue), *module.nodes(ast.Break)]
    for node in left:
        guard = ranks_of(module).inside(node)
        if guard.who not in (*_FIRST_RANKS, *_OTHER_RANKS) or guard.test is None or isinstance(guard.test, ast.BoolOp):
            continue
        branch = module.parent(guard.test)
        outer = list(module.outline.above(node))
        loop = next((each for each in outer if isinstance(each, LOOPS)), None)
        if not isinstance(branch, ast.If) or loop is None or not any(branch is each for each in outer):
            continue
        # It comes to the collective in a later round, and the others wait for that.
        if isinstance(node, ast.Continue) and isinstance(loop, ast.While):
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
                    yield module.feature("rank_skips_collective", node, call, condition="")
                    return


def _has_other_branch(module: Module, test: ast.expr) -> bool:
    branch = module.parent(test)
    while isinstance(branch, ast.BoolOp):
        branch = module.parent(branch)
    return isinstance(branch, ast.If) and bool(branch.orelse)


def returns_by_file(module: Module) -> Iterator[Claim]:
    """Yield returns of ranks that do not see a file, followed by a collective for those that do."""
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
                    yield module.feature("return_by_file_before_collective", branch.test, call, condition="")
                    return


def _asks_for_file(module: Module, call: ast.Call) -> bool:
    name = module.called(call)
    return name in ("os.path.exists", "os.path.isfile", "os.path.isdir") or (
        last(name) in ("is_file", "exists", "is_dir") and not call.args and isinstance(call.func, ast.Attribute)
    )


def own_fsdp_state(module: Module) -> Iterator[Claim]:
    """Yield the state of an optimizer that FSDP divided, asked for on one rank."""
    for call in module.named("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"):
        guard = ranks_of(module).guard_of(call)
        if guard.who in _FIRST_RANKS and guard.test is not None and not isinstance(guard.test, ast.BoolOp):
            yield module.feature("divided_state_on_one_rank", call, guard.test, condition="")
            return
        function = module.outline.function_of(call)
        for caller in module.outline.calls_named(function.name) if function is not None else ():
            if function is None or dotted(caller.func) not in (function.name, f"self.{function.name}"):
                # `torch.save` does not call the script's own `save`.
                continue
            outer = ranks_of(module).inside(caller)
            if outer.who in _FIRST_RANKS and outer.test is not None and not _has_other_branch(module, outer.test):
                yield module.feature("divided_state_on_one_rank", caller, call, condition="")
                return


def items_of_local_rank(module: Module) -> Iterator[Claim]:
    """Yield a part of a sorted list of files that a rank chooses by its number on its node."""
    for node in module.nodes(ast.Subscript):
        index = dotted(node.slice) if isinstance(node.slice, (ast.Name, ast.Attribute)) else ""
        if not re.fullmatch(r"(?:\w+\.)*local_?rank", index, re.IGNORECASE) or not isinstance(node.ctx, ast.Load):
            continue
        listed = module.definition(node.value)
        if isinstance(listed, ast.Call) and last(module.called(listed)) in ("sorted", "glob", "listdir"):
            yield module.feature("file_of_local_rank", node)
            return


#: The readers, each with words of which a script must have one.
def layers_of_one_rank(module: Module) -> Iterator[Claim]:
    """Yield a layer that only some ranks add to the model: `if rank == 0: self.probe = nn.Linear(8, 1)`."""
    for node in module.nodes(ast.Assign):
        made = node.value
        if not isinstance(made, ast.Call) or not isinstance(node.targets[0], ast.Attribute):
            continue
        if LAYER.fullmatch(last(module.called(made))) and ranks_of(module).guard_of(node).who in (
            *_FIRST_RANKS,
            *_OTHER_RANKS,
        ):
            yield module.feature("layer_of_some_ranks", node, condition="")


#: What fetches or unpacks data, and folders that each node has for itself.
_PREPARES = re.compile(r"extract(?:all|_archive)?|unpack_archive|\w*download\w*|urlretrieve|copytree|copy2?|copyfile")
_OWN_FOLDER = re.compile(
    r"/(?:tmp|var/tmp|dev/shm|local_?scratch|scratch/local|raid|nvme\w*|mnt/(?:nvme|local)\w*)(?:/|$)"
)


def prepared_by_first_rank(module: Module) -> Iterator[Claim]:
    """Yield data that only rank 0 of the whole job puts into a folder that is local to each node."""
    for call in module.calls:
        if not _PREPARES.fullmatch(last(module.called(call))):
            continue
        given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        values = [item for each in given for item in alternatives(module.fold(value_of(each)))]
        own = any(isinstance(item, str) and _OWN_FOLDER.match(item) for item in values)
        if own and ranks_of(module).guard_of(call).who is RankSet.FIRST:
            yield module.feature("prepared_by_first_rank", call, condition="")


#: Methods that Lightning calls, beside which `prepare_data` is its own.
_HOOKS = frozenset(("train_dataloader", "training_step", "configure_optimizers"))


def _is_of_lightning(owner: ast.ClassDef) -> bool:
    """Return whether a class is one of Lightning's modules or data modules."""
    bases = [end_of(base) for base in owner.bases]
    named = any(re.search(r"Lightning|DataModule", base) for base in bases)
    hooked = any(isinstance(each, ast.FunctionDef) and each.name in _HOOKS for each in owner.body)
    return named or (hooked and any(base != "object" for base in bases))


def kept_by_prepare_data(module: Module) -> Iterator[Claim]:
    """Yield attributes that Lightning's `prepare_data` sets, although only one process on a node calls it."""
    for node in module.nodes(ast.Assign):
        function = module.outline.function_of(node)
        kept = [dotted(target) for target in node.targets if dotted(target).startswith("self.")]
        # `self.path = Path(self.path)` only converts what every rank has.
        kept = [
            name
            for name in kept
            if name not in {dotted(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
        ]
        owner = module.parent(function) if function is not None and function.name == "prepare_data" else None
        if kept and isinstance(owner, ast.ClassDef) and _is_of_lightning(owner):
            yield module.feature("kept_by_prepare_data", node, condition="")


def text_compared_with_number(module: Module) -> Iterator[Claim]:
    """Yield `os.environ["RANK"] == 0`, which no text equals."""
    for node in module.nodes(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            continue
        name = variable_read(module, module.definition(node.left))
        other = node.comparators[0]
        number = isinstance(other, ast.Constant) and isinstance(other.value, int) and not isinstance(other.value, bool)
        if name is not None and "RANK" in name and number and not _decides_prints(module, node):
            yield module.feature("rank_text_compared_with_number", node, condition="")


#: What is printed where a condition does not hold costs nothing.
_PRINTS = re.compile(
    r"(?:print|pprint|tqdm\.write|warnings\.warn"
    r"|(?:self\.)?_?(?:log|LOG|logger|LOGGER|logging)\.(?:debug|info|warn|warning|error|exception|critical|log))\("
)


def _decides_prints(module: Module, test: ast.expr) -> bool:
    """Return whether a test decides only what is printed."""
    branch = module.parent(test)
    return isinstance(branch, ast.If) and all(
        _PRINTS.match(module.text(each)) for each in (*branch.body, *branch.orelse)
    )


def loaded_by_first(module: Module) -> Iterator[Claim]:
    """Yield models that are loaded while the other ranks wait: `with accelerator.main_process_first():`."""
    for block in module.nodes(ast.With):
        entered = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if not any(_FIRST_BLOCK.search(last(module.called(call))) for call in entered):
            continue
        for statement in block.body:
            for call in ast.walk(statement):
                name = dotted(call.func) if isinstance(call, ast.Call) else ""
                if name.endswith(".from_pretrained") and _MODEL_CLASS.search(name):
                    yield module.feature("model_loaded_by_first_rank", call, entered[0], condition="")
                    return


def groups_made_by_members(module: Module) -> Iterator[Claim]:
    """Yield groups that only their own ranks make: `if rank in pair: dist.new_group(pair)`."""
    for call in module.named("new_group"):
        is_torch = module.called(call).startswith("torch.distributed.")
        if not is_torch or argument(call, "use_local_synchronization") is not None:
            continue
        for outer in module.outline.above(call):
            test = outer.test if isinstance(outer, ast.If) else None
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In) and is_rank(module, test.left):
                yield module.feature("group_made_by_members", call, condition="")


_FIRST_BLOCK = re.compile(r"main_process_first$|zero_first$|rank_zero_first$")
_MODEL_CLASS = re.compile(r"Model(?:For\w+)?\.|For\w+\.from_pretrained$")


def claims(module: Module) -> Iterator[Claim]:
    """Yield every feature of a script."""
    text = module.file.text
    for words, reader in _READERS:
        if any(word in text for word in words):
            yield from reader(module)


#: Readers of features, by words of which a script with the feature has one.
_READERS: tuple[tuple[tuple[str, ...], Callable[[Module], Iterable[Claim]]], ...] = (
    (("spawn", "start_processes"), worker_processes.spawned_at_import),
    (("spawn",), worker_processes.loaders_passed_to_spawn),
    (worker_processes.LOADERS, worker_processes.streams),
    (("FullyShardedDataParallel",), model_features.fsdp_parameters),
    (("get_peft_model", "fsdp_auto_wrap_policy"), model_features.adapters),
    (("load_in_4bit",), model_features.four_bits),
    (("half()", "GradScaler", "float16", "precision"), model_features.half_weights),
    (("checkpoint",), model_features.reentrant_checkpoints),
    (("find_unused_parameters",), model_features.unused_searched),
    (("PyLayer",), model_features.own_layers),
    (("DataParallel",), model_features.paddle_wrapped),
    (("DataParallel",), model_features.left_out_layers),
    (("torch.load",), model_features.loads),
    (("Plateau",), local_plateaus),
    (("new_group",), groups_made_by_members),
    (("DistributedDataParallel",), forward_on_one_rank),
    (("continue", "break"), skipped_collectives),
    (("is_file", "exists", "isfile", "is_dir", "isdir"), returns_by_file),
    (("requires_grad",), model_features.frozen_while_training),
    (("DistributedDataParallel",), model_features.ddp_without_search),
    (("accumulate(",), model_features.accumulation),
    (("optim_state_dict",), own_fsdp_state),
    (("def forward(",), model_features.left_out_of_classes),
    (("shuffle",), worker_processes.shuffled_beside_sampler),
    (("lambda", "def "), worker_processes.unpicklable),
    (("deepspeed",), model_features.deepspeed_parts),
    (("init_parallel_env", "init_process_group"), model_features.distributed_if_several),
    (("with_resources",), model_features.tuned_by_scaling),
    (("local_rank", "localrank"), items_of_local_rank),
    (("init_server",), model_features.servers_before_mode),
    (("group_sharded_parallel",), model_features.wrapped_twice),
    (("DataParallel", "fully_shard"), layers_of_one_rank),
    (("Process(",), worker_processes.forked_with_gpu),
    (("def prepare_data",), kept_by_prepare_data),
    (("RANK",), text_compared_with_number),
    (("no_sync",), model_features.steps_without_sync),
    (("process_first", "zero_first"), loaded_by_first),
    (("torch.load", "paddle.load", "load_file", "np.load"), checkpoint_names.claims),
    (("pipe_command",), data_loaders.pipe_programs),
    ((".recv(", ".Recv(", "recv("), collectives.exchanges),
    (("horovod", "byteps"), frameworks.asked_before_start),
    (("horovod", "byteps"), frameworks.single_pass_optimizers),
    (("backward(",), frameworks.repeated_passes),
    (("backward(",), gradients.divided_losses),
    (("train_from_dataset",), model_features.trained_from_dataset),
    (("init_parallel_env",), model_features.networks_before_environment),
    (("apply_gradients",), gradients.unexchanged_gradients),
    (("extract", "unpack", "download", "copy"), prepared_by_first_rank),
)
