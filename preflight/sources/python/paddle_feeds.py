"""Claims about inputs that the loss of a static program needs and a run of it does not feed.

The loss is followed back through the assignments of its function, and through functions of the script that return it
together with inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight._util.budget import spend
from preflight.model.job import Claim, Known
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import Function, dotted

#: A program that reads its inputs through one of these is not fed.
_READERS = ("py_reader", "from_generator", "create_py_reader_by_data", "open_files", "train_from_dataset")
#: Variables that a loss is followed back through; a model written by hand has fewer.
_MAX_VARIABLES = 2000


def claims(module: Module) -> Iterator[Claim]:
    """State the inputs that a run of the trained program does not get, and the lists of data sets that lack one."""
    losses = [call for call in module.named("minimize") if call.args]
    inputs = _inputs(module)
    if len({module.text(call.args[0]) for call in losses}) != 1 or not inputs:
        return
    loss = losses[0].args[0]
    needed = _inputs_of(module, loss, inputs)
    if not needed:
        return
    for given, fed in _fed(module, loss, inputs):
        missing = sorted(needed - fed)
        if missing:
            yield module.claim("inputs_not_fed", tuple(missing), given, source="paddle")


def _inputs(module: Module) -> dict[int, str]:
    """The names of the data layers, by the call; empty if one has no literal name."""
    found: dict[int, str] = {}
    for call in module.named("data"):
        name = module.called(call)
        if not name.startswith(("paddle.static", "paddle.fluid", "fluid", "static")):
            continue
        given = argument(call, "name", 0)
        text = module.fold(value_of(given)) if given is not None else None
        if not isinstance(text, Known) or not isinstance(text.value, str):
            return {}
        found[id(call)] = text.value
    return found


def _inputs_of(module: Module, loss: ast.expr, inputs: dict[int, str]) -> set[str]:
    """The names of the inputs that an expression is computed from."""
    found: set[str] = set()
    seen: set[tuple[int, str]] = set()
    stack: list[tuple[ast.expr, Function | None]] = [(loss, module.outline.function_of(loss))]
    while stack and len(seen) < _MAX_VARIABLES:
        spend()
        expression, function = stack.pop()
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and id(node) in inputs:
                found.add(inputs[id(node)])
            key = (id(function), dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else "")
            if not key[1] or key in seen:
                continue
            seen.add(key)
            stack.extend(_assigned(module, key[1], function))
    return found


def _assigned(module: Module, name: str, function: Function | None) -> Iterator[tuple[ast.expr, Function | None]]:
    """The expressions that a variable gets its value from, each with the function that it is in."""
    for node in module.nodes(ast.Assign):
        if module.outline.function_of(node) is not function:
            continue
        for target in node.targets:
            if dotted(target) == name:
                yield from _values(module, node.value, None, function)
            elif isinstance(target, ast.Tuple):
                for index, each in enumerate(target.elts):
                    if dotted(each) == name:
                        yield from _values(module, node.value, index, function)


def _values(
    module: Module, value: ast.expr, index: int | None, function: Function | None
) -> Iterator[tuple[ast.expr, Function | None]]:
    """What a value, or its element, is: for a call of a function of the script what that returns."""
    if index is not None and isinstance(value, ast.Tuple) and index < len(value.elts):
        yield value.elts[index], function
        return
    name = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    called = module.outline.functions(name) if name else ()
    for node in ast.walk(called[0]) if len(called) == 1 else ():
        returned = node.value if isinstance(node, ast.Return) else None
        if index is not None and isinstance(returned, ast.Tuple) and index < len(returned.elts):
            returned = returned.elts[index]
        if returned is not None:
            yield returned, called[0]
    yield value, function


def _fed(module: Module, loss: ast.expr, inputs: dict[int, str]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Each run that fetches the loss, and each data set that trains, with the names of the inputs that it gets."""
    if any(True for _ in module.named(*_READERS[:-1])):
        return
    trains = any(True for _ in module.named("train_from_dataset"))
    for call in module.named("init", "set_use_var") if trains else ():
        listed = argument(call, "use_var", 0 if last(module.called(call)) == "set_use_var" else None)
        names = _listed_names(module, listed, inputs)
        if listed is not None and names is not None:
            yield listed, names
    written = {module.text(loss), f"{module.text(loss)}.name"}
    for call in module.named("run"):
        feed, fetched = argument(call, "feed", 1), argument(call, "fetch_list", 2)
        asked = module.definition(value_of(fetched)) if fetched is not None else None
        if feed is None or not isinstance(asked, (ast.List, ast.Tuple)):
            continue
        if not any(module.text(item) in written for item in asked.elts):
            continue
        names = _names_in_feed(module, value_of(feed), inputs)
        if names is not None:
            yield feed, names


def _names_in_feed(module: Module, feed: ast.expr, inputs: dict[int, str]) -> set[str] | None:
    """The names in a literal dictionary, or in the list of the feeder; None if unknown."""
    made = module.definition(feed)
    if isinstance(made, ast.Dict):
        names = [_input_name(module, key, inputs) for key in made.keys]
        # A dictionary that the script adds to is not known.
        grows = isinstance(feed, ast.Name) and _grows(module, feed.id)
        return {name for name in names if name} if all(names) and not grows else None
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "feed":
        feeder = module.definition(made.func.value)
        if isinstance(feeder, ast.Call) and last(module.called(feeder)) == "DataFeeder":
            return _listed_names(module, argument(feeder, "feed_list", 0), inputs)
    return None


def _grows(module: Module, name: str) -> bool:
    """Whether `feed[...] = ...` or `feed.update(...)` adds to a dictionary."""
    for node in module.nodes(ast.Subscript):
        if isinstance(node.ctx, ast.Store) and dotted(node.value) == name:
            return True
    return any(
        isinstance(call.func, ast.Attribute) and dotted(call.func.value) == name for call in module.named("update")
    )


def _listed_names(module: Module, listed: ast.keyword | ast.expr | None, inputs: dict[int, str]) -> set[str] | None:
    """The names of the inputs in a literal list of names or variables; None if one is unknown."""
    made = module.definition(value_of(listed)) if listed is not None else None
    if not isinstance(made, (ast.List, ast.Tuple)):
        return None
    names = [_input_name(module, item, inputs) for item in made.elts]
    return {name for name in names if name} if all(names) else None


def _input_name(module: Module, item: ast.expr | None, inputs: dict[int, str]) -> str:
    """The name of an input that is written as text, as a variable, or as its `.name`; empty if unknown."""
    if item is None:
        return ""
    folded = module.fold(item)
    if isinstance(folded, Known):
        return folded.value if isinstance(folded.value, str) else ""
    if isinstance(item, ast.Attribute) and item.attr == "name":
        item = item.value
    found = {inputs[id(node)] for value, _ in _sources(module, item) for node in [value] if id(node) in inputs}
    return found.pop() if len(found) == 1 else ""


def _sources(module: Module, item: ast.expr) -> Iterator[tuple[ast.expr, Function | None]]:
    """The expressions that a variable stands for, through one function that returns it."""
    name = dotted(item)
    for value, function in _assigned(module, name, module.outline.function_of(item)) if name else ():
        yield value, function
        if isinstance(value, ast.Name):
            yield from _assigned(module, value.id, function)
