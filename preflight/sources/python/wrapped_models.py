"""Uses of a model through a wrapper that hides it: DistributedDataParallel, or Accelerate's `prepare`.

The wrapper is a module of its own. It passes on the calls of the model and what every module has; attributes and
methods of the model are those of `model.module`.

`wrapper_attributes.toml` names what the wrapper has.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from preflight._util import toml
from preflight._util.budget import spend
from preflight.model.job import Claim, Known
from preflight.sources.python.module import Module, argument, exclude_each_other, places_given, value_of
from preflight.sources.python.outline import Function, dotted, end_of


@functools.cache
def _attributes_of_wrappers() -> dict[str, frozenset[str]]:
    table = toml.beside(__file__, "wrapper_attributes.toml")
    return {library: frozenset(names) for library, names in table.items()}


#: How a model is called that a class of each library wraps.
_KINDS = {"torch": "ddp", "paddle": "paddle"}
_WRAPPERS = ("DistributedDataParallel", "DataParallel")
#: Branches that a run with several ranks takes.
_DISTRIBUTED = re.compile(
    r"[\w.]*?(?:dist|ddp|world_?size|n_?gpus?|num_gpus|device_count|rank|multi_?gpu|is_initialized)"
    r"[\w.\[\]\"'()]*(?: *(?:> *[01]|>= *2|!= *-?1))?"
    # Some rank is the first.
    r"|[\w.]*rank(?:\(\))? *== *0",
)
#: Branches that a run with one rank, or with another wrapper, takes.
_ALONE = re.compile(
    r"\bnot\b(?! (?:in|None)\b)[^&]*?(?:dist|ddp|world|gpu|rank|parallel|wrap|launch|device_count|is_initialized)"
    r"|== *-?1\b|<= *1\b|< *2\b|is None\b|num_processes|use_distributed|distributed_type"
)
#: Questions about whether a model is wrapped.
_ASKS = re.compile(r"hasattr\(|getattr\(|isinstance\(|\bunwrap|\.module\b|\._layers\b|type\(|\btry\b")
_MODEL = re.compile(r"model|net|unet|vae|encoder|decoder|generator|discriminator|policy|actor|critic|student|teacher")
#: Functions and calls of one script that are joined with other files.
_MAX_JOINED = 40


#: Words of a script that may divide what `prepare` returns.
_DIVIDED = re.compile(r"deepspeed|fsdp", re.IGNORECASE)


class _Wrapped(NamedTuple):
    """A name that holds a wrapped model from a node on."""

    name: str
    node: ast.AST
    kind: str
    condition: str


def claims(module: Module) -> Iterator[Claim]:
    """Attributes of wrapped models, and wrapped models that are passed to functions of other files."""
    text = module.file.text
    wrapped = list(_wrapped(module)) if "DataParallel" in text or ".prepare(" in text else []
    for each in wrapped:
        yield from _attributes(module, each)
        yield from _passed(module, each)
        yield from _gone_round(module, each)
    yield from _attributes_of_arguments(module)


def _wrapped(module: Module) -> Iterator[_Wrapped]:
    for call in module.named(*_WRAPPERS):
        name = module.bound_to(call)
        library = module.called(call).partition(".")[0]
        if name and library in _KINDS:
            yield _Wrapped(name, call, _KINDS[library], _without_ranks(module.condition(call)))
    if _DIVIDED.search(module.file.text):
        # DeepSpeed's engine and FSDP pass attributes on.
        return
    accelerators = {module.bound_to(call) for call in module.named("Accelerator") if not _wraps_otherwise(call)} - {""}
    trained = _optimized(module)
    for call in module.named("prepare"):
        receiver = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        parent = module.parent(call)
        if receiver not in accelerators or not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            continue
        target = parent.targets[0]
        targets = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        if len(targets) != len(call.args) or any(isinstance(item, ast.Starred) for item in (*targets, *call.args)):
            continue
        for left, right in zip(targets, call.args, strict=True):
            if dotted(left) and (dotted(right) in trained or dotted(left) in trained):
                yield _Wrapped(dotted(left), call, "prepared", module.condition(call))


def _gone_round(module: Module, wrapped: _Wrapped) -> Iterator[Claim]:
    """Yield a loss that is made by the model inside of a wrapper that the script never calls."""
    text = module.file.text
    if wrapped.kind != "ddp" or "backward(" not in text or ".step(" not in text or _AVERAGES.search(text):
        return
    if _is_known_otherwise(module, wrapped.name):
        return
    inside = f"{wrapped.name}.module"
    helpers = {
        node.name
        for node in module.nodes(ast.FunctionDef)
        if any(isinstance(each, ast.Return) and inside in module.source(each) for each in ast.walk(node))
    }
    losses = {dotted(call.func.value) for call in module.named("backward") if isinstance(call.func, ast.Attribute)}
    found: ast.Call | None = None
    for call in module.calls:
        called = dotted(call.func)
        given = {dotted(each) for each in (*call.args, *(keyword.value for keyword in call.keywords))}
        if called in (wrapped.name, f"{wrapped.name}.forward") or (
            wrapped.name in given and end_of(call.func) not in _LOOKS_AT
        ):
            # Called, or handed on to a function that may call it.
            return
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        helped = isinstance(receiver, ast.Call) and end_of(receiver.func) in helpers
        if (called == inside or called.startswith(f"{inside}.") or helped) and module.bound_to(call) in losses - {""}:
            found = found or call
    if found is not None:
        because = (module.claim("script_feature", "part of a wrapper", wrapped.node, condition=""),)
        yield module.claim("script_feature", "loss_of_module_inside", found, because=because)


#: The script itself exchanges the gradients.
_AVERAGES = re.compile(r"all_?reduce\([^\n]*\.grad")


def _is_known_otherwise(module: Module, name: str) -> bool:
    """Return whether a model has another name, or is a part of an object whose base class may call it."""
    values: list[ast.expr | None] = [node.value for node in module.nodes(ast.Assign)]
    values += [node.value for node in module.nodes(ast.Return)]
    values += [item for node in module.nodes(ast.Dict) for item in node.values]
    values += [item for node in module.nodes(ast.List) for item in node.elts]
    values += [item for node in module.nodes(ast.Tuple) for item in node.elts]
    bases = [dotted(base) for node in module.nodes(ast.ClassDef) for base in node.bases]
    derived = name.startswith("self.") and any(base != "object" for base in bases)
    return derived or any(dotted(value) == name for value in values)


#: Functions that do not call a model they are given.
_LOOKS_AT = frozenset(("isinstance", "hasattr", "getattr", "len", "print", "type", "id"))


def _without_ranks(condition: str) -> str:
    """Return a condition without the parts that hold wherever several ranks run."""
    parts = [part for part in condition.split(" and ") if part and not _DISTRIBUTED.fullmatch(part)]
    return " and ".join(parts)


def _optimized(module: Module) -> frozenset[str]:
    """Return the names whose parameters an optimizer may take: neither frozen as a whole, nor only counted in loops."""
    taken = {
        dotted(call.func.value)
        for call in module.named("parameters")
        if isinstance(call.func, ast.Attribute) and not _is_looped_over(module, call)
    }
    frozen = {
        dotted(call.func.value)
        for call in module.named("requires_grad_")
        if isinstance(call.func, ast.Attribute)
        and (given := argument(call, "requires_grad", 0)) is not None
        and module.fold(value_of(given)) == Known(False)
    }
    return frozenset(taken - frozen - {""})


def _is_looped_over(module: Module, call: ast.Call) -> bool:
    """Return whether a loop takes the items of a call one by one, and hands none of them on."""
    outer = module.parent(call)
    if isinstance(outer, ast.For):
        return True
    made = module.parent(outer) if isinstance(outer, ast.comprehension) else None
    return isinstance(made, (ast.GeneratorExp, ast.ListComp, ast.SetComp)) and not isinstance(made.elt, ast.Name)


def _wraps_otherwise(call: ast.Call) -> bool:
    """Return whether an Accelerator may wrap models in another way than DistributedDataParallel."""
    return any(each.arg is None or each.arg == "cpu" or each.arg.endswith("_plugin") for each in call.keywords)


def _attributes(module: Module, wrapped: _Wrapped) -> Iterator[Claim]:
    """Yield the first use of each attribute that the wrapper does not have."""
    seen: set[str] = set()
    stored = _stored_models(module, wrapped.name)
    for node in module.nodes(ast.Attribute):
        if dotted(node.value) != wrapped.name or not _is_hidden(node, stored, wrapped.kind) or node.attr in seen:
            continue
        spend()
        if _is_after(module, wrapped, node) and not _is_asked(module, node) and not _is_alone(module, wrapped, node):
            seen.add(node.attr)
            because = (module.claim("script_feature", "part of a wrapper", wrapped.node, condition=""),)
            condition = _own_condition(module, wrapped, node)
            # A wrapper in a branch of ranks is made where several run.
            of_ranks = wrapped.kind in _KINDS.values() and module.condition(wrapped.node) != wrapped.condition
            name = f"attribute_of_{wrapped.kind}" + ("_of_ranks" if of_ranks else "")
            yield module.claim("script_feature", name, node, because=because, condition=condition)


def _is_hidden(node: ast.Attribute, stored: frozenset[str], kind: str = "ddp") -> bool:
    known = node.attr in _attributes_of_wrappers()["paddle" if kind == "paddle" else "torch"] or node.attr.startswith(
        "_"
    )
    return isinstance(node.ctx, ast.Load) and not known and node.attr not in stored


def _stored_models(module: Module, name: str) -> frozenset[str]:
    """Return the attributes that the script itself gives to a name."""
    written = {
        str(call.args[1].value)
        for call in module.named("setattr")
        if len(call.args) > 1 and dotted(call.args[0]) == name and isinstance(call.args[1], ast.Constant)
    }
    return frozenset(
        node.attr
        for node in module.nodes(ast.Attribute)
        if isinstance(node.ctx, ast.Store) and dotted(node.value) == name
    ).union(written)


def _own_condition(module: Module, wrapped: _Wrapped, node: ast.AST) -> str:
    """Return the branches around a use, without those around the wrapper and those of ranks."""
    return " and ".join(part for part in (wrapped.condition, _without_ranks(_inner(module, wrapped, node))) if part)


def _inner(module: Module, wrapped: _Wrapped, node: ast.AST) -> str:
    """Return the branches around a use that are not around the wrapper, and what is asked before it in its
    expression.
    """
    outer = module.condition(wrapped.node)
    inner = module.condition(node)
    rest = inner[len(outer) :].removeprefix(" and ") if outer and inner.startswith(outer) else inner
    return " and ".join(part for part in (rest, *_operands(module, node)) if part)


def _operands(module: Module, node: ast.AST) -> Iterator[str]:
    """Yield the conditions before a use in its own expression: `world_size == 1` in `world_size == 1 and
    model.freeze()`.
    """
    child = node
    for outer in module.outline.above(node):
        if isinstance(outer, ast.BoolOp):
            for value in outer.values:
                if value is child:
                    break
                yield module.text(value) if isinstance(outer.op, ast.And) else f"not ({module.text(value)})"
        child = outer


def _is_alone(module: Module, wrapped: _Wrapped, node: ast.AST) -> bool:
    """Return whether a use is in a branch that the run takes where it does not wrap the model."""
    inner, outer = _inner(module, wrapped, node), module.condition(wrapped.node)
    if exclude_each_other(inner, outer):
        return True
    return _ALONE.search(inner) is not None or (outer != "" and re.search(_negate(outer), inner) is not None)


def _negate(condition: str) -> str:
    """Return a pattern of the opposite of a condition."""
    return rf"\bnot \(?{re.escape(condition)}"


def _is_after(module: Module, wrapped: _Wrapped, node: ast.AST) -> bool:
    """Return whether a use comes after the wrapper, with no other value in between."""
    made, used = module.outline.function_of(wrapped.node), module.outline.function_of(node)
    first, here = _line(wrapped.node), _line(node)
    if any(module.outline.is_else(outer) for outer in (node, *module.outline.above(node))):
        # Another branch may be the one with the wrapper.
        return False
    if made is used:
        between = (_line(value) for value in module.outline.assignments(made).get(wrapped.name, ()))
        return here > _end(wrapped.node) and not any(first < line <= here for line in between)
    if made is None or used is None or not wrapped.name.startswith("self.") or made.name != "__init__":
        return False
    same = _class_of(module, made)
    values = module.outline.assignments(made).get(wrapped.name, ())
    others = [
        function
        for function in (same.body if same is not None else ())
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and function is not made
        and wrapped.name in module.outline.assignments(function)
    ]
    return same is not None and same is _class_of(module, used) and not others and first >= max(map(_line, values))


def _class_of(module: Module, function: Function) -> ast.ClassDef | None:
    outer = module.parent(function)
    return outer if isinstance(outer, ast.ClassDef) else None


def _is_asked(module: Module, node: ast.AST) -> bool:
    """Return whether the script asks first whether the model is wrapped."""
    if _ASKS.search(" and ".join((module.condition(node), *_operands(module, node)))):
        return True
    function = module.outline.function_of(node)
    name = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    if function is not None and name:
        asked = rf"(?:hasattr|getattr|isinstance|type|issubclass)\(\s*{re.escape(name)}\b(?!\.)"
        if re.search(asked, module.source(function)):
            return True
    return any(isinstance(outer, (ast.Try, ast.Lambda)) for outer in module.outline.above(node))


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", 0) or 0)


def _passed(module: Module, wrapped: _Wrapped) -> Iterator[Claim]:
    """Yield calls of functions of this or another file that get a wrapped model."""
    joined = 0
    for call, place in places_given(module, wrapped.name):
        if joined >= _MAX_JOINED:
            return
        if _is_after(module, wrapped, call):
            joined += 1
            because = (module.claim("script_feature", "part of a wrapper", wrapped.node, condition=""),)
            condition = _own_condition(module, wrapped, call)
            name = f"{wrapped.kind}_passed:{place}"
            yield module.claim("script_feature", name, call, because=because, condition=condition)


def _attributes_of_arguments(module: Module) -> Iterator[Claim]:
    """Yield attributes that functions read from an argument that is a model by its name, and that a wrapper lacks."""
    stem = PurePosixPath(module.file.path).stem
    functions: list[Function] = [*module.nodes(ast.FunctionDef), *module.nodes(ast.AsyncFunctionDef)]
    names = {
        (id(function), given.arg): (function, index)
        for function in functions
        if not isinstance(module.parent(function), ast.ClassDef)
        for index, given in enumerate(function.args.args)
        if _MODEL.search(given.arg)
    }
    joined: set[tuple[int, str]] = set()
    for node in module.nodes(ast.Attribute) if names else ():
        if not isinstance(node.value, ast.Name) or len(joined) >= _MAX_JOINED:
            continue
        if not _is_hidden(node, _stored_models(module, node.value.id)):
            continue
        used = module.outline.function_of(node)
        key = (id(used), node.value.id)
        if key not in names or key in joined:
            continue
        function, index = names[key]
        if node.value.id in module.outline.assignments(function) or _is_asked(module, node):
            continue
        if _ASKS.search(module.source(function)):
            continue
        joined.add(key)
        name = f"attribute_of_argument:{stem}.{function.name}:{index}"
        yield module.claim("script_feature", name, node, condition=module.condition(node))
