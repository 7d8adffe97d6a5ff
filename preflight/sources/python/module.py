"""A training script as the readers of this package see it: calls, names, constants, and how to state a claim."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from preflight.job import Claim, Known, OneOf, Relation, Scope, Span, Strength, Unresolved, Value, join, lift
from preflight.job.value import Plain
from preflight.redact import scrub
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import bindings
from preflight.sources.python.outline import Outline, dotted
from preflight.sources.python.positions import Positions

#: Constants are folded through this many steps; more is a program, not a constant.
DEEPEST_FOLD = 40
#: Longer texts and larger numbers are not computed.
LONGEST_TEXT = 4096
_LARGEST_INTEGER = 2**63
#: Branches further out than this are not named.
_HIGHEST_CLIMB = 200

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


_Node = TypeVar("_Node", bound=ast.AST)


class Module:
    """One parsed script.

    Args:
        file: the file it was parsed from.
        tree: its syntax tree.
        files: where further files are looked up.
        scope: the scope of every claim.
        statements_only: expressions are not walked, for who only asks for statements; it is several times quicker.
    """

    def __init__(
        self, file: SourceFile, tree: ast.Module, files: Tree, scope: Scope, *, statements_only: bool = False
    ) -> None:
        self.file = file
        self.files = files
        self.scope = scope
        self.positions = Positions(file.path, file.text)
        self._walked = bindings.walk(tree, statements_only=statements_only)
        self.tree = tree
        self.outline = Outline(self._walked)
        self._folded: dict[int, Value] = {}
        self.calls = self.nodes(ast.Call)
        self._called = {id(call): self._name_called(call) for call in self.calls}
        #: The calls by the last part of the name of what is called.
        self.by_name: dict[str, list[ast.Call]] = {}
        for call, name in zip(self.calls, self._called.values(), strict=True):
            self.by_name.setdefault(name.rpartition(".")[2], []).append(call)

    def nodes(self, *kinds: type[_Node]) -> list[_Node]:
        """Every node of these kinds, those of one kind in source order."""
        return [node for kind in kinds for node in self._walked.by_kind.get(kind, ()) if isinstance(node, kind)]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node this one stands in."""
        return self._walked.parents.get(id(node))

    def name(self, expression: ast.expr) -> str:
        """The dotted name an expression stands for, aliases of imports replaced; empty when it is no name."""
        written = dotted(expression)
        first, _, rest = written.partition(".")
        original = self._walked.imports.get(first, first)
        return f"{original}.{rest}" if rest else original

    def called(self, call: ast.Call) -> str:
        """The dotted name of what is called; for a method of an unknown object just `.method`."""
        return self._called[id(call)]

    def named(self, *names: str) -> list[ast.Call]:
        """The calls of what has one of these last names, those of one name in source order."""
        return [call for name in names for call in self.by_name.get(name, ())]

    def _name_called(self, call: ast.Call) -> str:
        name = self.name(call.func)
        if not name and isinstance(call.func, ast.Attribute):
            return "." + call.func.attr
        return name

    def text(self, node: ast.AST) -> str:
        """How a node is written, on one line, secrets hidden."""
        return scrub(self.positions.text(node))

    def span(self, node: ast.AST) -> Span:
        """Where a node stands, secrets in the snippet hidden."""
        span = self.positions.span(node)
        return replace(span, snippet=scrub(span.snippet))

    def claim(
        self,
        quantity: str,
        value: Value | Plain,
        at: ast.AST,
        *,
        strength: Strength = Strength.FLAG,
        relation: Relation = Relation.SETS,
        spelling: str = "",
        condition: str | None = None,
        because: tuple[Claim, ...] = (),
        source: str = "python",
    ) -> Claim:
        """State a claim. The place of a keyword argument is its value, its spelling the whole `name=value`."""
        place = at.value if isinstance(at, ast.keyword) else at
        return Claim(
            quantity=quantity,
            value=value if isinstance(value, (Known, OneOf, Unresolved)) else Known(value),
            span=self.span(place),
            spelling=spelling or self.text(at),
            source=source,
            scope=self.scope,
            strength=strength,
            relation=relation,
            condition=self.condition(at) if condition is None else condition,
            because=because,
        )

    def condition(self, node: ast.AST) -> str:
        """The branches a node stands in, in the script's own words, outermost first; empty = always."""
        tests: list[str] = []
        child, parent = node, self.parent(node)
        for _ in range(_HIGHEST_CLIMB):
            if parent is None:
                break
            if isinstance(parent, (ast.If, ast.IfExp)):
                text = self.text(parent.test)
                if child is not parent.test and not text.startswith(("__name__", "TYPE_CHECKING")):
                    inside = child is parent.body or (isinstance(parent.body, list) and child in parent.body)
                    tests.append(text if inside else f"not ({text})")
            elif isinstance(parent, ast.ExceptHandler):
                tests.append(f"except {self.text(parent.type)}" if parent.type else "except")
            child, parent = parent, self.parent(parent)
        joined = " and ".join(reversed(tests))
        return joined if len(joined) <= 200 else joined[:199] + "…"

    def bound_to(self, node: ast.AST) -> str:
        """The variable an expression's value ends up in (`sampler`, `self.sampler`); empty when in none."""
        parent = self.parent(node)
        while isinstance(parent, ast.IfExp):
            parent = self.parent(parent)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return dotted(parent.targets[0])
        if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
            return dotted(parent.target)
        return ""

    def source(self, node: ast.AST) -> str:
        """The text of a node as it is written."""
        start, end = self.positions.bounds(node)
        return self.file.text[start:end]

    def definition(self, expression: ast.expr) -> ast.expr:
        """What a name was assigned, where there is exactly one assignment; else the expression itself."""
        for _ in range(5):
            if not isinstance(expression, ast.Name):
                break
            found = self._bindings_of(expression)
            if found is None or len(found) != 1 or found[0] is None:
                break
            expression = found[0]
        return expression

    def fold(self, expression: ast.expr, depth: int = 0) -> Value:
        """The constant an expression comes to, or why it comes to none."""
        # Remembered, and marked while under way: `x = x + x` must neither loop nor double at every step.
        key = id(expression)
        if key not in self._folded:
            self._folded[key] = Unresolved(f"{self.text(expression)}: known only at run time")
            if depth <= DEEPEST_FOLD:
                self._folded[key] = self._fold(expression, depth)
        return self._folded[key]

    def _fold(self, expression: ast.expr, depth: int) -> Value:
        if isinstance(expression, ast.Constant):
            return _constant(expression.value)
        if isinstance(expression, ast.Name):
            return self._fold_name(expression, depth)
        if isinstance(expression, ast.JoinedStr):
            pieces = [self._piece(piece, depth) for piece in expression.values]
            return lift(lambda *parts: _short("".join(map(str, parts))), *pieces)
        if isinstance(expression, (ast.Tuple, ast.List)):
            return lift(_tuple_of, *(self.fold(item, depth + 1) for item in expression.elts))
        if isinstance(expression, ast.BinOp) and type(expression.op) in _ARITHMETIC:
            left, right = self.fold(expression.left, depth + 1), self.fold(expression.right, depth + 1)
            return lift(lambda a, b: _compute(expression.op, a, b), left, right)
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, (ast.USub, ast.Not)):
            operand = self.fold(expression.operand, depth + 1)
            return lift(_negated if isinstance(expression.op, ast.USub) else _inverted, operand)
        if isinstance(expression, ast.IfExp):
            return join((self.fold(expression.body, depth + 1), self.fold(expression.orelse, depth + 1)))
        if isinstance(expression, ast.Call):
            return self._fold_call(expression, depth)
        return Unresolved(f"{self.text(expression)}: known only at run time")

    def _fold_call(self, call: ast.Call, depth: int) -> Value:
        name = self.called(call)
        if not call.keywords and not any(isinstance(argument, ast.Starred) for argument in call.args):
            values = [self.fold(argument, depth + 1) for argument in call.args]
            if name in ("str", "int") and len(values) == 1:
                return lift(lambda item: str(item) if name == "str" else _integer(item), *values)
            if name in ("os.path.join", "pathlib.Path") and values:
                return lift(lambda *parts: _short("/".join(_texts(parts))), *values)
        return Unresolved(f"{self.text(call)}: known only at run time")

    def _piece(self, piece: ast.expr, depth: int) -> Value:
        if isinstance(piece, ast.FormattedValue):
            if piece.format_spec is not None or piece.conversion != -1:
                return Unresolved(f"{self.text(piece.value)}: formatted at run time")
            return self.fold(piece.value, depth + 1)
        return self.fold(piece, depth + 1)

    def _fold_name(self, name: ast.Name, depth: int) -> Value:
        found = self._bindings_of(name)
        if not found or any(value is None for value in found):
            return Unresolved(f"{name.id}: known only at run time")
        return join(self.fold(value, depth + 1) for value in found if value is not None)

    def _bindings_of(self, name: ast.Name) -> list[ast.expr | None] | None:
        """All bindings of a name in the innermost scope that binds it; None when nothing does."""
        scope = self._walked.scopes.get(id(name))
        innermost = True
        while scope is not None:
            # The names of a class body are not seen from its methods.
            if innermost or not isinstance(scope, ast.ClassDef):
                found = self._walked.bound.get((id(scope), name.id))
                if found is not None:
                    return found
            innermost = False
            outer = self._walked.scopes.get(id(scope))
            scope = outer if outer is not scope else None
        return None


def last(name: str) -> str:
    """The last part of a dotted name."""
    return name.rpartition(".")[2]


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.keyword | ast.expr | None:
    """The argument given as `name=`, or at `position`; None when it is not given (or hidden in `*args`)."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword
    if position is None or position >= len(call.args):
        return None
    if any(isinstance(item, ast.Starred) for item in call.args[: position + 1]):
        return None
    return call.args[position]


def value_of(given: ast.keyword | ast.expr) -> ast.expr:
    """The expression of an argument, however it was given."""
    return given.value if isinstance(given, ast.keyword) else given


def is_none(expression: ast.expr) -> bool:
    """Whether this is a literal None."""
    return isinstance(expression, ast.Constant) and expression.value is None


def _constant(value: object) -> Value:
    if value is None or isinstance(value, (bool, float)):
        return Known(value)
    if isinstance(value, int) and abs(value) < _LARGEST_INTEGER:
        return Known(value)
    if isinstance(value, str) and len(value) <= LONGEST_TEXT:
        return Known(value.encode("utf-8", "replace").decode("utf-8"))
    return Unresolved("a constant of a kind that no quantity has")


def _compute(operator: ast.operator, left: Plain, right: Plain) -> Plain:
    both_text = isinstance(left, str) and isinstance(right, str)
    numbers = all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in (left, right))
    if not numbers and not (both_text and isinstance(operator, ast.Add)):
        raise TypeError("only numbers are computed, and texts joined")
    try:
        result = _ARITHMETIC[type(operator)](left, right)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    if isinstance(result, str):
        return _short(result)
    if isinstance(result, int) and abs(result) >= _LARGEST_INTEGER:
        raise ValueError("the number is too large to be followed")
    if not isinstance(result, (int, float)):
        raise TypeError("not a number")
    return result


def _short(text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise ValueError("the text is too long to be followed")
    return text


def _tuple_of(*items: Plain) -> Plain:
    if any(isinstance(item, tuple) for item in items):
        raise TypeError("nested lists are not followed")
    return tuple(item for item in items if not isinstance(item, tuple))


def _texts(parts: tuple[Plain, ...]) -> list[str]:
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("a path is made of texts")
    return [str(part) for part in parts]


def _integer(item: Plain) -> int:
    if isinstance(item, (str, int, float)) and len(str(item)) < 20 and item not in (float("inf"), float("-inf")):
        return int(item)
    raise ValueError("not a whole number")


def _negated(item: Plain) -> Plain:
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return -item
    raise TypeError("only numbers have a sign")


def _inverted(item: Plain) -> Plain:
    return not item
