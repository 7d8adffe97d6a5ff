"""Determines which ranks run a part of a script, from the conditions around it, early returns and its callers."""

from __future__ import annotations

import ast
import functools
import re
from typing import NamedTuple

from preflight._util.budget import spend
from preflight.sources.python.module import Module
from preflight.sources.python.outline import Function, end_of
from preflight.sources.python.rank_conditions import ORDER, RankSet, complement, ranks_where_true

#: Calls are followed to this depth.
_MAX_DEPTH = 5
_DECORATORS = re.compile(r"rank_?(?:zero|0)|(?:main|master)_(?:process|only)|on_main|only_main|primary_only", re.I)
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


class RankGuard(NamedTuple):
    """The ranks that run a node, and the test that decides it; None if there is none."""

    who: RankSet
    test: ast.expr | None = None


class Ranks:
    """The ranks that run each node of one script."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._outline = module.outline
        self._functions: dict[int, RankGuard] = {}
        self._inside: dict[int, RankGuard] = {}

    def inside(self, node: ast.AST) -> RankGuard:
        """The ranks that run a node, among those that enter its function."""
        # From the outside in, each node once: the branches of a long `elif` are nested.
        passed: list[tuple[ast.AST, ast.AST]] = []
        child, found = node, self._inside.get(id(node))
        while found is None:
            parent = self._outline.parent(child)
            if parent is None or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                found = RankGuard(RankSet.ALL)
                break
            passed.append((child, parent))
            child, found = parent, self._inside.get(id(parent))
        spend(1 + len(passed))
        for child, parent in reversed(passed):
            found = self._inside[id(child)] = _narrower(self._within(child, parent), found)
        return found

    def _within(self, child: ast.AST, parent: ast.AST) -> RankGuard:
        """The ranks that run a node, among those that run its parent."""
        found = RankGuard(RankSet.ALL)
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            who = ranks_where_true(self._module, parent.test)
            who = complement(who) if self._outline.is_else(child) else who
            found = RankGuard(who, parent.test)
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            for value in parent.values:
                if value is child:
                    break
                found = _narrower(found, RankGuard(ranks_where_true(self._module, value), value))
        return _narrower(found, self._after_exits.get(id(child), RankGuard(RankSet.ALL)))

    def guard_of(self, node: ast.AST) -> RankGuard:
        """The ranks that run a node, as far as the calls of its function in this script show."""
        inside = self.inside(node)
        function = self._outline.function_of(node)
        if inside.who is not RankSet.ALL or function is None:
            return inside
        return self._ranks_of_function(function)

    def _ranks_of_function(self, function: Function, depth: int = 0) -> RankGuard:
        key = id(function)
        if key not in self._functions:
            self._functions[key] = RankGuard(RankSet.UNDECIDED)
            if depth <= _MAX_DEPTH:
                self._functions[key] = self._callers(function, depth)
        return self._functions[key]

    def _callers(self, function: Function, depth: int) -> RankGuard:
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _DECORATORS.search(end_of(called)):
                return RankGuard(RankSet.FIRST, decorator)
        found: list[RankGuard] = []
        for call in self._outline.calls_named(function.name):
            outer = self._outline.function_of(call)
            if outer is function:
                continue
            inside = self.inside(call)
            if inside.who is RankSet.ALL and outer is not None:
                inside = self._ranks_of_function(outer, depth + 1)
            found.append(inside)
        if not found:
            # `mp.spawn(main, ...)` runs it everywhere; the callers of a method or an imported function are unknown.
            return RankGuard(RankSet.ALL if self._outline.is_passed_on(function.name) else RankSet.UNDECIDED)
        if len({guard_of.who for guard_of in found}) == 1:
            return found[0]
        for who in (RankSet.ALL, RankSet.UNDECIDED):
            for guard_of in found:
                if guard_of.who is who:
                    return guard_of
        return RankGuard(RankSet.UNDECIDED)

    @functools.cached_property
    def _after_exits(self) -> dict[int, RankGuard]:
        """Statements after `if rank != 0: return`, by id."""
        found: dict[int, RankGuard] = {}
        for branch in self._module.nodes(ast.If):
            if branch.orelse or not _leaves(self._module, branch.body[-1]):
                continue
            who = complement(ranks_where_true(self._module, branch.test))
            if who in (RankSet.ALL, RankSet.UNDECIDED, RankSet.SOME):
                continue
            for later in self._outline.following(branch):
                if id(later) in found:
                    break
                found[id(later)] = RankGuard(who, branch.test)
        return found


@functools.lru_cache(maxsize=1)
def ranks_of(module: Module) -> Ranks:
    """The ranks of a script, computed once for all readers of it."""
    return Ranks(module)


def _leaves(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Return, ast.Continue)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and module.called(call) in _EXITS


def _narrower(first: RankGuard, second: RankGuard) -> RankGuard:
    return first if ORDER.index(first.who) <= ORDER.index(second.who) else second
