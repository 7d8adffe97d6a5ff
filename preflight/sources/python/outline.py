"""The structure of a script: functions by name, calls by name, statements of one block, branches, and what each name is
bound to.

Each table is built on first use, once over the whole script, so that lookups stay cheap however many readers there are.

A name counts as a constant only if every binding of it in its own scope is a plain assignment; anything else (a
parameter, a loop variable, `global`, unpacking of an unknown value) makes it unresolvable.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from preflight._util.budget import note_skipped, spend
from preflight._util.sequences import grouped

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
        """Return the node around this one."""
        return self._walked.parents.get(id(node))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the enclosing nodes, innermost first."""
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
        """Return the innermost function around a node."""
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
        """Return the functions and methods of this name."""
        return self._functions.get(name, ())

    def calls_named(self, name: str) -> Sequence[ast.Call]:
        """Return the calls of a function or method of this name, but not those of a module: `torch.save()`."""
        return self._calls.get(name, ())

    def assigned_once(self, target: ast.expr) -> ast.expr | None:
        """Return the value assigned to `a.b`, if the script assigns it in one place."""
        found = self._attributes.get(ast.dump(target), ()) if isinstance(target, ast.Attribute) else ()
        return found[0] if len(found) == 1 else None

    def assignments(self, function: Function | None) -> dict[str, list[ast.expr]]:
        """Return the values assigned to each variable in a function (None: outside all of them), by its dotted name."""
        return self._assigned_values.get(id(function), {})

    def calls_in(self, function: Function | None) -> Sequence[ast.Call]:
        """Return the calls in a function (None: outside all of them)."""
        return self._calls_in.get(id(function), ())

    def is_passed_on(self, name: str) -> bool:
        """Return whether a function is passed to another (`mp.spawn(main)`), which then calls it."""
        return name in self._passed_on

    def is_else(self, node: ast.AST) -> bool:
        """Return whether the node is directly in an else branch."""
        return id(node) in self._else

    def is_guarded(self, node: ast.AST) -> bool:
        """Return whether the node is directly in the guarded part of a `try`."""
        return id(node) in self._guard_of

    def following(self, statement: ast.AST) -> Sequence[ast.stmt]:
        """Return the later statements of the same block."""
        spend()
        block, index = self._places.get(id(statement), ([], 0))
        return block[index + 1 :]

    def before(self, statement: ast.stmt) -> ast.stmt | None:
        """Return the previous statement of the same block."""
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
        return grouped(
            (end_of(node.func), node)
            for node in self._walked.by_kind.get(ast.Call, ())
            if isinstance(node, ast.Call)
            and not (isinstance(node.func, ast.Attribute) and dotted(node.func).split(".")[0] in self._walked.imports)
        )

    @functools.cached_property
    def _assigned_values(self) -> dict[int, dict[str, list[ast.expr]]]:
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
    def _calls_in(self) -> dict[int, list[ast.Call]]:
        found: dict[int, list[ast.Call]] = {}
        for node in self._walked.by_kind.get(ast.Call, ()):
            if isinstance(node, ast.Call):
                found.setdefault(id(self.function_of(node)), []).append(node)
        return found

    @functools.cached_property
    def _passed_on(self) -> frozenset[str]:
        passed_names: set[str] = set()
        for node in self._walked.by_kind.get(ast.Call, ()):
            if isinstance(node, ast.Call):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                passed_names.update(item.id for item in given if isinstance(item, ast.Name))
        return frozenset(passed_names)

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
    def _guard_of(self) -> frozenset[int]:
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
    """Return the last part of a name: `rank` of `self.args.rank`."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def dotted(expression: ast.expr | None) -> str:
    """Return `a.b.c` for names and attributes of names; empty for anything else."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return ""
    return ".".join((expression.id, *reversed(parts)))


#: Nodes that open a scope of their own.
SCOPES: tuple[type[ast.AST], ...] = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEAVES = frozenset((ast.Constant, ast.Name, ast.Pass, ast.Break, ast.Continue))
#: Nodes whose own scope is used.
_SCOPED = frozenset((ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
#: Fields that hold operators, contexts or texts, never a relevant node; most nodes have only one other.
_PLAIN = frozenset(
    ("ctx", "op", "ops", "id", "attr", "kind", "level", "module", "asname", "simple", "conversion", "type_comment")
)
_BINDING: frozenset[type[ast.AST]] = frozenset(
    (
        ast.Assign,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.Import,
        ast.ImportFrom,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.arg,
        ast.Global,
        ast.Nonlocal,
        ast.Name,
        ast.ExceptHandler,
        ast.MatchAs,
        ast.MatchStar,
    )
)


@dataclass(slots=True)
class Bindings:
    """The result of the walk: nodes of each kind in source order, with parents, scopes, and the bindings of names."""

    by_kind: dict[type[ast.AST], list[ast.AST]] = field(default_factory=dict)
    parents: dict[int, ast.AST] = field(default_factory=dict)
    scopes: dict[int, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    #: (id of the scope's node, name) to the bound expressions; None for one that cannot be followed.
    bound: dict[tuple[int, str], list[ast.expr | None]] = field(default_factory=dict)
    #: The scopes of names that a function declares as global or nonlocal, by the id of its node and the name.
    declared: dict[tuple[int, str], ast.AST] = field(default_factory=dict)


def walk(module: ast.Module) -> Bindings:
    """Walk the tree once, without recursion: a deeply nested file must not exhaust the stack."""
    found = Bindings()
    parents, by_kind = found.parents, found.by_kind
    fields: dict[type[ast.AST], tuple[str, ...]] = {}
    stack: list[tuple[ast.AST, ast.AST]] = [(module, module)]
    while stack:
        node, scope = stack.pop()
        kind = node.__class__
        same_kind = by_kind.get(kind)
        if same_kind is None:
            same_kind = by_kind[kind] = []
        same_kind.append(node)
        if kind in _BINDING:
            if kind in _SCOPED:
                found.scopes[id(node)] = scope
            # A name that is read binds nothing, and most nodes are such names.
            if kind is not ast.Name or node.ctx.__class__ is not ast.Load:  # type: ignore[attr-defined]
                _bind(found, node, scope, module)
        if kind in _LEAVES:
            continue
        inner = node if kind in SCOPES else scope
        children: list[ast.AST] = []
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
        for name in names:
            value = getattr(node, name, None)
            if value.__class__ is list:
                children += value
            elif value is not None and isinstance(value, ast.AST):
                children.append(value)
        for child in reversed(children):
            # Lists contain None for omitted items, and the names of `global` are texts.
            if isinstance(child, ast.AST):
                parents[id(child)] = node
                stack.append((child, inner))
    spend(len(parents))
    return found


def _bind(bindings: Bindings, node: ast.AST, scope: ast.AST, module: ast.Module) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return

    def bind(name: str, value: ast.expr | None) -> None:
        where = bindings.declared.get((id(scope), name), scope)
        bindings.bound.setdefault((id(where), name), []).append(value)

    if isinstance(node, ast.Assign):
        for target in node.targets:
            for name, value in _pairs(target, node.value):
                bind(name, value)
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            bind(node.target.id, node.value)
    elif isinstance(node, ast.NamedExpr):
        bind(node.target.id, node.value)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        _import(bindings, node)
        for alias in node.names:
            bind(alias.asname or alias.name.split(".")[0], None)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        bind(node.name, None)
    elif isinstance(node, ast.arg):
        # Visited with its function as scope, because `arguments` is the function's child.
        bind(node.arg, None)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        outer = module if isinstance(node, ast.Global) else bindings.scopes.get(id(scope), module)
        bindings.declared.update(((id(scope), name), outer) for name in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        parent = bindings.parents.get(id(node))
        if not isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Tuple, ast.List)):
            bind(node.id, None)
        elif isinstance(parent, (ast.Tuple, ast.List)):
            assignment = bindings.parents.get(id(parent))
            if not isinstance(assignment, ast.Assign):
                bind(node.id, None)
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        bind(node.name, None)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Starred):
        return [(target.value.id, None)] if isinstance(target.value, ast.Name) else []
    if not isinstance(target, (ast.Tuple, ast.List)):
        return []
    parts: list[ast.expr | None] = [None] * len(target.elts)
    if (
        isinstance(value, (ast.Tuple, ast.List))
        and len(value.elts) == len(target.elts)
        and not any(isinstance(part, ast.Starred) for part in (*value.elts, *target.elts))
    ):
        parts = list(value.elts)
    return [(name.id, part) for name, part in zip(target.elts, parts, strict=True) if isinstance(name, ast.Name)]


def _import(bindings: Bindings, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                bindings.imports[alias.asname] = alias.name
            else:
                root = alias.name.split(".")[0]
                bindings.imports[root] = root
        return
    prefix = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name != "*":
            joined = f"{prefix}{alias.name}" if prefix.endswith(".") or not prefix else f"{prefix}.{alias.name}"
            bindings.imports[alias.asname or alias.name] = joined
