"""The value that a script gives an expression unless something outside it decides: options and literal tables.

`args.device` is the default of `--device`, `CFG["device"]` the entry of a literal dictionary. One command line starts
all ranks, so that an option has one value for all of them, whichever it is.
"""

from __future__ import annotations

import ast

from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import end_of

#: A default that is itself an option or entry is followed to this depth.
_MAX_DEPTH = 5


def constant_of(module: Module, expression: ast.expr) -> ast.expr:
    """What an expression stands for, through variables, options and literal dictionaries; itself if unknown."""
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
    """The default of the script's one option of this name, if nothing assigns the attribute."""
    found = [call for call in module.named("add_argument") if name in _destinations(call)]
    if len(found) != 1 or any(
        end_of(node) == name and isinstance(node.ctx, ast.Store) for node in module.nodes(ast.Attribute)
    ):
        return None
    given = argument(found[0], "default")
    return value_of(given) if given is not None else None


def _destinations(call: ast.Call) -> list[str]:
    """The attributes that an option may be stored under."""
    given = argument(call, "dest")
    written = [value_of(given)] if given is not None else call.args
    texts = [str(item.value) for item in written if isinstance(item, ast.Constant)]
    return [text.lstrip("-").replace("-", "_") for text in texts]


def _entry(module: Module, subscript: ast.Subscript) -> ast.expr | None:
    """The value of `TABLE["key"]`, where TABLE is a literal dictionary."""
    table = module.definition(subscript.value)
    key = getattr(module.fold(subscript.slice), "value", None)
    if not isinstance(table, ast.Dict) or key is None:
        return None
    found = [value for name, value in zip(table.keys, table.values, strict=True) if _is_key(module, name, key)]
    return found[0] if len(found) == 1 else None


def _is_key(module: Module, name: ast.expr | None, key: object) -> bool:
    return name is not None and getattr(module.fold(name), "value", None) == key
