"""Claims about the script's own command line: the default values of its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight._util.redaction import scrub
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.value import QUANTITIES, Plain
from preflight.sources.python import imports
from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.words import OPTIONS

#: Option names (without dashes, `-` as `_`) with the same meaning in every known script. `--batch-size` and
#: `--world-size` are not among them: their meaning differs between scripts.
OPTION_QUANTITY = {name: quantity for quantity, names in OPTIONS.items() for name in names}
_LOCAL_RANK = ("--local_rank", "--local-rank")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about options and their defaults."""
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "add_argument" or module.called(call) == "click.option":
            yield from _option(module, call)


def _option(module: Module, call: ast.Call) -> Iterator[Claim]:
    written = [item for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    names = [str(item.value) for item in written]
    for item, name in zip(written, names, strict=True):
        if name in _LOCAL_RANK:
            yield module.claim("local_rank_argument", name, item, spelling=name)
            if not _is_read(module, call):
                yield module.feature("local_rank_never_read", item, condition="")
    given = argument(call, "default")
    long = next((name for name in names if name.startswith("--")), None)
    if long is None or given is None or is_secret(long):
        return
    value = _convert_default(module, call, module.fold(value_of(given)))
    found = alternatives(value)
    if not found or any(item is None or item == "" for item in found):
        return
    spelling = f"{long}={module.text(value_of(given))}"
    yield module.claim(
        "argument_default",
        lift(lambda item: scrub(str(item)), value),
        given,
        strength=Strength.DEFAULT,
        spelling=spelling,
    )
    quantity = OPTION_QUANTITY.get(long.lstrip("-").replace("-", "_"))
    if quantity is None or any(isinstance(item, tuple) for item in found):
        return
    if not any(isinstance(item, (int, float)) and item < 0 for item in found):
        if QUANTITIES[quantity].kind is int:
            # `default="29500"` without a type: the script itself converts it to a number somewhere.
            value = lift(_as_integer, value)
        yield module.claim(quantity, value, given, strength=Strength.DEFAULT, spelling=spelling)


#: Libraries that read the local rank of the options that they are given as a whole.
_READERS = re.compile(r"deepspeed|colossalai|megatron|fairseq|accelerate|transformers")
_NAMED = re.compile(r"\blocal_rank\b")


def _is_read(module: Module, call: ast.Call) -> bool:
    """Return whether the program may read the local rank that an option gives it."""
    if argument(call, "dest") is not None or any(map(_READERS.search, imports.libraries(module))):
        return True
    modules, complete = imports.texts_of_modules(module)
    if not complete or any(_NAMED.search(each.text) for each in modules):
        return True
    declared = {id(node) for node in ast.walk(call)}
    places: list[ast.AST] = [*module.nodes(ast.Attribute), *module.nodes(ast.Name), *module.nodes(ast.Constant)]
    names = {_name(node) for node in places if id(node) not in declared}
    return any(_NAMED.search(name) for name in names)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else str(node.value) if isinstance(node, ast.Constant) else ""


def _convert_default(module: Module, call: ast.Call, value: Value) -> Value:
    """Convert a default that is a string, as argparse does: `type=int, default="8"` is 8."""
    given = argument(call, "type")
    if given is None or module.name(value_of(given)) != "int":
        return value
    read = lift(_as_integer, value)
    return value if isinstance(read, Unresolved) else read


def _as_integer(item: Plain) -> Plain:
    return int(item) if isinstance(item, str) and len(item) < 20 else item
