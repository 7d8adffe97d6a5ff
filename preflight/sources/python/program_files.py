"""Values that a program takes out of a JSON or YAML file that it reads: `cfg["train"]["batch_size"]`.

A value counts only where the program certainly leaves it as the file has it: nothing assigns that key, and no method
changes what was read.
"""

from __future__ import annotations

import ast
import functools

from preflight.model.job import Known
from preflight.model.job.value import FileValue, ProgramOption
from preflight.sources.python.module import Module
from preflight.sources.python.outline import end_of
from preflight.sources.python.program import Place
from preflight.sources.python.program_options import Options

#: Functions that read a file that is open, or its text.
_LOADS = frozenset(("json.load", "json.loads", "yaml.safe_load", "yaml.load", "yaml.full_load"))
#: Those that read the file with a path.
_LOADS_PATH = frozenset(("omegaconf.OmegaConf.load", "OmegaConf.load"))
#: What gives the keys of a dictionary as attributes.
_WRAPS = frozenset(("EasyDict", "edict", "AttrDict", "Box", "Munch", "DotMap", "create"))
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "merge", "merge_with", "set_struct", "setattr")
_MAX_KEYS = 8
#: Arguments of functions are followed to this depth.
_MAX_DEPTH = 4


class ProgramFiles:
    """The files that a program reads its settings from."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._program = options.program

    def value(self, module: Module, expression: ast.expr) -> FileValue | None:
        """What an expression takes out of a file; None if it is something else, or may be changed."""
        keys: list[str | int] = []
        is_attribute = False
        place = self._program.meaning(module, expression)
        while len(keys) < _MAX_KEYS:
            inner = _inner(*place)
            if inner is None:
                break
            keys.insert(0, inner[1])
            is_attribute = is_attribute or isinstance(place.expression, ast.Attribute)
            place = self._program.meaning(place.module, inner[0])
        path = self._path(place, is_attribute=is_attribute) if keys else None
        if path is None or self._is_changed(keys, place, is_attribute=is_attribute):
            return None
        return FileValue(path, tuple(keys))

    def _path(self, place: Place, *, is_attribute: bool) -> str | ProgramOption | None:
        """The path of the file that a call reads."""
        module, call = place
        if not isinstance(call, ast.Call) or not call.args:
            return None
        name = module.called(call)
        if name.rpartition(".")[2] in _WRAPS and name not in _LOADS_PATH:
            return self._path(self._program.meaning(module, call.args[0]), is_attribute=False)
        if name in _LOADS_PATH:
            return self._text(module, call.args[0])
        if name not in _LOADS or is_attribute:
            return None
        source = call.args[0]
        if isinstance(source, ast.Call) and end_of(source.func) == "read" and isinstance(source.func, ast.Attribute):
            source = source.func.value
        opened: ast.expr | None = source
        if isinstance(source, ast.Name):
            opened = _opened_with(module, source) or self._program.meaning(module, source).expression
        if isinstance(opened, ast.Call) and module.called(opened) == "open" and opened.args:
            return self._text(module, opened.args[0])
        return None

    def _text(self, module: Module, expression: ast.expr) -> str | ProgramOption | None:
        place = self._program.meaning(module, expression)
        if isinstance(place.expression, ast.Attribute):
            return self._options.of(place.expression, place.module)
        value = place.module.fold(place.expression)
        return value.value if isinstance(value, Known) and isinstance(value.value, str) else None

    def _is_changed(self, keys: list[str | int], loaded: Place, *, is_attribute: bool) -> bool:
        """Whether the program may change the value of a key, or all that it has read."""
        if not self._program.is_complete or self._keys & set(map(str, keys)) or self._changes_all(loaded):
            return True
        return is_attribute and bool(self._attributes & set(map(str, keys)))

    @functools.cached_property
    def _keys(self) -> set[str]:
        """The keys to which the program assigns anywhere."""
        return {
            str(value.value)
            for module in self._program.modules
            for item in module.nodes(ast.Subscript)
            if not isinstance(item.ctx, ast.Load) and isinstance(value := module.fold(item.slice), Known)
        }

    @functools.cached_property
    def _attributes(self) -> set[str]:
        """The attributes that the program assigns anywhere, but to `self`."""
        return {
            node.attr
            for module in self._program.modules
            for node in module.nodes(ast.Attribute)
            if not isinstance(node.ctx, ast.Load) and end_of(node.value) != "self"
        }

    def _changes_all(self, loaded: Place) -> bool:
        """Whether a method changes what was read, or a key that is not known is assigned to it."""
        for module in self._program.modules:
            holders: list[ast.expr] = [
                call.func.value for call in module.named(*_CHANGES) if isinstance(call.func, ast.Attribute)
            ]
            holders += [call.args[0] for call in module.named("setattr", "merge") if call.args]
            holders += [
                item.value
                for item in module.nodes(ast.Subscript)
                if not isinstance(item.ctx, ast.Load) and not isinstance(module.fold(item.slice), Known)
            ]
            if any(self._is_of(Place(module, holder), loaded, 0) for holder in holders):
                return True
        return False

    def _is_of(self, place: Place, loaded: Place, depth: int) -> bool:
        """Whether an expression may be a part of what was read."""
        place = self._program.meaning(*place)
        while (inner := _inner(*place)) is not None:
            place = self._program.meaning(place.module, inner[0])
        if place.expression is loaded.expression:
            return True
        module, name = place
        function = module.outline.function_of(name)
        if not isinstance(name, ast.Name) or function is None or depth == _MAX_DEPTH:
            return False
        given = [self._program.argument(function, call, name.id, module) for call in self._program.calls(function)]
        return any(each is not None and self._is_of(each, loaded, depth + 1) for each in given)


def _inner(module: Module, expression: ast.expr) -> tuple[ast.expr, str | int] | None:
    """The dictionary out of which an expression takes a value, and the key."""
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        key = expression.slice.value
        return (expression.value, key) if isinstance(key, str | int) else None
    if isinstance(expression, ast.Attribute):
        return expression.value, expression.attr
    if (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr == "get"
        and expression.args
        and isinstance(expression.args[0], ast.Constant)
        and isinstance(expression.args[0].value, str)
        and module.called(expression) not in ("os.environ.get",)
    ):
        return expression.func.value, expression.args[0].value
    return None


def _opened_with(module: Module, name: ast.Name) -> ast.expr | None:
    """What `with ... as name` around a name opens."""
    for outer in module.outline.above(name):
        for item in outer.items if isinstance(outer, (ast.With, ast.AsyncWith)) else ():
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name.id:
                return item.context_expr
    return None
