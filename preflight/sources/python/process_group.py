"""Claims about the process group: backend, timeout, address and size, and which parts of a script need one.

Sources: torch/distributed/distributed_c10d.py (2.9: _get_default_group raises without a group); torch/nn/modules/
batchnorm.py (2.9: SyncBatchNorm acts as BatchNorm without a group; 1.12 and older ask for its size).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from preflight._util.hostnames import split_endpoint
from preflight.model.job import Claim, Known, Relation, Unresolved, Value, alternatives, lift, one_of
from preflight.model.job.value import Plain
from preflight.sources.python.environment import always_reached, given_variables, is_left_before
from preflight.sources.python.imports import libraries
from preflight.sources.python.module import SPAWNS, Module, argument, is_none, last, value_of
from preflight.sources.python.outline import Function, dotted
from preflight.sources.python.rank_conditions import RankSet, ranks_of
from preflight.sources.python.words import WORDS

#: Positions of torch.distributed.init_process_group's arguments (torch 2.1 to 2.9).
_TORCH = {"backend": 0, "init_method": 1, "timeout": 2, "world_size": 3, "rank": 4}
#: deepspeed.init_distributed has other names for them (deepspeed/comm/comm.py).
_DEEPSPEED = {"dist_backend": 0, "distributed_port": 2, "timeout": 4, "init_method": 5}
_PROCESS_GROUP_STARTERS = WORDS["process_group_starters"]
#: A script that queries these expects that a launcher may have started it.
_LAUNCHED = re.compile(r"LOCAL_RANK|WORLD_SIZE|TORCHELASTIC|is_torchelastic_launched|--local[_-]rank")
_TIMEDELTA = ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks")
_SECONDS = {
    "days": 86400.0,
    "seconds": 1.0,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "minutes": 60.0,
    "hours": 3600.0,
    "weeks": 604800.0,
}


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about process groups and model wrappers."""
    for call in module.named(*_PROCESS_GROUP_STARTERS):
        name = module.called(call)
        short = last(name)
        if short == "init_process_group":
            yield from _group(module, call, _TORCH)
        elif short == "init_distributed" and "deepspeed" in name:
            yield from _group(module, call, _DEEPSPEED)
        elif short == "InitProcessGroupKwargs":
            yield from _group(module, call, {"backend": 0, "init_method": 1, "timeout": 2})
        elif short == "spawn" and ("multiprocessing" in name or name in ("mp.spawn", "paddle.distributed.spawn")):
            yield from spawned_processes(module, call)
        elif short == "init_rpc":
            yield module.claim("host_name_transport", "tensorpipe", call)
        elif short == "DistributedReadingService":
            yield module.claim("host_name_transport", "gloo", call)
        elif short == "DistributedDataParallel" or name in ("paddle.DataParallel", "fleet.distributed_model"):
            yield module.claim("uses_ddp", True, call)
        elif short in ("FullyShardedDataParallel", "fully_shard"):
            yield module.claim("uses_fsdp", True, call)
        elif short == "distributed_model" and "fleet" in name:
            yield module.claim("uses_ddp", True, call)


#: Days that a timeout may be meant to have.
_MOST_DAYS = 14


def seconds(module: Module, expression: ast.expr) -> Value:
    """Return a `timedelta(...)` in seconds, or why it is unknown."""
    found = module.definition(expression)
    if not isinstance(found, ast.Call) or last(module.called(found)) != "timedelta":
        return Unresolved(f"{module.text(expression)}: known only at run time")
    if any(keyword.arg not in _SECONDS for keyword in found.keywords) or len(found.args) > len(_TIMEDELTA):
        return Unresolved(f"{module.text(found)}: known only at run time")
    given = list(zip(_TIMEDELTA, found.args, strict=False))
    given += [(str(keyword.arg), keyword.value) for keyword in found.keywords]
    units = [unit for unit, _ in given]
    return lift(lambda *amounts: _total(units, amounts), *(module.fold(value) for _, value in given))


def _total(units: list[str], amounts: tuple[Plain, ...]) -> int:
    total = 0.0
    for unit, amount in zip(units, amounts, strict=True):
        if not isinstance(amount, (int, float)):
            raise TypeError("a timeout must consist of numbers")
        total += _SECONDS[unit] * amount
    if not abs(total) < 1e12:
        raise ValueError("longer than any timeout")
    return round(total)


#: An address with a port that a function returns.
_DRAWN = re.compile(r"port\w*\(")


def _is_of_one(module: Module, call: ast.Call, positions: dict[str, int]) -> bool:
    """Return whether each process creates its own group, at an address that it draws."""
    given = {name: argument(call, name, place) for name, place in positions.items()}
    found = {name: module.fold(value_of(each)) for name, each in given.items() if each is not None}
    alone = found.get("world_size") == Known(1) and found.get("rank") == Known(0)
    address = given.get("init_method")
    drawn = address is not None and _DRAWN.search(module.source(value_of(address))) is not None
    return alone and drawn and isinstance(found["init_method"], Unresolved)


def _group(module: Module, call: ast.Call, positions: dict[str, int]) -> Iterator[Claim]:
    for name, position in positions.items():
        given = argument(call, name, position)
        if given is None or is_none(value_of(given)):
            continue
        expression = value_of(given)
        if name in ("world_size", "rank") and _is_of_one(module, call, positions):
            continue
        if name == "timeout":
            yield module.claim("process_group_timeout_s", seconds(module, expression), given)
            made = module.definition(expression)
            days = made.args[0] if isinstance(made, ast.Call) and len(made.args) == 1 and not made.keywords else None
            # A number of seconds or minutes, without its unit.
            if isinstance(days, ast.Constant) and isinstance(days.value, (int, float)) and days.value > _MOST_DAYS:
                yield module.feature("timeout_in_days", given)
        elif name == "init_method":
            yield from _init_method(module, given)
        elif name in ("backend", "dist_backend"):
            yield module.claim("backend", _lower(_backend(module, expression)), given)
        elif name == "distributed_port":
            yield module.claim("master_port", module.fold(expression), given)
        else:
            value = module.fold(expression)
            # -1 is torch's own "take it from the environment".
            if alternatives(value) and -1 not in alternatives(value):
                yield module.claim(name, value, given, relation=Relation.REQUIRES)


def _backend(module: Module, expression: ast.expr) -> Value:
    """Return a backend written as a string, or as `dist.Backend.GLOO`."""
    written = module.name(module.definition(expression))
    if ".Backend." in f".{written}":
        return Known(last(written))
    return module.fold(expression)


def spawned_processes(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield claims about the processes that `mp.spawn` starts, if every rank reaches the call and nothing requires a
    launcher.
    """
    count = argument(call, "nprocs", 2)
    guard_of = ranks_of(module).guard_of(call)
    if count is not None and guard_of.who is RankSet.ALL and _LAUNCHED.search(module.file.text) is None:
        yield module.claim("spawned_processes", module.fold(value_of(count)), call)
        # `args.workers` of a parser, which the command line sets.
        written = module.definition(value_of(count))
        if isinstance(written, ast.Attribute) and isinstance(written.value, ast.Name):
            yield module.claim("spawned_by_option", written.attr, call)


def spawned_on_nodes(module: Module) -> Iterator[Claim]:
    """Yield `rank_of_one_node` where `mp.spawn` starts a part of the group, and each process joins with its index.

    The index counts the processes of one node from 0, and the group has those of several nodes.
    """
    for spawn in module.named("spawn"):
        count, given = argument(spawn, "nprocs", 2), argument(spawn, "args", 1)
        target = dotted(spawn.args[0]) if spawn.args and "multiprocessing" in module.called(spawn) else ""
        for function in module.outline.functions(target) if target.isidentifier() else ():
            names = [each.arg for each in function.args.args]
            passed = module.definition(value_of(given)) if given is not None else None
            values = dict(zip(names[1:], passed.elts, strict=False)) if isinstance(passed, ast.Tuple) else {}
            for call in module.outline.calls_in(function):
                rank, size = argument(call, "rank", 4), argument(call, "world_size", 3)
                if last(dotted(call.func)) != "init_process_group" or not names or count is None:
                    continue
                if rank is None or size is None or dotted(value_of(rank)) != names[0]:
                    continue
                if any(_is_assigned(each, names[0]) for each in ast.walk(function)):
                    continue
                written = value_of(size)
                whole = module.definition(values.get(dotted(written), written))
                if _is_multiple(module, whole, value_of(count), values):
                    yield module.feature("rank_of_one_node", call, spawn)


def _is_assigned(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return name in map(dotted, targets)


def _is_multiple(module: Module, whole: ast.expr, part: ast.expr, values: Mapping[str, ast.expr]) -> bool:
    """Return whether an expression is another one times a number of nodes: a number above 1, or what is named so."""
    if not isinstance(whole, ast.BinOp) or not isinstance(whole.op, ast.Mult):
        return False
    texts = {ast.unparse(part), ast.unparse(module.definition(part))}
    for one, other in ((whole.left, whole.right), (whole.right, whole.left)):
        meant = values.get(dotted(one), one)
        if {ast.unparse(one), ast.unparse(meant), ast.unparse(module.definition(meant))} & texts:
            times = alternatives(module.fold(other))
            return all(isinstance(each, int) and each > 1 for each in times) if times else "node" in ast.unparse(other)
    return False


def _lower(value: Value) -> Value:
    return lift(lambda item: item.lower() if isinstance(item, str) else item, value)


def _init_method(module: Module, given: ast.keyword | ast.expr) -> Iterator[Claim]:
    expression = module.definition(value_of(given))
    value = module.fold(expression)
    if isinstance(value, Unresolved):
        head = expression.values[0] if isinstance(expression, ast.JoinedStr) and expression.values else None
        if isinstance(head, ast.Constant) and str(head.value).startswith("tcp://"):
            yield module.claim("master_addr", value, given)
            yield module.claim("master_port", value, given)
        return
    hosts: list[Plain] = []
    ports: list[Plain] = []
    for method in alternatives(value):
        if isinstance(method, str) and method.startswith("tcp://"):
            endpoint = split_endpoint(method.removeprefix("tcp://").partition("?")[0].partition("/")[0])
            if endpoint is None:
                return
            hosts.append(endpoint[0])
            ports += [endpoint[1]] if endpoint[1] is not None else []
    if len(hosts) != len(alternatives(value)):
        return
    yield module.claim("master_addr", one_of(hosts), given)
    if ports:
        yield module.claim("master_port", one_of(ports) if len(ports) > 1 else Known(ports[0]), given)


#: Anything that may make a group, in any file of the job.
_MAKING = re.compile(
    r"Trainer\(|init_process_group|init_distributed|init_dist|initialize_dist|init_parallel_env|Accelerator\(|deepspeed|horovod|hvd"
    r"|[lL]ightning|[fF]abric|PartialState|TrainingArguments|setup_dist|dist_setup|setup_ddp|ddp_setup|megatron|bmtrain"
    r"|init_rpc|init_device_mesh|launch\(|fleet\.init|Runner|idist|colossalai|fairscale|composer|distributed_init"
    r"|init_distributed_mode|dist_init|comm\.init|setup_distributed|init_ddp|initialize_model_parallel|ray\.train|getattr\("
    r"|DeviceMesh\(|fully_shard\(|distribute_(?:module|tensor)\(|import_module|runpy|exec\(|ProcessGroup"
)
#: A module that runs other files, which may make a group.
_IMPORTED_MAKER = re.compile(r"\brunpy\b|\bimport_module\b")
#: Questions about the group, and blocks that may swallow its absence.
_ASKS = re.compile(r"\bis_initialized\b|\bsuppress\(")
#: An import alone makes nothing.
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t].*$", re.MULTILINE)
_NEEDING = frozenset(
    ("get_rank", "get_world_size", "barrier", "all_reduce", "all_gather", "broadcast", "reduce", "new_group")
)
#: Libraries that make no group when they are imported or called.
_LIBRARIES = frozenset(
    (
        "PIL", "albumentations", "cv2", "einops", "h5py", "hydra", "matplotlib", "numpy", "omegaconf", "pandas", "peft",
        "scipy", "sklearn", "tensorboard", "tensorboardX", "timm", "tokenizers", "torch", "torchaudio", "torchvision",
        "tqdm", "wandb", "yaml",
    )
)  # fmt: skip
#: Libraries that may make a group.
_MAKERS = frozenset(
    (
        "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "fastai", "megatron", "composer",
        "detectron2", "mmcv", "mmengine", "mmdet", "fairseq", "horovod", "ray", "colossalai", "verl", "vllm", "trl",
        "torchtitan", "ignite", "apex", "fairscale", "diffusers", "ultralytics",
    )
)  # fmt: skip
_TRAINER = re.compile(r"Train(?:er|ing_?Arguments)|HfArgumentParser")
_RANKS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))
#: Calls of functions of other files that are joined.
_MAX_CALLS = 24


def need_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about groups that are needed or made."""
    text = module.file.text
    made = _MAKING.search(_IMPORTS.sub("", text)) or _IMPORTED_MAKER.search(text)
    if made is not None:
        yield module.claim("script_feature", "group_made", module.tree, spelling=made.group(0), condition="")
    elif "torch" in text:
        yield from _needs_group(module)
    if "environ" in text:
        yield from _rank_readers(module)
    yield from _calls_of_files(module)


def _needs_group(module: Module) -> Iterator[Claim]:
    """Yield the first call that certainly runs and needs a group that the script does not make."""
    # Of Hugging Face's libraries the trainers make a group, models and data sets do not.
    quiet = set() if _TRAINER.search(module.file.text) else {"transformers", "datasets"}
    strange = sorted(set(libraries(module)) - _LIBRARIES - quiet)
    if _MAKERS & set(strange):
        return
    relative = any(node.level > 0 for node in module.nodes(ast.ImportFrom))
    maker = next(iter(strange), "a module of the package" if relative else "")
    asked = _ASKS.search(module.file.text)
    condition = f"{maker} may make the group" if maker else f"the script asks by {asked.group(0)}" if asked else ""
    found: list[tuple[ast.Call, str]] = []
    for call in module.named(*sorted(_NEEDING)):
        if module.called(call).startswith("torch.distributed."):
            found.append((call, "group_needed"))
    for call in module.named("DistributedDataParallel"):
        if module.called(call).startswith("torch.nn.parallel"):
            found.append((call, "group_needed"))
    for call in module.named("convert_sync_batchnorm"):
        if module.called(call).startswith("torch.nn."):
            found.append((call, "group_for_sync_batchnorm"))
    for call, name in sorted(found, key=lambda item: item[0].lineno):
        sure = always_reached(module, call)
        if sure or name == "group_for_sync_batchnorm":
            yield module.claim("script_feature", name, call, condition=condition or module.condition(call))
            return


def _rank_readers(module: Module) -> Iterator[Claim]:
    """Yield functions and constructors that read a variable of a launcher without a default."""
    stem = PurePosixPath(module.file.path).stem
    seen: set[str] = set()
    for node in module.nodes(ast.Subscript):
        if module.name(node.value) != "os.environ" or not isinstance(node.slice, ast.Constant):
            continue
        function = module.outline.function_of(node)
        if node.slice.value not in _RANKS or not isinstance(node.ctx, ast.Load) or function is None:
            continue
        if any(isinstance(outer, (ast.Try, ast.IfExp, ast.BoolOp)) for outer in module.outline.above(node)):
            continue
        name = _name_of(module, function)
        condition = module.condition(node)
        returns = (each for each in ast.walk(function) if isinstance(each, ast.Return))
        if "in os.environ" in module.source(function) or any(each.lineno < node.lineno for each in returns):
            continue
        if name and name not in seen and "environ" not in condition and "launcher" not in condition:
            seen.add(name)
            yield module.claim("script_feature", f"reads_rank_in:{stem}.{name}", node, condition=condition)


def _name_of(module: Module, function: Function) -> str:
    """Return the name by which a caller names a function: that of the class for a constructor."""
    outer = module.parent(function)
    if isinstance(outer, ast.ClassDef):
        return outer.name if function.name == "__init__" else ""
    return function.name if isinstance(outer, ast.Module) else ""


def _calls_of_files(module: Module) -> Iterator[Claim]:
    """Yield calls, on every path through the script, of functions that it imports from other files."""
    seen: set[str] = set()
    if _RANKS & given_variables(module):
        return
    for call in module.calls:
        name = module.called(call)
        if name.count(".") < 1 or name in seen or len(seen) >= _MAX_CALLS or name.startswith(_FOREIGN):
            continue
        if not module.is_imported(dotted(call.func)) or not always_reached(module, call):
            continue
        seen.add(name)
        where = ".".join(name.split(".")[-2:])
        yield module.claim("script_feature", f"calls:{where}", call, condition="")


#: Prefixes of calls that lead to no file of the job.
_FOREIGN = (
    *("torch.", "torchvision.", "transformers.", "accelerate.", "deepspeed.", "horovod.", "lightning.", "paddle."),
    *("pytorch_lightning.", "os.", "sys.", "numpy.", "argparse.", "json.", "time.", "logging.", "re.", "math."),
)


#: Names of functions that look for a free port, and what such a function does.
_FREE_PORT = re.compile(r"(?:_|\b)(?:find|get|pick|next|choose)\w*port\b|free_?port|open_?port|random_?port")
_SEEDS = re.compile(r"(?<![\w.])(?:random|np\.random|numpy\.random)\.seed\(|\bset_seed\(|\bseed_everything\(")
_DRAWS = re.compile(r"getsockname\(|\brandint\(|\brandrange\(|\brandom\.|\btime\(\)|\buuid")
#: Functions that call each other are followed to this depth.
_MAX_DEPTH = 4


def drawn_ports(module: Module) -> Iterator[Claim]:
    """Yield the first drawn port of the group in a place that every rank comes to: in MASTER_PORT, or in
    `init_method=`.
    """
    text = module.file.text
    if _GROUP.search(text) is None or _SEEDS.search(text) is not None:
        return
    for node, ports in (*_master_port_assignments(module), *_written_value(module)):
        drawn = any(_drawn(module, port, sure=isinstance(node, ast.Call)) for port in ports)
        if not drawn or _reaching_ranks(module, node) is not RankSet.ALL or _has_left(module, node):
            continue
        spawned = _in_spawned(module, node)
        if spawned or not any(module.called(call) in SPAWNS for call in module.named("spawn", "start_processes")):
            what = "address" if isinstance(node, ast.Call) else "port"
            name = f"{what}_drawn_by_{'spawned' if spawned else 'rank'}"
            yield module.claim("script_feature", name, node, condition=module.condition(node))
            return


def _reaching_ranks(module: Module, node: ast.AST) -> RankSet:
    """Return the ranks that reach a place; in a function that its own module does not call, the ranks that call it."""
    function = module.outline.function_of(node)
    if function is not None and not module.outline.calls_named(function.name):
        return ranks_of(module).inside(node).who
    return ranks_of(module).guard_of(node).who


def _master_port_assignments(module: Module) -> Iterator[tuple[ast.Assign | ast.Call, list[ast.expr]]]:
    """Yield the places that set MASTER_PORT, unless the group meets elsewhere: the port is then for something else."""
    if "MASTER_PORT" not in module.file.text or _MEETS_ELSEWHERE.search(module.file.text):
        return
    for node in module.nodes(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or module.name(target.value) != "os.environ":
            continue
        if module.fold(target.slice) == Known("MASTER_PORT"):
            yield node, [node.value]


def _written_value(module: Module) -> Iterator[tuple[ast.Assign | ast.Call, list[ast.expr]]]:
    """Yield the addresses of groups, with what they are composed of: `"tcp://%s:%s" % (host, port)`."""
    for call in module.named("init_process_group", "init_distributed"):
        given, size = argument(call, "init_method", 1), argument(call, "world_size", 3)
        alone = size is not None and module.fold(value_of(size)) == Known(1)
        if given is not None and not alone:
            address = module.definition(value_of(given))
            if "tcp:" in module.source(address):
                yield call, [each for each in ast.walk(address) if isinstance(each, (ast.Name, ast.Call))]


_GROUP = re.compile(r"\b(?:init_process_group|init_distributed)\(")
_MEETS_ELSEWHERE = re.compile(r"init_method\s*=\s*[rf]?[\"'](?:tcp|file)://")


def _has_left(module: Module, node: ast.Assign | ast.Call) -> bool:
    """Return whether some processes may leave before a node, or have a group or a port by then."""
    function = module.outline.function_of(node)
    groups = module.named("init_process_group")
    earlier = any(module.outline.function_of(each) is function and each.lineno < node.lineno for each in groups)
    return earlier or is_left_before(module, node) or "MASTER_PORT" in module.condition(node)


#: Makes a drawn value the same for all ranks, or takes it from elsewhere first.
_SHARED = re.compile(r"environ|getenv|\bopen\(|\brank\b|get_rank|Random\(|default_rng\(|bcast|broadcast|gather")


def _drawn(module: Module, expression: ast.expr, *, sure: bool) -> bool:
    """Return whether a value is drawn at random, or is that of a free port; `sure`: what draws it has to be in this
    file.
    """
    made = module.definition(expression)
    while isinstance(made, ast.Call) and last(module.called(made)) in ("str", "int") and made.args:
        made = module.definition(made.args[0])
    if not isinstance(made, (ast.Call, ast.JoinedStr, ast.BinOp)):
        return False
    text = module.source(made)
    if _SHARED.search(text):
        return False
    names = [last(module.called(call)) for call in ast.walk(made) if isinstance(call, ast.Call)]
    own = [function for name in names for function in module.outline.functions(name)]
    if own:
        sources = [module.source(function) for function in own]
        return any(map(_DRAWS.search, sources)) and not any(map(_SHARED.search, sources))
    return _DRAWS.search(text) is not None or (not sure and _FREE_PORT.search(text) is not None)


def _in_spawned(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a function that runs in each spawned process reaches a node."""
    function = module.outline.function_of(node)
    if function is None or depth > _MAX_DEPTH:
        return False
    if any(
        module.outline.function_of(call) is function for call in module.named("spawn", "start_processes", "Process")
    ):
        # It starts processes itself, which take its port.
        return False
    for call in module.named("spawn", "start_processes", "Process"):
        if last(module.called(call)) == "Process" and not any(
            isinstance(outer, (ast.For, ast.While, ast.ListComp)) for outer in module.outline.above(call)
        ):
            continue
        started = argument(call, "target") if last(module.called(call)) == "Process" else argument(call, "fn", 0)
        if started is not None and dotted(value_of(started)) == function.name:
            return True
    return any(_in_spawned(module, call, depth + 1) for call in module.outline.calls_named(function.name))
