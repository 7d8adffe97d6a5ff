"""Which ranks run a piece of a script: by the conditions around it, early returns and the calls that lead there."""

from __future__ import annotations

import ast
import functools
import re

from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module
from preflight.sources.python.outline import Function, end_of
from preflight.sources.python.ranks import ORDER, Who, audience, complement

#: Calls are followed this far.
_DEEPEST = 5
_DECORATORS = lazy_pattern(r"rank_?(?:zero|0)|(?:main|master)_(?:process|only)|on_main|only_main|primary_only", re.I)
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


@dataclass(frozen=True, slots=True)
class Standing:
    """Who runs a node, and the test that decides it; None where none does."""

    who: Who
    test: ast.expr | None = None


class Ranks:
    """Who runs each node of one script."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._outline = module.outline
        self._functions: dict[int, Standing] = {}

    def inside(self, node: ast.AST) -> Standing:
        """Who runs a node among those that come into its function."""
        found = Standing(Who.ALL)
        child = node
        for parent in self._outline.above(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                break
            if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
                who = audience(self._module, parent.test)
                who = complement(who) if self._outline.is_else(child) else who
                found = _narrower(found, Standing(who, parent.test))
            elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
                for value in parent.values:
                    if value is child:
                        break
                    found = _narrower(found, Standing(audience(self._module, value), value))
            found = _narrower(found, self._behind_exits.get(id(child), Standing(Who.ALL)))
            child = parent
        return found

    def standing(self, node: ast.AST) -> Standing:
        """Who runs a node in all, as far as the calls of its function in this script tell."""
        inside = self.inside(node)
        function = self._outline.function_of(node)
        if inside.who is not Who.ALL or function is None:
            return inside
        return self._of_function(function)

    def _of_function(self, function: Function, depth: int = 0) -> Standing:
        key = id(function)
        if key not in self._functions:
            self._functions[key] = Standing(Who.UNTOLD)
            if depth <= _DEEPEST:
                self._functions[key] = self._callers(function, depth)
        return self._functions[key]

    def _callers(self, function: Function, depth: int) -> Standing:
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _DECORATORS.search(end_of(called)):
                return Standing(Who.FIRST, decorator)
        found: list[Standing] = []
        for call in self._outline.calls_named(function.name):
            outer = self._outline.function_of(call)
            if outer is function:
                continue
            inside = self.inside(call)
            if inside.who is Who.ALL and outer is not None:
                inside = self._of_function(outer, depth + 1)
            found.append(inside)
        if not found:
            # `mp.spawn(main, ...)` runs it everywhere; who calls a method or an imported function is not known.
            return Standing(Who.ALL if self._outline.is_handed_over(function.name) else Who.UNTOLD)
        if len({standing.who for standing in found}) == 1:
            return found[0]
        for who in (Who.ALL, Who.UNTOLD):
            for standing in found:
                if standing.who is who:
                    return standing
        return Standing(Who.UNTOLD)

    @functools.cached_property
    def _behind_exits(self) -> dict[int, Standing]:
        """Statements behind `if rank != 0: return`, by id."""
        found: dict[int, Standing] = {}
        for branch in self._module.nodes(ast.If):
            if branch.orelse or not _leaves(self._module, branch.body[-1]):
                continue
            who = complement(audience(self._module, branch.test))
            if who in (Who.ALL, Who.UNTOLD, Who.SOME):
                continue
            for later in self._outline.behind(branch):
                if id(later) in found:
                    break
                found[id(later)] = Standing(who, branch.test)
        return found


@functools.lru_cache(maxsize=1)
def ranks_of(module: Module) -> Ranks:
    """The ranks of a script, worked out once for all readers of it."""
    return Ranks(module)


def _leaves(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Return, ast.Continue)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and module.called(call) in _EXITS


def _narrower(one: Standing, other: Standing) -> Standing:
    return one if ORDER.index(one.who) <= ORDER.index(other.who) else other
