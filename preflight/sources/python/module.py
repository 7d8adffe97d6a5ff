"""A parsed training script: its calls, names and constants, and a function to state claims.

Python counts columns in UTF-8 bytes and also ends lines at a lone carriage return; spans count characters and end lines
at line feeds only. This module converts between the two.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from preflight._util.redaction import scrub
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import Claim, Known, OneOf, Relation, Scope, Span, Strength, Unresolved, Value, join, lift
from preflight.model.job.claim import Branch, BranchClaim, in_branches
from preflight.model.job.value import Computed, Plain, Symbol
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import outline
from preflight.sources.python.outline import Outline, dotted

if TYPE_CHECKING:
    from preflight.sources.python.program import Program

#: Steps to fold a constant; a longer computation is not a constant.
MAX_FOLD_DEPTH = 40
#: Functions that call functions are followed to this depth.
MAX_CALL_DEPTH = 4
#: Longer texts and larger numbers are not computed.
MAX_TEXT_LENGTH = 4096
_MAX_INTEGER = 2**63
#: A function that is called more often than this is not one of two alternatives.
_MAX_ALIKE = 4
#: A condition on how the job was started, not on what the user wants of it.
_OF_RANKS = re.compile(r"environ|getenv|world_size|\bn?nodes\b|num_nodes|RANK")
#: Conditions further out than this are not listed.
_MAX_CLIMB = 200

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


_Node = TypeVar("_Node", bound=ast.AST)


def parse_silently(text: str) -> ast.Module:
    """Return `ast.parse` without warnings: one about an invalid escape in a script must not go to our standard
    error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


class Module:
    """One parsed script.

    Args:
        file: the file it was parsed from.
        tree: its syntax tree.
        files: the tree for looking up other files.
        scope: the scope of every claim.
        imported: what was read of the modules that the scripts of this tree import, by path and hash.
    """

    def __init__(
        self,
        file: SourceFile,
        tree: ast.Module,
        files: Tree,
        scope: Scope,
        imported: dict[tuple[str, str], Any] | None = None,
    ) -> None:
        self.file = file
        self.files = files
        self.scope = scope
        self.imported = {} if imported is None else imported
        self.positions = Positions(file.path, file.text)
        self._walked = outline.walk(tree)
        self.tree = tree
        self.outline = Outline(self._walked)
        self._folded: dict[int, Value] = {}
        self._named_options: dict[str, str] | None = None
        #: The program of which this is the script.
        self.program: Program | None = None
        self.calls = self.nodes(ast.Call)
        self._called = {id(call): self._name_called(call) for call in self.calls}
        #: The calls by the last part of the called name.
        self.by_name: dict[str, list[ast.Call]] = {}
        for call, name in zip(self.calls, self._called.values(), strict=True):
            self.by_name.setdefault(name.rpartition(".")[2], []).append(call)

    def nodes(self, *kinds: type[_Node]) -> list[_Node]:
        """Return every node of these kinds, those of one kind in source order."""
        return [node for kind in kinds for node in self._walked.by_kind.get(kind, ()) if isinstance(node, kind)]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node around this one."""
        return self._walked.parents.get(id(node))

    def name(self, expression: ast.expr) -> str:
        """Return the dotted name of an expression, with aliases of imports replaced; empty if it is not a name."""
        written = dotted(expression)
        first, _, rest = written.partition(".")
        original = self._walked.imports.get(first, first)
        return f"{original}.{rest}" if rest else original

    @property
    def imports(self) -> Mapping[str, str]:
        """Return the dotted names of the script's imports, by their local names."""
        return self._walked.imports

    def is_imported(self, name: str) -> bool:
        """Return whether an import binds the first part of a dotted name."""
        return name.partition(".")[0] in self._walked.imports

    def called(self, call: ast.Call) -> str:
        """Return the dotted name of the called function; for a method of an unknown object only `.method`."""
        # A value may be that of another module.
        return self._called.get(id(call)) or dotted(call.func)

    def named(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions with one of these last names, those of one name in source order."""
        return [call for name in names for call in self.by_name.get(name, ())]

    def _name_called(self, call: ast.Call) -> str:
        name = self.name(call.func)
        if not name and isinstance(call.func, ast.Attribute):
            return "." + call.func.attr
        return name

    def text(self, node: ast.AST) -> str:
        """Return the text of a node, on one line, with secrets hidden."""
        return scrub(self.positions.text(node))

    def span(self, node: ast.AST) -> Span:
        """Return the span of a node, with secrets in the snippet hidden."""
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
        """Return a claim. The location of a keyword argument is its value, its spelling the whole `name=value`."""
        place = at.value if isinstance(at, ast.keyword) else at
        claim = Claim(
            quantity=quantity,
            value=value if isinstance(value, (Known, OneOf, Unresolved)) else Known(value),
            span=self.span(place),
            spelling=spelling or self.text(at),
            source=source,
            scope=self.scope,
            strength=strength,
            relation=relation,
            condition=self.condition(at) if condition is None else condition,
            because=tuple(each.decided(is_taken=None) if isinstance(each, BranchClaim) else each for each in because),
        )
        return in_branches(claim, self.branches(at))

    def feature(self, name: str, at: ast.AST, *others: ast.AST, condition: str | None = None) -> Claim:
        """Return the claim of a feature of the script; `others` are further places that show it."""
        because = tuple(self.claim("script_feature", f"part of {name}", other, condition="") for other in others)
        return self.claim("script_feature", name, at, because=because, condition=condition)

    def condition(self, node: ast.AST) -> str:
        """Return the branches around a node, as written in the script, outermost first; empty = always."""
        tests: list[str] = []
        child, parent = node, self.parent(node)
        for _ in range(_MAX_CLIMB):
            if parent is None:
                break
            if isinstance(parent, (ast.If, ast.IfExp)):
                text = self.text(parent.test)
                if child is not parent.test and not text.startswith(("__name__", "TYPE_CHECKING")):
                    inside = child is parent.body or (isinstance(parent.body, list) and child in parent.body)
                    tests.append(text if inside else f"not ({text})")
            elif isinstance(parent, ast.ExceptHandler):
                tests.append(f"except {self.text(parent.type)}" if parent.type else "except")
            elif isinstance(parent, ast.Call) and child is not parent.func:
                tests += self._otherwise(parent)
            # The call of a function stands around what is in it.
            child = self._choice(parent) or parent
            parent = self.parent(child)
        joined = " and ".join(reversed(tests))
        return joined if len(joined) <= 200 else joined[:199] + "…"

    def _choice(self, function: ast.AST) -> ast.Call | None:
        """Return the only call of a function, if the number of ranks chooses between it and something else."""
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        calls = self.by_name.get(function.name, ())
        if len(calls) != 1 or not isinstance(calls[0].func, ast.Name):
            return None
        node: ast.AST | None = self.parent(calls[0])
        while node is not None and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            two_ways = isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and node.orelse)
            if two_ways and _OF_RANKS.search(self.text(node.test)):  # type: ignore[attr-defined]
                return calls[0]
            node = self.parent(node)
        return None

    def _otherwise(self, call: ast.Call) -> list[str]:
        """Return `not (a)` where `if a: f(x); return` stands above `f(y)`: the function makes one of the two calls."""
        alike = self.by_name.get(last(self.called(call)), ())
        found = []
        for other in alike if len(alike) <= _MAX_ALIKE else ():
            branch = self.parent(other)
            while branch is not None and not isinstance(branch, (ast.If, ast.FunctionDef, ast.AsyncFunctionDef)):
                branch = self.parent(branch)
            if not isinstance(branch, ast.If) or not isinstance(branch.body[-1], ast.Return) or other is call:
                continue
            around = self.parent(branch)
            rest = getattr(around, "body", [])
            later = rest[rest.index(branch) + 1 :] if branch in rest else []
            if any(node is call for statement in later for node in ast.walk(statement)):
                found.append(f"not ({self.text(branch.test)})")
        return found

    def bound_to(self, node: ast.AST) -> str:
        """Return the variable that an expression's value is assigned to (`sampler`, `self.sampler`); empty if none."""
        parent = self.parent(node)
        while isinstance(parent, ast.IfExp):
            parent = self.parent(parent)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return dotted(parent.targets[0])
        if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
            return dotted(parent.target)
        return ""

    def source(self, node: ast.AST) -> str:
        """Return the text of a node as written."""
        start, end = self.positions.bounds(node)
        return self.file.text[start:end]

    def definition(self, expression: ast.expr) -> ast.expr:
        """Return the value assigned to a name, if there is exactly one assignment; else the expression itself."""
        for _ in range(5):
            if not isinstance(expression, ast.Name):
                break
            found = self.bindings_of(expression)
            if found is None or len(found) != 1 or found[0] is None:
                break
            expression = found[0]
        return expression

    def branches(self, node: ast.AST) -> tuple[Branch, ...]:
        """Return the branches around a node and, if its function is called exactly once, those around that call."""
        found: list[Branch] = []
        functions: set[int] = set()
        module: Module | None = self
        while module is not None:
            module, node = module._add_branches(node, found, functions)
        return tuple(found)

    def _add_branches(self, node: ast.AST, found: list[Branch], functions: set[int]) -> tuple[Module | None, ast.AST]:
        """Add the branches around a node in its function; where the only call of that is, unless it calls itself."""
        for child, parent in itertools.pairwise((node, *self.outline.above(node))):
            if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
                is_inside = child is parent.body or (isinstance(parent.body, list) and child in parent.body)
                found.append(Branch(self.file.path, parent.test.lineno, parent.test.col_offset, is_inside))
            elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                calls = self.program.calls(parent) if self.program is not None else []
                if len(calls) != 1 or id(parent) in functions:
                    break
                functions.add(id(parent))
                return calls[0].module, calls[0].node
        return None, node

    def fold(self, expression: ast.expr) -> Value:
        """Return the constant value of an expression, or why it has none."""
        value = self._folded_at(expression, 0)
        if not isinstance(value, Unresolved):
            return value
        end = (expression.end_lineno or 0, expression.end_col_offset or 0)
        place = (self.file.path, expression.lineno, expression.col_offset, *end)
        return Computed(value.why, value.set_by_caller, place)

    def _folded_at(self, expression: ast.expr, depth: int) -> Value:
        # Cached, and marked while in progress: `x = x + x` must neither loop nor double at every step.
        key = id(expression)
        if key not in self._folded:
            self._folded[key] = Unresolved(f"{self.text(expression)}: known only at run time")
            if depth <= MAX_FOLD_DEPTH:
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
        if isinstance(expression, (ast.Tuple, ast.List, ast.Set)):
            return lift(_tuple_of, *(self._folded_at(item, depth + 1) for item in expression.elts))
        if isinstance(expression, ast.BinOp) and type(expression.op) in _ARITHMETIC:
            left, right = self._folded_at(expression.left, depth + 1), self._folded_at(expression.right, depth + 1)
            return lift(lambda a, b: _compute(expression.op, a, b), left, right)
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, (ast.USub, ast.Not)):
            operand = self._folded_at(expression.operand, depth + 1)
            return lift(_negate if isinstance(expression.op, ast.USub) else _invert, operand)
        if isinstance(expression, ast.IfExp):
            return join((self._folded_at(expression.body, depth + 1), self._folded_at(expression.orelse, depth + 1)))
        if isinstance(expression, ast.Call):
            return self._fold_call(expression, depth)
        return self._unknown(expression)

    def _unknown(self, expression: ast.expr) -> Unresolved:
        """Return why an expression has no constant value: the variable, option or argument that sets it, where one
        does.
        """
        variable = self._variable_read(expression)
        if variable:
            return Unresolved(f"${variable}, which the caller sets")
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            name = self._options().get(expression.attr)
            if name is not None:
                return Unresolved(f"the value of `{name}`")
        if isinstance(expression, ast.Attribute) and dotted(expression):
            return Unresolved(f"`{self.text(expression)}`: known only at run time")
        if isinstance(expression, ast.Name):
            scope = self._walked.scopes.get(id(expression))
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and expression.id in _parameters(scope):
                return Unresolved(f"the argument `{expression.id}` of {scope.name}")
        return Unresolved(f"{self.text(expression)}: known only at run time")

    def _variable_read(self, expression: ast.expr) -> str:
        """Return the variable of `os.environ["NAME"]` or `os.getenv("NAME", ...)`; empty for anything else."""
        name: ast.expr | None = None
        if isinstance(expression, ast.Subscript) and self.name(expression.value) == "os.environ":
            name = expression.slice
        elif isinstance(expression, ast.Call) and self.called(expression) in ("os.environ.get", "os.getenv"):
            name = expression.args[0] if expression.args else None
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""

    def _options(self) -> dict[str, str]:
        """Return the options of the script's parsers, by the attribute that holds their value."""
        if self._named_options is None:
            self._named_options = {}
            for call in self.named("add_argument"):
                written = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                option = next((text for text in written if text.startswith("--")), "")
                if option:
                    self._named_options.setdefault(option.lstrip("-").replace("-", "_"), option)
        return self._named_options

    def _fold_call(self, call: ast.Call, depth: int) -> Value:
        name = self.called(call)
        if not call.keywords and not any(isinstance(argument, ast.Starred) for argument in call.args):
            values = [self._folded_at(argument, depth + 1) for argument in call.args]
            if name in ("str", "int") and len(values) == 1:
                return lift(lambda item: str(item) if name == "str" else _integer(item), *values)
            if name in ("os.path.join", "pathlib.Path") and values:
                return lift(lambda *parts: _short("/".join(_texts(parts))), *values)
        if name in _GPU_COUNTS:
            return Unresolved(Symbol.GPU_COUNT.value)
        return self._unknown(call)

    def _piece(self, piece: ast.expr, depth: int) -> Value:
        if isinstance(piece, ast.FormattedValue):
            if piece.format_spec is not None or piece.conversion != -1:
                return Unresolved(f"{self.text(piece.value)}: formatted at run time")
            return self._folded_at(piece.value, depth + 1)
        return self._folded_at(piece, depth + 1)

    def _fold_name(self, name: ast.Name, depth: int) -> Value:
        found = self.bindings_of(name)
        if not found or any(value is None for value in found):
            return self._unknown(name)
        if any(isinstance(value, ast.List) for value in found) and self._is_filled(name.id):
            return Unresolved(f"{name.id}: known only at run time")
        return join(self._folded_at(value, depth + 1) for value in found if value is not None)

    def _is_filled(self, name: str) -> bool:
        """Return whether a method changes the list of a name."""
        calls = self.named("append", "extend", "insert", "remove", "pop", "clear")
        return any(isinstance(call.func, ast.Attribute) and dotted(call.func.value) == name for call in calls)

    def scope_of(self, name: ast.Name) -> ast.AST | None:
        """Return the innermost function, class or module that binds a name, if it does so once."""
        scope = innermost = self._walked.scopes.get(id(name))
        while scope is not None:
            found = self._walked.bound.get((id(scope), name.id))
            # Methods do not see the names of a class body.
            if found is not None and (scope is innermost or not isinstance(scope, ast.ClassDef)):
                return scope if len(found) == 1 else None
            outer = self._walked.scopes.get(id(scope))
            scope = outer if outer is not scope else None
        return None

    def binding(self, name: str) -> ast.expr | None:
        """Return the only value assigned to a name outside of functions; None if there is not exactly one."""
        found = self._walked.bound.get((id(self.tree), name), [])
        return found[0] if len(found) == 1 else None

    def bindings_of(self, name: ast.Name) -> list[ast.expr | None] | None:
        """Return all bindings of a name in the innermost scope that binds it; None if nothing does."""
        scope = self._walked.scopes.get(id(name))
        innermost = True
        while scope is not None:
            # Methods do not see the names of a class body.
            if innermost or not isinstance(scope, ast.ClassDef):
                found = self._walked.bound.get((id(scope), name.id))
                if found is not None:
                    return found
            innermost = False
            outer = self._walked.scopes.get(id(scope))
            scope = outer if outer is not scope else None
        return None


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    return {item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


#: Functions that count the GPUs of the host.
_GPU_COUNTS = frozenset(
    ("torch.cuda.device_count", "paddle.device.cuda.device_count", "torch.accelerator.device_count")
)


def last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def exclude_each_other(one: str, other: str) -> bool:
    """Return whether two conditions, as `Module.condition` gives them, are never true together: `a`, and `not a and
    b`.
    """
    parts = [{_bare(part) for part in text.split(" and ") if part} for text in (one, other)]
    negated = [{f"not {part}" for part in each} for each in parts]
    if parts[0] & negated[1] or parts[1] & negated[0]:
        return True
    # `a` and `b or not a`: which of the two is run depends on `b` alone.
    return any(
        part.isidentifier() and re.search(rf"\bnot {part}\b", text)
        for each, text in zip(parts, (other, one), strict=True)
        for part in each
    )


def is_implied(one: str, other: str) -> bool:
    """Return whether a condition, as `Module.condition` returns it, certainly holds if another holds: `a` if `a and b`
    holds.
    """
    parts = [{_bare(part) for part in text.split(" and ") if part} for text in (one, other)]
    return parts[0] <= parts[1]


def _bare(part: str) -> str:
    """Return a part of a condition without the brackets around what is negated."""
    return re.sub(r"^not \((.*)\)$", r"not \1", part.strip())


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.keyword | ast.expr | None:
    """Return the argument given as `name=`, or at `position`; None if it is not given (or hidden in `*args`)."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword
    if position is None or position >= len(call.args):
        return None
    if any(isinstance(item, ast.Starred) for item in call.args[: position + 1]):
        return None
    return call.args[position]


def value_of(given: ast.keyword | ast.expr) -> ast.expr:
    """Return the expression of an argument, positional or by keyword."""
    return given.value if isinstance(given, ast.keyword) else given


def is_none(expression: ast.expr) -> bool:
    """Return whether the expression is a literal None."""
    return isinstance(expression, ast.Constant) and expression.value is None


def _constant(value: object) -> Value:
    if value is None or isinstance(value, (bool, float)):
        return Known(value)
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return Known(value)
    if isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH:
        return Known(value.encode("utf-8", "replace").decode("utf-8"))
    return Unresolved("a constant of an unsupported type")


def _compute(operator: ast.operator, left: Plain, right: Plain) -> Plain:
    both_text = isinstance(left, str) and isinstance(right, str)
    numbers = all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in (left, right))
    if not numbers and not (both_text and isinstance(operator, ast.Add)):
        raise TypeError("only numbers and joined strings are evaluated")
    try:
        result = _ARITHMETIC[type(operator)](left, right)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    if isinstance(result, str):
        return _short(result)
    if isinstance(result, int) and abs(result) >= _MAX_INTEGER:
        raise ValueError("the number is too large to follow")
    if not isinstance(result, (int, float)):
        raise TypeError("not a number")
    return result


def _short(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError("the string is too long to follow")
    return text


def _tuple_of(*items: Plain) -> Plain:
    if any(isinstance(item, tuple) for item in items):
        raise TypeError("nested lists are not followed")
    return tuple(item for item in items if not isinstance(item, tuple))


def _texts(parts: tuple[Plain, ...]) -> list[str]:
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("the parts of a path must be strings")
    return [str(part) for part in parts]


def _integer(item: Plain) -> int:
    if isinstance(item, (str, int, float)) and len(str(item)) < 20 and item not in (float("inf"), float("-inf")):
        return int(item)
    raise ValueError("not a whole number")


def _negate(item: Plain) -> Plain:
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return -item
    raise TypeError("only numbers can have a sign")


def _invert(item: Plain) -> Plain:
    return not item


_LINE_FEED = re.compile(r"\n")
_LINE_END = re.compile(r"\r\n|\r|\n")


class Positions:
    """Turns nodes of the tree of `text` into offsets, text and spans."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._lines = [0, *(match.end() for match in _LINE_FEED.finditer(text))]
        # Without carriage returns Python ends lines where spans do.
        self._python_lines = [0, *(match.end() for match in _LINE_END.finditer(text))] if "\r" in text else self._lines

    def offset(self, line: int, byte_column: int) -> int:
        """Return the character offset of Python's position: line (from 1) and column in UTF-8 bytes."""
        line = max(1, min(line, len(self._python_lines)))
        start = self._python_lines[line - 1]
        end = self._python_lines[line] if line < len(self._python_lines) else len(self._text)
        content = self._text[start:end]
        if content.isascii():
            return start + min(byte_column, len(content))
        return start + len(content.encode("utf-8", "surrogatepass")[:byte_column].decode("utf-8", "ignore"))

    def bounds(self, node: ast.AST) -> tuple[int, int]:
        """Return the start and end offset of a node that has a position; otherwise the start of the file."""
        line = getattr(node, "lineno", None)
        if line is None:
            return 0, 0
        start = self.offset(line, node.col_offset)  # type: ignore[attr-defined]
        end_line, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if end_line is None or end_column is None:
            return start, start
        return start, max(start, self.offset(end_line, end_column))

    def span(self, node: ast.AST) -> Span:
        """Return the span of a node."""
        return self.between(*self.bounds(node))

    def between(self, start: int, end: int) -> Span:
        """Return the span of `text[start:end]`, as from `span_of`, without counting lines from the start each time."""
        line = bisect_right(self._lines, start)
        end_line = bisect_right(self._lines, end)
        line_start = self._lines[line - 1]
        line_end = self._lines[line] - 1 if line < len(self._lines) else len(self._text)
        return Span(
            self._path,
            line,
            start - line_start + 1,
            end_line,
            end - self._lines[end_line - 1] + 1,
            self._text[line_start:line_end].rstrip("\r")[:MAX_SNIPPET_LENGTH],
        )

    def text(self, node: ast.AST, *, max_length: int = 120) -> str:
        """Return the text of the node, on one line."""
        start, end = self.bounds(node)
        written = " ".join(self._text[start : min(end, start + 4 * max_length)].split())
        return written if len(written) <= max_length else written[: max_length - 1] + "…"


class Assigned(NamedTuple):
    """One assignment: the attribute's name, its value, and the statement."""

    name: str
    value: ast.expr
    at: ast.Assign


def attributes(module: Module) -> dict[str, list[Assigned]]:
    """Return all assignments to attributes, in source order, by the object's dotted name."""
    found: dict[str, list[Assigned]] = {}
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                owner = dotted(target.value)
                if owner:
                    found.setdefault(owner, []).append(Assigned(target.attr, node.value, node))
    return found


def enclosing(module: Module, node: ast.AST) -> ast.AST:
    """Return the function or module around a node, within which the order of statements is meaningful."""
    current = module.parent(node)
    while current is not None and not isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        current = module.parent(current)
    return current if current is not None else module.tree


#: Functions that start one process a rank; it gets its rank, and then `args`.
SPAWNS = frozenset(("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "paddle.distributed.spawn"))


def places_given(module: Module, name: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls that pass a variable to a function of this or another file, each with the place that the variable
    reaches.
    """
    for call in module.calls if name else ():
        target, items = _target(module, call)
        if isinstance(target, ast.Name):
            for index, item in enumerate(items):
                if item is not None and dotted(item) == name:
                    yield call, f"{qualified(module, module.name(target))}:{index}"


def _target(module: Module, call: ast.Call) -> tuple[ast.expr | None, Sequence[ast.expr | None]]:
    """Return the function that a call starts, and its arguments; the rank that a spawn passes first is None."""
    if module.called(call) not in SPAWNS:
        return call.func, call.args
    function, given = argument(call, "fn", 0), argument(call, "args", 1)
    listed = value_of(given) if given is not None else None
    items = listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else []
    return value_of(function) if function is not None else None, [None, *items]


def place_of(module: Module, variable: ast.expr) -> str:
    """Return `module.function:index` for a function's own positional argument; empty for any other variable."""
    function = module.outline.function_of(variable)
    if function is None or not isinstance(variable, ast.Name):
        return ""
    names = [each.arg for each in function.args.args]
    if variable.id not in names or variable.id in module.outline.assignments(function):
        return ""
    return f"{PurePosixPath(module.file.path).stem}.{function.name}:{names.index(variable.id)}"


def qualified(module: Module, name: str) -> str:
    """Return `stem.name` of a function or class, with the stem of the file that defines it."""
    return ".".join(name.split(".")[-2:]) if "." in name else f"{PurePosixPath(module.file.path).stem}.{name}"
