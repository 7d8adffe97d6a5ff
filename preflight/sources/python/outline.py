"""The structure of a script: functions by name, calls by name, statements of one block, branches.

Each table is built on first use, once over the whole script, so that lookups stay cheap however many readers there are.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from preflight._util.budget import note_skipped, spend
from preflight.sources.python.bindings import Bindings

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody")
_WITH_BLOCKS = (ast.mod, ast.stmt, ast.excepthandler)
#: Ancestors further out than this are not examined; code written by people is not nested so deeply.
_MAX_CLIMB = 200


class Outline:
    """The tables of one walked script."""

    def __init__(self, walked: Bindings) -> None:
        self._walked = walked
        self._function_of: dict[int, Function | None] = {}

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around this one."""
        return self._walked.parents.get(id(node))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The enclosing nodes, innermost first."""
        spend()
        parents = self._walked.parents
        at = parents.get(id(node))
        for _ in range(_MAX_CLIMB):
            if at is None:
                return
            yield at
            at = parents.get(id(at))
        if at is not None:
            note_skipped(f"blocks within more than {_MAX_CLIMB} others were not followed")

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        parents, known = self._walked.parents, self._function_of
        passed: list[int] = []
        at = parents.get(id(node))
        before = id(node)
        while before not in known and at is not None and not isinstance(at, _FUNCTIONS):
            passed.append(before)
            before, at = id(at), parents.get(id(at))
        found = known[before] if before in known else at if isinstance(at, _FUNCTIONS) else None
        spend(1 + len(passed) // 16)
        known.update(dict.fromkeys((*passed, before), found))
        return found

    def functions(self, name: str) -> Sequence[Function]:
        """The functions and methods of this name."""
        return self._functions.get(name, ())

    def calls_named(self, name: str) -> Sequence[ast.Call]:
        """The calls of a function or method of this name, on any object."""
        return self._calls.get(name, ())

    def assigned_once(self, target: ast.expr) -> ast.expr | None:
        """The value assigned to `a.b`, if the script assigns it in one place."""
        found = self._attributes.get(ast.dump(target), ()) if isinstance(target, ast.Attribute) else ()
        return found[0] if len(found) == 1 else None

    def assignments(self, function: Function | None) -> dict[str, list[ast.expr]]:
        """The values assigned to each variable in a function (None: outside all of them), by its dotted name."""
        return self._assigned.get(id(function), {})

    def arguments_by_variable(self, function: Function | None) -> dict[str, list[ast.expr]]:
        """The arguments that each variable gets in calls of it or its methods in a function: `stopper(loss)`,
        `meter.add(x)`.
        """
        return self._arguments_by_variable.get(id(function), {})

    def calls_in(self, function: Function | None) -> Sequence[ast.Call]:
        """The calls in a function (None: outside all of them)."""
        return self._calls_in.get(id(function), ())

    def is_passed_on(self, name: str) -> bool:
        """Whether a function is passed to another (`mp.spawn(main)`), which then calls it."""
        return name in self._passed_on

    def is_else(self, node: ast.AST) -> bool:
        """Whether this is directly in an else branch."""
        return id(node) in self._else

    def is_guarded(self, node: ast.AST) -> bool:
        """Whether this is directly in the guarded part of a `try`."""
        return id(node) in self._guarded

    def following(self, statement: ast.AST) -> Sequence[ast.stmt]:
        """The later statements of the same block."""
        spend()
        block, index = self._places.get(id(statement), ([], 0))
        return block[index + 1 :]

    def before(self, statement: ast.stmt) -> ast.stmt | None:
        """The previous statement of the same block."""
        spend()
        block, index = self._places.get(id(statement), ([], 0))
        return block[index - 1] if index > 0 else None

    @functools.cached_property
    def _places(self) -> dict[int, tuple[list[ast.stmt], int]]:
        found: dict[int, tuple[list[ast.stmt], int]] = {}
        for kind, nodes in self._walked.by_kind.items():
            names = [name for name in _BLOCKS if name in kind._fields] if issubclass(kind, _WITH_BLOCKS) else ()
            for node in nodes if names else ():
                for name in names:
                    statements = getattr(node, name)
                    found.update((id(each), (statements, index)) for index, each in enumerate(statements))
        return found

    @functools.cached_property
    def _functions(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for kind in _FUNCTIONS:
            for node in self._walked.by_kind.get(kind, ()):
                if isinstance(node, _FUNCTIONS):
                    found.setdefault(node.name, []).append(node)
        return found

    @functools.cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for node in self._walked.by_kind.get(ast.Call, ()):
            if isinstance(node, ast.Call):
                found.setdefault(end_of(node.func), []).append(node)
        return found

    @functools.cached_property
    def _assigned(self) -> dict[int, dict[str, list[ast.expr]]]:
        found: dict[int, dict[str, list[ast.expr]]] = {}
        for kind in (ast.Assign, ast.AugAssign, ast.AnnAssign):
            for node in self._walked.by_kind.get(kind, ()):
                value = getattr(node, "value", None)
                if value is None:
                    continue
                table = found.setdefault(id(self.function_of(node)), {})
                for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                    targets = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                    for each in targets:
                        table.setdefault(dotted(each), []).append(value)
        return found

    @functools.cached_property
    def _arguments_by_variable(self) -> dict[int, dict[str, list[ast.expr]]]:
        found: dict[int, dict[str, list[ast.expr]]] = {}
        for key, calls in self._calls_in.items():
            table = found.setdefault(key, {})
            for call in calls:
                statement = self.parent(call)
                # Only a call whose result is unused is made for its effect on its receiver.
                if isinstance(statement, ast.Expr):
                    receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
                    table.setdefault(dotted(receiver), []).extend(call.args)
        return found

    @functools.cached_property
    def _calls_in(self) -> dict[int, list[ast.Call]]:
        found: dict[int, list[ast.Call]] = {}
        for node in self._walked.by_kind.get(ast.Call, ()):
            if isinstance(node, ast.Call):
                found.setdefault(id(self.function_of(node)), []).append(node)
        return found

    @functools.cached_property
    def _passed_on(self) -> frozenset[str]:
        found: set[str] = set()
        for node in self._walked.by_kind.get(ast.Call, ()):
            if isinstance(node, ast.Call):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                found.update(item.id for item in given if isinstance(item, ast.Name))
        return frozenset(found)

    @functools.cached_property
    def _attributes(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in self._walked.by_kind.get(ast.Assign, ()):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute):
                    load = ast.Attribute(target.value, target.attr, ast.Load())
                    found.setdefault(ast.dump(load), []).append(node.value)  # type: ignore[attr-defined]
        return found

    @functools.cached_property
    def _guarded(self) -> frozenset[int]:
        blocks = self._walked.by_kind.get(ast.Try, ())
        return frozenset(id(each) for block in blocks for each in getattr(block, "body", ()))

    @functools.cached_property
    def _else(self) -> frozenset[int]:
        found: set[int] = set()
        for node in self._walked.by_kind.get(ast.If, ()):
            found.update(id(each) for each in getattr(node, "orelse", ()))
        for node in self._walked.by_kind.get(ast.IfExp, ()):
            found.add(id(getattr(node, "orelse", None)))
        return frozenset(found)


def end_of(expression: ast.AST) -> str:
    """The last part of a name: `rank` of `self.args.rank`."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def dotted(expression: ast.expr | None) -> str:
    """`a.b.c` for names and attributes of names; empty for anything else."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join((expression.id, *reversed(parts)))
