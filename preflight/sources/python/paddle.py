"""Claims of Paddle scripts: collective or parameter server, and the servers and trainers named in the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Relation, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.value import Plain
from preflight.sources.python import imports, paddle_legacy, paddle_static, paddle_strategy
from preflight.sources.python.module import Module, argument, is_none, last, value_of
from preflight.sources.python.outline import dotted

_SUBJECTS = (
    paddle_legacy.fluid_claims,
    paddle_static.layer_claims,
    paddle_static.claims,
    paddle_static.feed_claims,
    paddle_strategy.claims,
)
#: Libraries that never start Fleet. PaddleNLP's trainer and its like do.
_NO_FLEET = frozenset(
    ("PIL", "cv2", "matplotlib", "numpy", "paddle", "pandas", "scipy", "sklearn", "tqdm", "visualdl", "yaml")
)
_OF_PADDLE = re.compile(r"\b(?:paddle|fluid|fleet)\b")
#: The methods of fleet that the text of a module calls.
_OF_FLEET = re.compile(r"\bfleet\.(\w+)\(")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about fleet, role makers and the legacy transpiler, and those of the other Paddle modules."""
    if _OF_PADDLE.search(module.file.text) is None:
        return
    yield from _roles(module)
    yield from _fleet_calls(module)
    yield from _imports(module)
    yield from _unfit_layers(module)
    for subject in _SUBJECTS:
        yield from subject(module)


#: Layers that are divided between ranks, with the argument for the form of their result or input, and its default.
_DIVIDED = {"ColumnParallelLinear": ("gather_output", True), "RowParallelLinear": ("input_is_parallel", False)}


def _unfit_layers(module: Module) -> Iterator[Claim]:
    """Yield a call of a RowParallelLinear whose input is whole where it expects a part, or the other way round.

    Source: paddle/distributed/fleet/layers/mpu/mp_layers.py of 3.3 (forward).
    """
    forms: dict[str, tuple[str, object]] = {}
    for node in module.nodes(ast.Assign):
        kind = last(module.called(node.value)) if isinstance(node.value, ast.Call) else ""
        if isinstance(node.value, ast.Call) and kind in _DIVIDED and module.called(node.value).startswith("paddle."):
            name, default = _DIVIDED[kind]
            given = argument(node.value, name)
            form = module.fold(value_of(given)) if given is not None else Known(default)
            # Two classes may give one name to layers of two forms.
            owner = next((each.name for each in module.outline.above(node) if isinstance(each, ast.ClassDef)), "")
            forms[f"{owner}.{dotted(node.targets[0])}"] = (kind, form.value if isinstance(form, Known) else None)
    for call in module.calls if forms else ():
        owner = next((each.name for each in module.outline.above(call) if isinstance(each, ast.ClassDef)), "")
        row, expects_part = forms.get(f"{owner}.{dotted(call.func)}", ("", None))
        inner = [node for item in call.args for node in ast.walk(item) if isinstance(node, ast.Call)]
        columns = [forms.get(f"{owner}.{dotted(each.func)}", ("", None)) for each in inner]
        wholes = [form for kind, form in columns if kind == "ColumnParallelLinear"]
        is_known = row == "RowParallelLinear" and len(wholes) == 1 and None not in (wholes[0], expects_part)
        if is_known and wholes[0] == expects_part:
            yield module.feature("parallel_layers_unfit", call)
            return


def _imports(module: Module) -> Iterator[Claim]:
    """Yield `import paddle.fluid` at the top of the script, where a failure ends the script."""
    for node in module.tree.body:
        fluid = isinstance(node, ast.Import) and any(
            name.name == "paddle.fluid" or name.name.startswith("paddle.fluid.") for name in node.names
        )
        if isinstance(node, ast.ImportFrom):
            source = node.module or ""
            fluid = source.startswith("paddle.fluid") or (
                source == "paddle" and any(name.name == "fluid" for name in node.names)
            )
        if fluid:
            yield module.claim("imports_fluid", True, node, source="paddle")
            return


def _roles(module: Module) -> Iterator[Claim]:
    for call in module.calls:
        name = module.called(call)
        short = last(name)
        if short == "init" and "fleet" in name.split("."):
            yield from _fleet_init(module, call, name)
        elif short == "prepare_context":
            yield module.claim("parallel_environment", True, call, source="paddle")
        elif short == "init_parallel_env" and (name.startswith("paddle") or "paddle" in module.file.text):
            yield module.claim("parallel_environment", True, call, source="paddle")
            yield module.claim("ps_mode", False, call, relation=Relation.REQUIRES, source="paddle")
        elif short == "UserDefinedRoleMaker":
            yield from _role_maker(module, call)
        elif short == "transpile" and paddle_legacy.is_transpile(call):
            yield module.claim("waits_for_servers", True, call.func, strength=Strength.DEFAULT, source="paddle")
            if argument(call, "pservers") is not None or len(call.args) >= 4:
                yield from _transpile(module, call)


def _fleet_calls(module: Module) -> Iterator[Claim]:
    """Yield the methods of fleet that the script or its modules call, located at its `fleet.init` or the first of
    them.
    """
    found: dict[str, ast.Call] = {}
    for call in module.calls:
        name = module.called(call)
        if "fleet" in name.split(".")[:-1]:
            found.setdefault(last(name), call)
    if found:
        at = found.get("init") or next(iter(found.values()))
        unread = sorted(set(imports.libraries(module)) - _NO_FLEET)
        if unread:
            yield module.claim("fleet_libraries", tuple(unread), at.func, source="paddle")
        texts = [each.text for each in imports.texts_of_modules(module)[0]]
        names = {*found, *(name for text in texts for name in _OF_FLEET.findall(text))}
        if any(module.named("train_from_dataset")):
            names.add("train_from_dataset")
        yield module.claim("fleet_calls", tuple(sorted(names)), at.func, spelling=module.text(at), source="paddle")


def _fleet_init(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """Yield `fleet.init(is_collective=...)`, or the mode of its role maker or module; the default is parameter
    servers.
    """
    yield module.claim("waits_for_servers", True, call, strength=Strength.DEFAULT, source="paddle")
    yield module.claim("parallel_environment", True, call, source="paddle")
    given = argument(call, "is_collective", 1)
    role_maker = argument(call, "role_maker", 0)
    maker = module.definition(value_of(role_maker)) if role_maker is not None else None
    if maker is None or (isinstance(maker, ast.Call) and last(module.called(maker)) == "PaddleCloudRoleMaker"):
        yield module.claim("role_from_environment", True, call, source="paddle")
    if given is None and role_maker is not None:
        made = module.definition(value_of(role_maker))
        if isinstance(made, ast.Call):
            given = argument(made, "is_collective", 0)
        elif not is_none(made):
            return
    if given is not None:
        value = lift(_servers, module.fold(value_of(given)))
        if alternatives(value):
            yield module.claim("ps_mode", value, given, relation=Relation.REQUIRES, source="paddle")
        return
    servers = ".collective" not in name
    yield module.claim("ps_mode", servers, call, relation=Relation.REQUIRES, strength=Strength.DEFAULT, source="paddle")


def _servers(collective: Plain) -> bool:
    if not isinstance(collective, bool):
        raise TypeError("is_collective must be true or false")
    return not collective


def _role_maker(module: Module, call: ast.Call) -> Iterator[Claim]:
    workers = argument(call, "worker_num")
    if workers is not None:
        yield from _literal_claims(module, "ps_workers", module.fold(value_of(workers)), workers)
    endpoints = argument(call, "server_endpoints")
    if endpoints is not None:
        yield from _literal_claims(module, "ps_server_endpoints", _endpoints(module, value_of(endpoints)), endpoints)
    role = argument(call, "role")
    if role is not None:
        written = last(module.name(value_of(role)))
        if written in ("WORKER", "SERVER"):
            value = Known("TRAINER" if written == "WORKER" else "PSERVER")
            yield from _literal_claims(module, "ps_role", value, role)


def _transpile(module: Module, call: ast.Call) -> Iterator[Claim]:
    yield module.claim("ps_mode", True, call.func, spelling=module.text(call), source="paddle")
    pservers = argument(call, "pservers", paddle_legacy.POSITIONS["pservers"])
    if pservers is not None:
        value = _endpoints(module, value_of(pservers))
        yield from _literal_claims(module, "ps_server_endpoints", value, pservers)
    trainers = argument(call, "trainers", paddle_legacy.POSITIONS["trainers"])
    if trainers is not None:
        yield from _literal_claims(module, "ps_workers", module.fold(value_of(trainers)), trainers)
    trainer_id = argument(call, "trainer_id", paddle_legacy.POSITIONS["trainer_id"])
    if trainer_id is not None:
        yield from _literal_claims(module, "ps_index", module.fold(value_of(trainer_id)), trainer_id)


def _endpoints(module: Module, expression: ast.expr) -> Value:
    return lift(_split, module.fold(expression))


def _split(item: Plain) -> Plain:
    """Return `"a:1,b:2"` or `["a:1", "b:2"]` as a tuple."""
    if isinstance(item, str) and item:
        return tuple(part.strip() for part in item.split(",") if part.strip())
    if isinstance(item, tuple) and all(isinstance(part, str) for part in item):
        return item
    raise TypeError("endpoints must be strings")


def _literal_claims(module: Module, quantity: str, value: Value, at: ast.keyword | ast.expr) -> Iterator[Claim]:
    """Yield claims of literals only: in most scripts these values come from the environment, which has its own
    claims.
    """
    if not isinstance(value, Unresolved):
        yield module.claim(quantity, value, at, source="paddle")
