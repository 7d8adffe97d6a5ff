"""Claims about legacy Fluid: the transpiler and its configuration, executors, memory_optimize.

Source: paddle/fluid/transpiler/distribute_transpiler.py and parallel_executor.py of PaddlePaddle 1.8.5.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from preflight.job import Claim, Known, Strength, Unresolved, Value, alternatives, join, lift
from preflight.job.value import Plain
from preflight.sources.python.attributes import Assigned, attributes
from preflight.sources.python.module import Module, argument, last, value_of
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
#: Attributes of DistributeTranspilerConfig that are claimed as they are.
_PLAIN = {
    "slice_var_up": "slice_var_up",
    "min_block_size": "min_block_size",
    "runtime_split_send_recv": "runtime_split_send_recv",
    "enable_dc_asgd": "dc_asgd",
    "geo_sgd_need_push_nums": "geo_steps",
}
#: Assignments to one configuration that are looked at; more are no configuration.
_MOST_SETTINGS = 200
#: Transpilers of one script that are looked at.
_MOST_TRANSPILERS = 100
_READS = ("os.getenv", "os.environ.get")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about the transpiler and what runs its programs."""
    assigned = attributes(module)
    given_away = _given_to_transpilers(module)
    told_by_strategy = any(item.name == "num_trainers" for items in assigned.values() for item in items)
    transpilers = 0
    for call in module.calls:
        short = last(module.called(call))
        if short == "transpile" and is_transpile(call) and transpilers < _MOST_TRANSPILERS:
            transpilers += 1
            yield from _transpile(module, call, assigned)
        elif short == "get_pserver_program":
            yield from _pserver_program(module, call)
        elif short == "memory_optimize" and _is_fluid(module, call):
            yield from _memory_optimize(module, call)
        elif short == "ParallelExecutor" and _is_fluid(module, call):
            yield from _executor(module, call, told_by_strategy=told_by_strategy)
        elif short == "DistributeTranspilerConfig" and module.bound_to(call) not in given_away:
            # Each of several assignments to one name would state the same.
            given_away.add(module.bound_to(call))
            yield from _lone_configuration(module, call, assigned)


def is_transpile(call: ast.Call) -> bool:
    """Whether a call of `transpile` is that of Fluid, by its arguments."""
    own = ("trainers", "pservers", "trainer_id")
    return any(argument(call, name) is not None for name in own) or len(call.args) >= 4


def _is_fluid(module: Module, call: ast.Call) -> bool:
    name = module.called(call)
    return "fluid" in name or name.startswith("paddle") or "fluid" in module.file.text


def _transpile(module: Module, call: ast.Call, assigned: dict[str, list[Assigned]]) -> Iterator[Claim]:
    config, known = _configuration(module, call)
    settings = assigned.get(config, [])[:_MOST_SETTINGS] if config else []
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
    yield from _configured(module, settings, (transpiler,))
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


def _update_mode(sync: Plain) -> Plain:
    return "sync" if sync else "async"


def _configuration(module: Module, call: ast.Call) -> tuple[str, bool]:
    """The name of the transpiler's configuration, and whether all is known of it; empty and true where it has none."""
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
    said = [module.fold(item.value) for item in settings if item.name == "mode"]
    if said:
        return join(said)
    return Known("pserver") if known else Unresolved("the transpiler's configuration is made elsewhere")


def _configured(module: Module, settings: Sequence[Assigned], because: tuple[Claim, ...]) -> Iterator[Claim]:
    """What is assigned to a DistributeTranspilerConfig."""
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
    """The names of configurations that reach a transpiler which is claimed anyway; no name at all is one of them."""
    found = {""}
    for call in module.calls:
        if last(module.called(call)).endswith("DistributeTranspiler"):
            given = argument(call, "config", 0)
            if given is not None:
                found.add(dotted(value_of(given)))
    return found


def _lone_configuration(module: Module, made: ast.Call, assigned: dict[str, list[Assigned]]) -> Iterator[Claim]:
    """A configuration that goes to fleet.distributed_optimizer: its settings, for the script as a whole."""
    settings = assigned.get(module.bound_to(made), [])[:_MOST_SETTINGS]
    transpiler = module.claim(
        "transpiler", _mode(module, settings, known=True), made, strength=Strength.DEFAULT, source="paddle"
    )
    yield transpiler
    yield from _configured(module, settings, (transpiler,))


def _texts(module: Module, call: ast.Call, transpiler: Claim) -> Iterator[Claim]:
    """Numbers that are taken from the environment as they are, which is as text."""
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
    """Whether this is what the environment holds: text, unless a default says otherwise."""
    if isinstance(expression, ast.Subscript):
        return module.name(expression.value) == "os.environ"
    if not isinstance(expression, ast.Call) or module.called(expression) not in _READS:
        return False
    default = argument(expression, "default", 1)
    return default is None or all(isinstance(item, str) for item in alternatives(module.fold(value_of(default))))


def _pserver_program(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "endpoint", 0)
    if given is not None:
        value = module.fold(value_of(given))
        yield module.claim("pserver_program_endpoint", value, given, source="paddle")


def _memory_optimize(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "skip_grads", 4)
    hidden = any(keyword.arg is None for keyword in call.keywords)
    if given is not None:
        yield module.claim("memory_optimize_skips_gradients", module.fold(value_of(given)), given, source="paddle")
    elif not hidden:
        yield module.claim("memory_optimize_skips_gradients", False, call, strength=Strength.DEFAULT, source="paddle")


def _executor(module: Module, call: ast.Call, *, told_by_strategy: bool) -> Iterator[Claim]:
    if argument(call, "share_vars_from") is not None:
        # It evaluates with the parameters of another one.
        return
    told = argument(call, "num_trainers", 6) is not None or any(keyword.arg is None for keyword in call.keywords)
    told = told or told_by_strategy
    yield module.claim("executor_knows_trainers", told, call.func, spelling=module.text(call.func), source="paddle")
