"""A program: a script with the user's own modules that it imports, and the meaning of their names and calls.

A name means the only value that is assigned to it, an argument means the value in the only call of its function, and a
call of a function of the program means the only value that it returns. If there are several, nothing is followed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import WHOLE_JOB
from preflight.sources.base import SourceFile
from preflight.sources.python import imports
from preflight.sources.python.module import SPAWNS, Module, argument, parse_silently, value_of
from preflight.sources.python.outline import Function, dotted, end_of

#: What may give any name another value.
_SETS_NAMES = re.compile(r"\bexec\(|\bglobals\(\)|\blocals\(\)\[|\bexecfile\(")
#: A value is followed through so many names, arguments and calls.
_MAX_STEPS = 12
#: A name that a package imports from its modules is followed through so many of them.
_MAX_REEXPORTS = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """An expression, and its module of the program."""

    module: Module
    expression: ast.expr


class Call(NamedTuple):
    """A call of a function of the program, a spawn of it, or the making of an object, which calls `__init__`."""

    module: Module
    node: ast.Call
    is_spawn: bool = False
    is_making: bool = False

    def argument(self, name: str, position: int | None) -> ast.expr | None:
        """Return the argument for a parameter, which may have no position; None if it is missing or ambiguous."""
        # Python itself gives the object, or the number of the process.
        if position is not None and (self.is_spawn or self.is_making):
            position = position - 1 if position else None
        if not self.is_spawn:
            found = argument(self.node, name, position)
            return value_of(found) if found is not None else None
        items = argument(self.node, "args", 1)
        values = value_of(items) if items is not None else None
        given = values.elts if isinstance(values, ast.Tuple) else []
        return given[position] if position is not None and position < len(given) else None

    @property
    def is_plain(self) -> bool:
        """Return whether the call passes no `*args` or `**kwargs`."""
        starred = any(isinstance(each, ast.Starred) for each in self.node.args)
        return not starred and all(keyword.arg is not None for keyword in self.node.keywords)


class Program:
    """A script with its modules, read on first use."""

    def __init__(self, script: Module) -> None:
        self.script = script

    @functools.cached_property
    def _own(self) -> list[Module] | None:
        """Return the user's modules; None if there are too many, one cannot be parsed, or code sets any
        names.
        """
        texts, complete = imports.texts_of_modules(self.script)
        complete = complete and not any(_SETS_NAMES.search(each.text) for each in texts)
        complete = complete and not _SETS_NAMES.search(self.script.file.text)
        found = [_read(self.script, each.path) for each in texts if complete]
        known = [each for each in found if each is not None]
        return known if complete and len(known) == len(found) else None

    @property
    def modules(self) -> tuple[Module, ...]:
        """Return the script and its modules, if all could be read; otherwise the script alone."""
        return (self.script, *(self._own or ()))

    @property
    def is_complete(self) -> bool:
        """Return whether all user modules could be read."""
        return self._own is not None

    def called(self, module: Module, call: ast.Call) -> list[tuple[Module, Function]]:
        """Return the functions and methods of the program that a call in a module may run."""
        found = self.functions(module, call.func)
        if found or not isinstance(call.func, ast.Attribute):
            return found
        return [
            (other, each)
            for other, owner in self._classes(module, call.func.value)
            for each in owner.body
            if isinstance(each, _FUNCTIONS) and each.name == call.func.attr
        ]

    def _classes(self, module: Module, receiver: ast.expr) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield the class of the program whose object an expression is: `self`, or what the only assignment of it
        makes.
        """
        if isinstance(receiver, ast.Name) and receiver.id == "self":
            yield from ((module, each) for each in module.outline.above(receiver) if isinstance(each, ast.ClassDef))
            return
        other, made = self.meaning(module, receiver)
        if isinstance(made, ast.Call):
            yield from self.classes(other, made.func)

    def classes(self, module: Module, name: ast.expr) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield the classes of the program that a name in a module means."""
        places = [(module, name.id)] if isinstance(name, ast.Name) else []
        for where, member in (*places, *self._members(module, name)):
            yield from (
                (where, each) for each in where.tree.body if isinstance(each, ast.ClassDef) and each.name == member
            )

    def _starts(self, module: Module, name: ast.expr) -> Iterator[Function]:
        """Yield the `__init__` that runs where an object of a class is made, unless objects of other classes run it,
        too.
        """
        for _, owner in self.classes(module, name) if end_of(name) in self._leaf_classes else ():
            yield from (each for each in owner.body if isinstance(each, _FUNCTIONS) and each.name == "__init__")

    def functions(self, module: Module, name: ast.expr) -> list[tuple[Module, Function]]:
        """Return the functions of the program that a name in a module means."""
        if end_of(name) in self._assigned_attributes:
            return []
        if isinstance(name, ast.Name) and (own := module.outline.functions(name.id)):
            scope = module.scope_of(name)
            here = [(module, each) for each in own if scope is not None and module.parent(each) is scope]
            if here or not module.is_imported(name.id):
                return here
        return [
            (other, function)
            for other, member in self._members(module, name)
            for function in other.outline.functions(member)
            if isinstance(other.parent(function), ast.Module)
        ]

    def calls(self, function: Function) -> list[Call]:
        """Return the calls of a function in the program."""
        return self._calls.get(id(function), [])

    def meaning(self, module: Module, expression: ast.expr) -> Place:
        """Return the meaning of an expression, as far as it can be followed."""
        place = Place(module, expression)
        for _ in range(_MAX_STEPS):
            further = self._step(*place)
            if further is None:
                break
            place = further
        return place

    def _step(self, module: Module, expression: ast.expr) -> Place | None:
        if isinstance(expression, ast.Call):
            return self._returned(module, expression)
        if isinstance(expression, ast.Name):
            bound = module.bindings_of(expression)
            if bound is not None and len(bound) == 1 and bound[0] is not None:
                # Without the branch it may be what `from defaults import *` gives.
                is_only = not _imports_all(module) or not module.condition(bound[0])
                return Place(module, bound[0]) if is_only else None
            if bound is not None and len(bound) == 1:
                given = self._passed_argument(module, expression)
                if given is not None:
                    return given
        if dotted(expression) and end_of(expression) not in self._assigned_attributes:
            members = self._members(module, expression)
            found = [Place(other, value) for other, name in members if (value := other.binding(name)) is not None]
            return found[0] if len(found) == 1 else None
        return None

    def _passed_argument(self, module: Module, name: ast.Name) -> Place | None:
        """Return the argument for a name in the only call of the function around it, if the name is a parameter."""
        function = module.outline.function_of(name)
        calls = self.calls(function) if function is not None else []
        if function is None or len(calls) != 1 or not calls[0].is_plain:
            return None
        return self.argument(function, calls[0], name.id, module)

    def argument(self, function: Function, call: Call, name: str, module: Module) -> Place | None:
        """Return the argument of a call for a parameter of a module's function, or its default."""
        places = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        given = call.argument(name, places.index(name) if name in places else None)
        if given is not None:
            return Place(call.module, given)
        defaults = dict(zip(places[::-1], function.args.defaults[::-1], strict=False))
        return Place(module, defaults[name]) if name in defaults else None

    def _returned(self, module: Module, call: ast.Call) -> Place | None:
        found = self.functions(module, call.func)
        if len(found) != 1 or found[0][1].decorator_list:
            return None
        other, function = found[0]
        leaving: list[ast.AST] = [*other.nodes(ast.Return), *other.nodes(ast.Yield), *other.nodes(ast.YieldFrom)]
        ends = [node for node in leaving if other.outline.function_of(node) is function]
        end = function.body[-1]
        is_plain = isinstance(function, ast.FunctionDef) and len(ends) == 1 and ends[0] is end
        return Place(other, end.value) if is_plain and isinstance(end, ast.Return) and end.value is not None else None

    def _members(self, module: Module, name: ast.expr) -> Iterator[tuple[Module, str]]:
        """Yield the modules of the program that a dotted name may mean, each with the rest of the name."""
        if module.is_imported(dotted(name)):
            yield from self._named(module, module.name(name), 0)

    def _named(self, module: Module, name: str, depth: int) -> Iterator[tuple[Module, str]]:
        *above, member = name.strip(".").split(".")
        for other in self.modules if above and depth < _MAX_REEXPORTS else ():
            stem = "/" + other.file.path.removesuffix(".py").removesuffix("/__init__")
            if other is module or not stem.endswith("/" + "/".join(above)):
                continue
            yield other, member
            if member in other.imports:
                yield from self._named(other, other.imports[member], depth + 1)

    @functools.cached_property
    def _assigned_attributes(self) -> frozenset[str]:
        """Return the attributes that the program assigns anywhere, but to `self`."""
        return frozenset(
            node.attr
            for module in self.modules
            for node in module.nodes(ast.Attribute)
            if not isinstance(node.ctx, ast.Load) and end_of(node.value) != "self"
        )

    @functools.cached_property
    def _leaf_classes(self) -> frozenset[str]:
        """Return the classes of the program that have no subclass."""
        classes = [each for module in self.modules for each in module.nodes(ast.ClassDef)]
        return frozenset(each.name for each in classes) - {end_of(base) for each in classes for base in each.bases}

    @functools.cached_property
    def _calls(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = {}
        for module in self.modules:
            for call in module.calls:
                for _, function in self.functions(module, call.func):
                    found.setdefault(id(function), []).append(Call(module, call))
                for function in self._starts(module, call.func):
                    found.setdefault(id(function), []).append(Call(module, call, is_making=True))
                target = argument(call, "fn", 0) or argument(call, "func", 0) if module.called(call) in SPAWNS else None
                for _, function in self.functions(module, value_of(target)) if target is not None else ():
                    found.setdefault(id(function), []).append(Call(module, call, is_spawn=True))
        return found


def _imports_all(module: Module) -> bool:
    return any(alias.name == "*" for node in module.nodes(ast.ImportFrom) for alias in node.names)


def _read(script: Module, path: str) -> Module | None:
    """Return a module of a program; None if it cannot be parsed."""
    file = script.files.read(path)
    if not isinstance(file, SourceFile):
        return None
    # Beside what other readers keep of a module.
    key = (file.path, f"{file.sha256} parsed")
    if key not in script.imported:
        try:
            tree = parse_silently(file.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            script.imported[key] = None
        else:
            script.imported[key] = Module(file, tree, script.files, WHOLE_JOB, script.imported)
    found: Module | None = script.imported[key]
    return found
