"""The bindings and imports of each name in a module.

A name counts as a constant only if every binding of it in its own scope is a plain assignment; anything else (a
parameter, a loop variable, `global`, unpacking of an unknown value) makes it unresolvable.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from preflight._util.budget import spend

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


def walk(module: ast.Module, *, statements_only: bool = False) -> Bindings:
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
            if isinstance(child, ast.AST) and not (statements_only and isinstance(child, ast.expr)):
                parents[id(child)] = node
                stack.append((child, inner))
    spend(len(parents))
    return found


def _bind(bindings: Bindings, node: ast.AST, scope: ast.AST, module: ast.Module) -> None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return

    def bind(name: str, value: ast.expr | None, where: ast.AST = scope) -> None:
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
        for name in node.names:
            bind(name, None)
            bind(name, None, module)
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
