"""Values that a program takes out of a JSON or YAML file that it reads: `cfg["train"]["batch_size"]`.

A value counts only where the program certainly leaves it as the file has it: nothing assigns that key, and no method
changes what was read.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from preflight.model.job import Known
from preflight.model.job.value import FileValue, ProgramOption
from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import end_of
from preflight.sources.python.program import Place
from preflight.sources.python.program_options import Options

#: Functions that read a file that is open, or its text.
_LOADS = frozenset(("json.load", "json.loads", "yaml.safe_load", "yaml.load", "yaml.full_load"))
#: Those that read the file with a path.
_LOADS_PATH = frozenset(("omegaconf.OmegaConf.load", "OmegaConf.load"))
#: What gives the keys of a dictionary as attributes.
_WRAPS = frozenset(("EasyDict", "edict", "AttrDict", "Box", "Munch", "DotMap", "create"))
#: Functions that look at a dictionary, or copy it, without changing it.
_LOOK = frozenset(
    ("print", "str", "repr", "len", "isinstance", "type", "bool", "json", "pprint", "logging", "logger", "copy", "dict")
)
#: Libraries whose functions may write a file that they are given.
_MOVING = ("shutil.", "subprocess.", "os.rename", "os.replace", "os.system", "os.remove", "os.unlink")
_MAX_KEYS = 8
#: Assignments, keys and arguments are followed to this depth.
_MAX_DEPTH = 16


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
        if path is None or not self._program.is_complete or self._is_written(path):
            return None
        return FileValue(path, tuple(keys)) if self._is_only_read(place, keys, 0) else None

    def _path(self, place: Place, *, is_attribute: bool) -> str | ProgramOption | None:
        """The path of the file that a call reads."""
        module, call = place
        if not isinstance(call, ast.Call) or not call.args:
            return None
        name = module.called(call)
        is_own = any(end_of(call.func) == each.name for m in self._program.modules for each in m.nodes(ast.ClassDef))
        if name.rpartition(".")[2] in _WRAPS and name not in _LOADS_PATH and not is_own:
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

    def _is_written(self, path: str | ProgramOption) -> bool:
        """Whether the program may write the file before it reads it, or go to another folder."""
        if any(module.named("chdir") for module in self._program.modules):
            return True
        for module in self._program.modules:
            for call in module.calls:
                moves = module.called(call).startswith(_MOVING)
                if moves and any(str(path) in module.source(each) for each in call.args):
                    return True
        opens = [Place(module, call) for module in self._program.modules for call in module.named("open")]
        modes = (
            (place, argument(place.expression, "mode", 1)) for place in opens if isinstance(place.expression, ast.Call)
        )
        return any(
            mode is not None
            and isinstance(place.expression, ast.Call)
            and place.expression.args
            and place.module.fold(value_of(mode)) not in (Known("r"), Known("rb"), Known("rt"))
            and self._text(place.module, place.expression.args[0]) in (path, None)
            for place, mode in modes
        )

    def _is_only_read(self, place: Place, keys: Sequence[str | int], depth: int) -> bool:
        """Whether the program only takes values out of a dictionary, as far as the one below some keys may change."""
        if not keys:
            return True
        if depth > _MAX_DEPTH:
            return False
        module, node = place
        parent = module.parent(node)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            return len(targets) == 1 and self._is_name_read(module, targets[0], keys, depth)
        if isinstance(parent, ast.Subscript) and parent.value is node:
            if not isinstance(parent.ctx, ast.Load) or not isinstance(parent.slice, ast.Constant):
                return False
            return parent.slice.value != keys[0] or self._is_only_read(Place(module, parent), keys[1:], depth + 1)
        if isinstance(parent, ast.Attribute):
            return self._is_attribute_read(module, parent, keys, depth)
        if isinstance(parent, ast.Call) and node in parent.args:
            return self._is_argument_read(module, parent, parent.args.index(node), keys, depth)
        if isinstance(parent, ast.Return):
            function = module.outline.function_of(node)
            calls = self._program.calls(function) if function is not None else []
            return bool(calls) and all(
                not each.is_spawn and self._is_only_read(Place(each.module, each.node), keys, depth + 1)
                for each in calls
            )
        if isinstance(parent, ast.BoolOp) or (isinstance(parent, ast.IfExp) and node is not parent.test):
            return self._is_only_read(Place(module, parent), keys, depth + 1)
        # A copy, a text, or a question.
        questions = (ast.FormattedValue, ast.Compare, ast.If, ast.IfExp, ast.UnaryOp, ast.Expr)
        return isinstance(parent, questions) or (isinstance(parent, ast.keyword) and parent.arg is None)

    def _is_name_read(self, module: Module, name: ast.expr, keys: Sequence[str | int], depth: int) -> bool:
        """The same for all uses of a variable."""
        scope = module.scope_of(name) if isinstance(name, ast.Name) else None
        if scope is None or not isinstance(name, ast.Name):
            return False
        if isinstance(scope, ast.Module) and self._is_imported(module, name.id):
            return False
        uses = [each for each in module.nodes(ast.Name) if each.id == name.id and isinstance(each.ctx, ast.Load)]
        return all(
            self._is_only_read(Place(module, each), keys, depth + 1) for each in uses if module.scope_of(each) is scope
        )

    def _is_imported(self, module: Module, name: str) -> bool:
        """Whether another module takes a name out of this one."""
        others = [other for other in self._program.modules if other is not module]
        return any(
            end_of(node) == name or (isinstance(node, ast.alias) and node.name in (name, "*"))
            for other in others
            for node in (*other.nodes(ast.Attribute), *other.nodes(ast.alias))
        )

    def _is_attribute_read(self, module: Module, node: ast.Attribute, keys: Sequence[str | int], depth: int) -> bool:
        call = module.parent(node)
        if not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(call, ast.Call) and call.func is node:
            if node.attr == "get":
                key = call.args[0] if call.args else None
                if not isinstance(key, ast.Constant):
                    return False
                return key.value != keys[0] or self._is_only_read(Place(module, call), keys[1:], depth + 1)
            return node.attr in ("keys", "copy") or (node.attr in ("items", "values") and len(keys) == 1)
        return node.attr != keys[0] or self._is_only_read(Place(module, node), keys[1:], depth + 1)

    def _is_argument_read(
        self, module: Module, call: ast.Call, position: int, keys: Sequence[str | int], depth: int
    ) -> bool:
        name = module.called(call)
        if name.rpartition(".")[2] in _WRAPS:
            return self._is_only_read(Place(module, call), keys, depth + 1)
        if name in _LOOK or name.partition(".")[0] in _LOOK:
            return True
        found = self._program.functions(module, call.func)
        if len(found) != 1:
            return False
        other, function = found[0]
        parameters = [*function.args.posonlyargs, *function.args.args]
        if position >= len(parameters):
            return False
        uses = [
            each
            for each in other.nodes(ast.Name)
            if each.id == parameters[position].arg and other.scope_of(each) is function
        ]
        return all(
            isinstance(each.ctx, ast.Load) and self._is_only_read(Place(other, each), keys, depth + 1) for each in uses
        )


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
