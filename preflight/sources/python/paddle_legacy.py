"""Claims of legacy Paddle: Fluid's transpiler and executors, and cluster_train of PaddlePaddle 0.x.

Source: paddle/fluid/transpiler/distribute_transpiler.py and parallel_executor.py of PaddlePaddle 1.8.5.

Source: paddle/scripts/cluster_train/conf.py and doc/howto/cluster of PaddlePaddle 0.8 to 0.11.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from preflight._util.budget import truncate
from preflight.model.job import Claim, Known, Reference, Strength, Unresolved, Value, alternatives, join, lift
from preflight.model.job.value import Plain
from preflight.sources.python.module import Assigned, Module, argument, attributes, enclosing, is_none, last, value_of
from preflight.sources.python.outline import dotted

#: Positions of DistributeTranspiler.transpile's arguments (Paddle 0.11 to 1.8, paddle.distributed.transpiler).
POSITIONS = {
    "trainer_id": 0,
    "program": 1,
    "pservers": 2,
    "trainers": 3,
    "sync_mode": 4,
    "startup_program": 5,
    "current_endpoint": 6,
}
#: Attributes of DistributeTranspilerConfig that are claimed unchanged.
_PLAIN = {
    "slice_var_up": "slice_var_up",
    "min_block_size": "min_block_size",
    "runtime_split_send_recv": "runtime_split_send_recv",
    "enable_dc_asgd": "dc_asgd",
    "geo_sgd_need_push_nums": "geo_steps",
}
#: Assignments to one object that are read; more are not configuration.
_MAX_SETTINGS = 200
#: Transpilers of one script that are read.
_MAX_TRANSPILERS = 100
_SERVER_PROGRAMS = ("get_pserver_program", "get_pserver_programs")
_READS = ("os.getenv", "os.environ.get")


def fluid_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about the transpiler and the executors of its programs."""
    assigned = attributes(module)
    given_away = _given_to_transpilers(module)
    set_by_strategy = any(item.name == "num_trainers" for items in assigned.values() for item in items)
    transpilers = 0
    yield from _server_places(module)
    for call in module.calls:
        short = last(module.called(call))
        if short == "transpile" and is_transpile(call) and transpilers < _MAX_TRANSPILERS:
            transpilers += 1
            yield from _transpile(module, call, assigned)
        elif short in _SERVER_PROGRAMS:
            yield from _pserver_program(module, call)
        elif short == "memory_optimize" and _is_fluid(module, call):
            yield from _memory_optimize(module, call)
        elif short == "ParallelExecutor" and _is_fluid(module, call):
            yield from _executor(module, call, set_by_strategy=set_by_strategy)
        elif short == "DistributeTranspilerConfig" and module.bound_to(call) not in given_away:
            # Each of several assignments to one name would state the same.
            given_away.add(module.bound_to(call))
            yield from _lone_configuration(module, call, assigned)


def is_transpile(call: ast.Call) -> bool:
    """Return whether a call of `transpile` is that of Fluid, by its arguments."""
    own = ("trainers", "pservers", "trainer_id")
    return any(argument(call, name) is not None for name in own) or len(call.args) >= 4


def _is_fluid(module: Module, call: ast.Call) -> bool:
    name = module.called(call)
    return "fluid" in name or name.startswith("paddle") or "fluid" in module.file.text


def _transpile(module: Module, call: ast.Call, assigned: dict[str, list[Assigned]]) -> Iterator[Claim]:
    config, known = _configuration(module, call)
    found = assigned.get(config, []) if config else []
    around = enclosing(module, call)
    names = [node for node in module.nodes(ast.Name) if node.id == config and isinstance(node.ctx, ast.Store)]
    if any(enclosing(module, node) is around for node in names):
        # Another function has another object under this name.
        found = [each for each in found if enclosing(module, each.at) is around]
    settings = truncate(found, _MAX_SETTINGS, "settings of a strategy")
    mode = _mode(module, settings, known=known)
    stated = any(item.name == "mode" for item in settings)
    transpiler = module.claim(
        "transpiler",
        mode,
        call.func,
        spelling=module.text(call.func),
        strength=Strength.FLAG if stated else Strength.DEFAULT,
        source="paddle",
    )
    yield transpiler
    yield from _texts(module, call, transpiler)
    yield from _state_configuration(module, settings, (transpiler,))
    if alternatives(mode) == ("nccl2",):
        yield from _own_endpoint(module, call, transpiler)
        yield from _ignored_update_mode(module, call, settings, transpiler)
    yield from _startup_program(module, call, transpiler, takes_program=alternatives(mode) != ("nccl2",))
    sync = argument(call, "sync_mode", POSITIONS["sync_mode"])
    geo = any(item.name == "geo_sgd_mode" and module.fold(item.value) == Known(True) for item in settings)
    if alternatives(mode) != ("pserver",) or geo:
        return
    if sync is not None:
        value = lift(_update_mode, module.fold(value_of(sync)))
        yield module.claim("ps_update_mode", value, sync, source="paddle", because=(transpiler,))
    else:
        yield module.claim(
            "ps_update_mode", "sync", call.func, strength=Strength.DEFAULT, source="paddle", because=(transpiler,)
        )


def _own_endpoint(module: Module, call: ast.Call, transpiler: Claim) -> Iterator[Claim]:
    """Yield the endpoints of all trainers in nccl2 mode, and of this trainer."""
    own = argument(call, "current_endpoint", POSITIONS["current_endpoint"])
    trainers = argument(call, "trainers", POSITIONS["trainers"])
    for quantity, given in (("nccl2_own_endpoint", own), ("nccl2_endpoints", trainers)):
        if given is not None:
            yield module.claim(quantity, module.fold(value_of(given)), given, source="paddle", because=(transpiler,))

    if trainers is not None and _is_number(module, value_of(trainers)):
        yield module.claim("number_argument", "trainers", trainers, source="paddle", because=(transpiler,))


def _is_number(module: Module, expression: ast.expr) -> bool:
    """Return whether the expression certainly is a whole number, such as `int(os.getenv("TRAINERS"))`."""
    made = module.definition(expression)
    if isinstance(made, ast.Call) and module.called(made) in ("int", "len"):
        return True
    found = alternatives(module.fold(made))
    return bool(found) and all(isinstance(item, int) for item in found)


def _ignored_update_mode(
    module: Module, call: ast.Call, settings: Sequence[Assigned], transpiler: Claim
) -> Iterator[Claim]:
    """Yield `sync_mode=False` in nccl2 mode, which the transpiler does not read there."""
    given = argument(call, "sync_mode", POSITIONS["sync_mode"])
    if given is not None:
        value = lift(_update_mode, module.fold(value_of(given)))
        yield module.claim("nccl2_update_mode", value, given, source="paddle", because=(transpiler,))
    for item in settings:
        if item.name == "sync_mode":
            value = lift(_update_mode, module.fold(item.value))
            yield module.claim("nccl2_update_mode", value, item.at, source="paddle", because=(transpiler,))


def _startup_program(module: Module, call: ast.Call, transpiler: Claim, *, takes_program: bool) -> Iterator[Claim]:
    """Yield whether transpile gets the two programs that the script builds itself."""
    program = argument(call, "program", POSITIONS["program"])
    guards = [guard for guard in module.named("program_guard") if len(guard.args) == 2]
    own = [guard for guard in guards if not _is_default(module, guard.args[1])]
    if program is not None:
        name = module.text(value_of(program))
        own = [guard for guard in own if module.text(guard.args[0]) == name]
    # A block around it may make the programs those that it takes by default.
    is_within = any(isinstance(outer, ast.With) for outer in module.outline.above(call))
    if not own or is_within or any(keyword.arg is None for keyword in call.keywords):
        return
    startup = argument(call, "startup_program", POSITIONS["startup_program"])
    missing = []
    if takes_program and program is None and not _is_default(module, own[0].args[0]):
        missing.append(f"program={module.text(own[0].args[0])}")
    if startup is None or is_none(value_of(startup)):
        missing.append(f"startup_program={module.text(own[0].args[1])}")
    built = module.claim("startup_program_built", ", ".join(missing), own[0], source="paddle")
    yield module.claim(
        "startup_program_given", not missing, call.func, spelling=module.text(call.func), source="paddle",
        because=(transpiler, built),
    )  # fmt: skip


def _is_default(module: Module, program: ast.expr) -> bool:
    made = module.definition(program)
    return isinstance(made, ast.Call) and last(module.called(made)) in (
        "default_startup_program",
        "default_main_program",
    )


def _server_places(module: Module) -> Iterator[Claim]:
    """Yield the place of each executor that runs the program of a server."""
    programs = {
        dotted(target)
        for node in module.nodes(ast.Assign)
        if isinstance(node.value, ast.Call) and last(module.called(node.value)) in _SERVER_PROGRAMS
        for each in node.targets
        for target in (each.elts if isinstance(each, ast.Tuple) else [each])
    } - {""}
    for call in module.named("run") if programs else ():
        given = argument(call, "program", 0)
        owner = module.definition(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if given is None or dotted(value_of(given)) not in programs or not isinstance(owner, ast.Call):
            continue
        place = argument(owner, "place", 0) if last(module.called(owner)) == "Executor" else None
        if place is None:
            continue
        value = join(_devices(module, value_of(place)))
        yield module.claim("server_executor_device", value, place, source="paddle")
        return


def _devices(module: Module, place: ast.expr) -> Iterator[Value]:
    """Yield `gpu` or `cpu` for each place that an expression may be."""
    made = module.definition(place)
    if isinstance(made, ast.IfExp) and re.search("cuda|gpu", module.text(made.test), re.IGNORECASE):
        yield from _devices(module, made.body)
        yield from _devices(module, made.orelse)
        return
    short = last(module.called(made)) if isinstance(made, ast.Call) else ""
    named = {"CUDAPlace": "gpu", "CPUPlace": "cpu"}.get(short)
    yield Known(named) if named else Unresolved(f"{module.text(place)}: known only at run time")


def _update_mode(sync: Plain) -> Plain:
    return "sync" if sync else "async"


def _configuration(module: Module, call: ast.Call) -> tuple[str, bool]:
    """Return the name of the transpiler's configuration, and whether it is fully known; empty and true if it has
    none.
    """
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = module.definition(owner) if isinstance(owner, ast.Name) else owner
    if not isinstance(made, ast.Call) or not last(module.called(made)).endswith("DistributeTranspiler"):
        return "", False
    given = argument(made, "config", 0)
    if given is None:
        return "", True
    name = dotted(value_of(given))
    return name, bool(name)


def _mode(module: Module, settings: Sequence[Assigned], *, known: bool) -> Value:
    modes = [module.fold(item.value) for item in settings if item.name == "mode"]
    if modes:
        return join(modes)
    return Known("pserver") if known else Unresolved("the transpiler's configuration is made elsewhere")


def _state_configuration(module: Module, settings: Sequence[Assigned], because: tuple[Claim, ...]) -> Iterator[Claim]:
    """Yield the values assigned to a DistributeTranspilerConfig."""
    for item in settings:
        value: Value
        if item.name in _PLAIN:
            value = module.fold(item.value)
            yield module.claim(_PLAIN[item.name], value, item.at, source="paddle", because=because)
        elif item.name == "split_method":
            name = last(dotted(item.value))
            value = Known(name) if name in ("RoundRobin", "HashName") else Unresolved(module.text(item.value))
            yield module.claim("split_method", value, item.at, source="paddle", because=because)
        elif item.name == "geo_sgd_mode" and module.fold(item.value) == Known(True):
            yield module.claim("ps_update_mode", "geo", item.at, source="paddle", because=because)
        elif item.name == "sync_mode":
            value = lift(_update_mode, module.fold(item.value))
            yield module.claim("ps_update_mode", value, item.at, source="paddle", because=because)


def _given_to_transpilers(module: Module) -> set[str]:
    """Return the names of configurations that are passed to a transpiler with its own claims; an unnamed one is
    included.
    """
    found = {""}
    for call in module.calls:
        if last(module.called(call)).endswith("DistributeTranspiler"):
            given = argument(call, "config", 0)
            if given is not None:
                found.add(dotted(value_of(given)))
    return found


def _lone_configuration(module: Module, made: ast.Call, assigned: dict[str, list[Assigned]]) -> Iterator[Claim]:
    """Yield the settings of a configuration passed to fleet.distributed_optimizer, for the script as a whole."""
    settings = truncate(assigned.get(module.bound_to(made), []), _MAX_SETTINGS, "settings of a strategy")
    transpiler = module.claim(
        "transpiler", _mode(module, settings, known=True), made, strength=Strength.DEFAULT, source="paddle"
    )
    yield transpiler
    yield from _state_configuration(module, settings, (transpiler,))


def _texts(module: Module, call: ast.Call, transpiler: Claim) -> Iterator[Claim]:
    """Yield numbers that are read from the environment without conversion and therefore are strings."""
    for name in ("trainer_id", "trainers"):
        given = argument(call, name, POSITIONS[name])
        if given is None:
            continue
        expression = module.definition(value_of(given))
        text = alternatives(module.fold(expression))
        is_text = bool(text) and all(isinstance(item, str) for item in text)
        if is_text or _reads_environment(module, expression):
            yield module.claim("text_argument", name, given, source="paddle", because=(transpiler,))


def _reads_environment(module: Module, expression: ast.expr) -> bool:
    """Return whether the expression is a value from the environment, which is a string unless a default has
    another type.
    """
    if isinstance(expression, ast.Subscript):
        return module.name(expression.value) == "os.environ"
    if not isinstance(expression, ast.Call) or module.called(expression) not in _READS:
        return False
    default = argument(expression, "default", 1)
    return default is None or all(isinstance(item, str) for item in alternatives(module.fold(value_of(default))))


_OF_ROLE = re.compile(r"role|pserver|server", re.IGNORECASE)


def _pserver_program(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "endpoint", 0)
    if given is not None:
        value = module.fold(value_of(given))
        # Servers alone come to this call, in the branch of their role; that says nothing against it.
        condition = "" if _OF_ROLE.search(module.condition(call)) else None
        yield module.claim("pserver_program_endpoint", value, given, source="paddle", condition=condition)


def _memory_optimize(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "skip_grads", 4)
    hidden = any(keyword.arg is None for keyword in call.keywords)
    if given is not None:
        yield module.claim("memory_optimize_skips_gradients", module.fold(value_of(given)), given, source="paddle")
    elif not hidden:
        yield module.claim("memory_optimize_skips_gradients", False, call, strength=Strength.DEFAULT, source="paddle")


def _executor(module: Module, call: ast.Call, *, set_by_strategy: bool) -> Iterator[Claim]:
    if argument(call, "share_vars_from") is not None:
        # It evaluates with the parameters of another program.
        return
    is_given = argument(call, "num_trainers", 6) is not None or any(keyword.arg is None for keyword in call.keywords)
    is_given = is_given or set_by_strategy
    yield module.claim("executor_knows_trainers", is_given, call.func, spelling=module.text(call.func), source="paddle")


#: Variables of conf.py.
_CONF = {
    "PADDLE_PORT": "pserver_port",
    "PADDLE_PORTS_NUM": "pserver_ports",
    "PADDLE_PORTS_NUM_FOR_SPARSE": "pserver_sparse_ports",
}
#: Arguments of paddle.v2.init.
_INIT = {
    "port": "pserver_port",
    "ports_num": "pserver_ports",
    "ports_num_for_sparse": "pserver_sparse_ports",
    "trainer_count": "trainer_threads",
    "num_gradient_servers": "ps_workers",
    "trainer_id": "ps_index",
}


def cluster_train_claims(module: Module) -> Iterator[Claim | Reference]:
    """Yield all claims about cluster_train and PaddlePaddle 0.x."""
    text = module.file.text
    if "PADDLE_PORT" in text and "HOSTS" in text:
        yield from _conf(module)
    if "sparse_update" in text:
        for node in module.calls:
            given = argument(node, "sparse_update")
            if given is not None and module.fold(value_of(given)) == Known(True):
                yield module.claim("sparse_update", True, given, source="paddle")
    if "paddle" in text:
        for call in module.calls:
            name = module.called(call)
            if name in ("paddle.v2.init", "paddle.init") and call.keywords:
                yield from _init(module, call)
            elif name.endswith("define_py_data_sources2"):
                yield from _sources(module, call)


def _conf(module: Module) -> Iterator[Claim]:
    for node in module.tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if name == "HOSTS":
            yield from _hosts(module, node)
        elif name in _CONF:
            yield _state(module, _CONF[name], module.fold(node.value), node)
        elif name == "PADDLE_NIC":
            yield _state(module, "pserver_nics", lift(_names, module.fold(node.value)), node)
        elif name == "ROOT_DIR":
            yield _state(module, "cluster_workspace", module.fold(node.value), node)


def _state(module: Module, quantity: str, value: Value, node: ast.Assign) -> Claim:
    return module.claim(
        quantity, value, node, strength=Strength.CONFIG, source="cluster_train", spelling=module.text(node)[:120]
    )


def _hosts(module: Module, node: ast.Assign) -> Iterator[Claim]:
    value = lift(_as_list, module.fold(node.value))
    yield _state(module, "cluster_hosts", value, node)
    hosts = lift(lambda item: tuple(_bare(str(host)) for host in item) if isinstance(item, tuple) else (), value)
    yield _state(module, "hosts", hosts, node)
    count = lift(lambda item: len(item) if isinstance(item, tuple) else 0, value)
    yield _state(module, "ps_workers", count, node)
    yield _state(module, "ps_servers", count, node)


def _as_list(item: Plain) -> Plain:
    if not isinstance(item, tuple) or not all(isinstance(host, str) for host in item):
        raise TypeError("hosts must be strings")
    return item


def _bare(host: str) -> str:
    """Return `root@192.168.100.17:9090` is the host 192.168.100.17."""
    return host.rpartition("@")[2].partition(":")[0].strip()


def _names(item: Plain) -> Plain:
    return tuple(part.strip() for part in str(item).split(",") if part.strip())


def _init(module: Module, call: ast.Call) -> Iterator[Claim]:
    servers = argument(call, "pservers")
    for name, quantity in _INIT.items():
        given = argument(call, name)
        if given is not None and (servers is not None or name == "trainer_count"):
            yield module.claim(quantity, module.fold(value_of(given)), given, source="paddle")
    if servers is not None:
        value = lift(_names, module.fold(value_of(servers)))
        yield module.claim("pserver_hosts", value, servers, source="paddle")
        yield module.claim("ps_mode", True, call.func, spelling=module.text(call.func), source="paddle")


def _sources(module: Module, call: ast.Call) -> Iterator[Reference]:
    """Yield the index files of `define_py_data_sources2(train_list="train.list", ...)`, if they are in the tree."""
    for position, name in enumerate(("train_list", "test_list")):
        given = argument(call, name, position)
        value = module.fold(value_of(given)) if given is not None else None
        if given is None or not isinstance(value, Known) or not isinstance(value.value, str) or not value.value:
            continue
        target = module.files.resolve(value.value, relative_to=module.file.path)
        if target is not None:
            yield Reference(target, "index", module.span(value_of(given)), module.scope)
