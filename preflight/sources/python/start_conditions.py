"""Conditions under which a program continues after its start: those that its parser checks, and those that it checks
itself before it trains, with `assert` or `if ...: raise`.

A condition becomes the text of a Python expression. Options stand in it as the launch line gives them, the number of
ranks by a name of `SYMBOLS`, and everything else as `unknown`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.model.job.value import FileValue, OfOptions, Part, ProgramOption
from preflight.sources.python.environment import given_variables
from preflight.sources.python.module import Module
from preflight.sources.python.outline import Function
from preflight.sources.python.program import Place
from preflight.sources.python.program_files import ProgramFiles
from preflight.sources.python.program_options import Options
from preflight.sources.python.rank_conditions import variable_read

#: Calls that give the number of ranks of the job.
_WORLD_SIZE = re.compile(r"(?:torch|paddle)\.distributed\.get_world_size|horovod\.[a-z.]+\.size")
#: Variables that give it, or the number of ranks of the node; only some launchers set them.
_VARIABLES = {
    "WORLD_SIZE": "torch_world_size",
    "LOCAL_WORLD_SIZE": "torch_local_world_size",
    "PADDLE_TRAINERS_NUM": "paddle_world_size",
}
#: The names in a condition.
SYMBOLS = ("world_size", *_VARIABLES.values())
UNKNOWN = "unknown"
_SIGNS: dict[type[ast.AST], str] = {
    ast.And: "and",
    ast.Or: "or",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Statements and expressions in which everything is run whenever they are.
_TRANSPARENT = (ast.With, ast.AsyncWith, ast.Assign, ast.AnnAssign, ast.Expr, ast.Return, ast.Call, ast.keyword)
_EXITS = ("exit", "quit", "_exit")
#: Expressions are followed to this depth, and calls of functions.
_MAX_DEPTH = 12
#: Characters of a text or list that is compared with.
_MAX_LITERAL = 300
#: What `int` and `float` read (Python's lexical definitions, without exotic digits).
_NUMBERS = {
    "int": r"\s*[+-]?[0-9]+(?:_[0-9]+)*\s*",
    "float": r"\s*[+-]?(?:(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))\s*",
}

_Pieces = list[Part]
_VALUES = (ProgramOption, FileValue)


def claims(module: Module) -> Iterator[Claim]:
    """The conditions to which a script certainly comes, each true where it continues."""
    if module.options is None:
        return
    program = module.options.program
    for each in program.modules:
        statements: list[ast.Assert | ast.If] = [*each.nodes(ast.Assert), *each.nodes(ast.If)]
        for statement in statements:
            if isinstance(statement, ast.Assert) or _fails(each, statement.body):
                yield from _claim(module.options, each, statement)
    yield from _of_parser(module.options)


def _claim(options: Options, module: Module, statement: ast.Assert | ast.If) -> Iterator[Claim]:
    condition = _pieces(options, Place(module, statement.test))
    if isinstance(statement, ast.If):
        condition = ["not (", *condition, ")"]
    if not any(piece in SYMBOLS or isinstance(piece, _VALUES) for piece in condition):
        return
    guards = _guards(options, module, statement, 0)
    if guards is None:
        return
    parts = [*(["not (", *guard, ")"] for guard in guards), condition]
    pieces = [piece for part in parts for piece in (" or ", *part)][1:]
    yield module.claim("start_condition", _value(pieces), statement.test, condition="")


def _value(pieces: _Pieces) -> Known | OfOptions:
    if not any(isinstance(piece, _VALUES) for piece in pieces):
        return Known("".join(map(str, pieces)))
    return OfOptions("what the launch line and files give", (), tuple(pieces), True)


def _of_parser(options: Options) -> Iterator[Claim]:
    """What argparse checks: that a required option is given, its choices and the type of its value."""
    for module, call, option in options.declarations():
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        conditions: list[tuple[_Pieces, str]] = []
        # A missing option, and a default, are not checked.
        text = option._replace(kind="str", default=None, has_default=True)
        if isinstance(required := given.get("required"), ast.Constant) and required.value is True:
            conditions.append(([text, " is not None"], "is required"))
        if option.kind in _NUMBERS:
            pattern = _NUMBERS[option.kind]
            conditions.append(([text, " is None or matches(", text, f", {pattern!r})"], f"takes {option.kind}"))
        choices = module.fold(given["choices"]) if "choices" in given else None
        if isinstance(choices, Known) and isinstance(choices.value, tuple):
            shown = ", ".join(map(str, choices.value))
            missing = option._replace(default=None, has_default=True)
            conditions.append(([missing, f" in {(*choices.value, None)!r}"], f"takes one of {shown}"))
        for condition, what in conditions:
            spelling = f"{option.names[-1]} {what}"
            yield module.claim("parser_condition", _value(condition), call, condition="", spelling=spelling)


def _fails(module: Module, body: list[ast.stmt]) -> bool:
    """Whether a block ends in an exception or in an exit that reports a failure."""
    end = body[-1]
    if isinstance(end, ast.Raise):
        return end.exc is not None and "Exit" not in module.text(end.exc)
    return isinstance(end, ast.Expr) and isinstance(end.value, ast.Call) and _exit_fails(module, end.value) is True


def _exit_fails(module: Module, call: ast.Call) -> bool | None:
    """Whether a call ends the program as failed; None if it does not end it."""
    name = module.called(call).rpartition(".")[2]
    if name == "error" and "parser" in module.called(call):
        return True
    if name not in _EXITS:
        return None
    status = module.fold(call.args[0]) if call.args else Known(0)
    return isinstance(status, Known) and status.value not in (0, None, False)


def _pieces(options: Options, place: Place, depth: int = 0) -> _Pieces:
    """The parts of the text of an expression."""
    if depth > _MAX_DEPTH:
        return [UNKNOWN]
    module, expression = options.program.meaning(*place)

    def inner(each: ast.expr) -> _Pieces:
        return ["(", *_pieces(options, Place(module, each), depth + 1), ")"]

    if isinstance(expression, ast.BoolOp):
        parts = [inner(value) for value in expression.values]
        return [piece for part in parts for piece in (f" {_SIGNS[type(expression.op)]} ", *part)][1:]
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, (ast.Not, ast.USub)):
        return ["not " if isinstance(expression.op, ast.Not) else "-", *inner(expression.operand)]
    if isinstance(expression, ast.BinOp) and type(expression.op) in _SIGNS:
        return [*inner(expression.left), f" {_SIGNS[type(expression.op)]} ", *inner(expression.right)]
    if isinstance(expression, ast.Compare):
        found = inner(expression.left)
        for sign, side in zip(expression.ops, expression.comparators, strict=True):
            found += [f" {_SIGNS[type(sign)]} ", *inner(side)]
        return found
    if isinstance(expression, (ast.Tuple, ast.List, ast.Set)):
        return ["(", *(piece for item in expression.elts for piece in (*inner(item), ", ")), ")"]
    return [_atom(options, module, expression)]


def _atom(options: Options, module: Module, expression: ast.expr) -> Part:
    kind = ""
    if isinstance(expression, ast.Call):
        if _WORLD_SIZE.fullmatch(module.called(expression)) and not (expression.args or expression.keywords):
            return "world_size"
        if isinstance(expression.func, ast.Name) and expression.func.id == "int" and len(expression.args) == 1:
            variable = variable_read(module, expression.args[0]) or ""
            if variable in _VARIABLES and not any(variable in given_variables(m) for m in options.program.modules):
                return _VARIABLES[variable]
            module, expression = options.program.meaning(module, expression.args[0])
            kind = "int"
    if isinstance(expression, ast.Attribute) and (option := options.of(expression, module)) is not None:
        return option._replace(kind=kind) if kind and not option.kind.startswith("store_") else option
    taken = ProgramFiles(options).value(module, expression)
    if taken is not None:
        return taken._replace(kind=kind)
    value = module.fold(expression) if not kind else None
    return repr(value.value) if isinstance(value, Known) and len(repr(value.value)) <= _MAX_LITERAL else UNKNOWN


def branch(options: Options, module: Module, node: ast.AST) -> OfOptions | None:
    """The condition of the branches around a node, and around the only call of the function that it is in.

    None if neither the launch line nor a file decides it.
    """
    tests: list[_Pieces] = []
    for child, parent in itertools.pairwise((node, *module.outline.above(node))):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            test = _pieces(options, Place(module, parent.test))
            is_inside = child is parent.body or (isinstance(parent.body, list) and child in parent.body)
            tests.append(["(", *test, ")"] if is_inside else ["not (", *test, ")"])
        elif isinstance(parent, ast.ExceptHandler):
            tests.append([UNKNOWN])
        elif isinstance(parent, _FUNCTIONS):
            calls = options.program.calls(parent)
            around = branch(options, calls[0].module, calls[0].node) if len(calls) == 1 else None
            tests += [list(around.made_of)] if around is not None else []
            break
    if not any(isinstance(piece, _VALUES) for test in tests for piece in test):
        return None
    pieces = [piece for test in tests for piece in (" and ", *test)][1:]
    return OfOptions("what the launch line and files give", (), tuple(pieces), True)


def _guards(options: Options, module: Module, node: ast.AST, depth: int) -> list[_Pieces] | None:
    """The conditions under which a program comes to a node; None if that depends on anything else."""
    found: list[_Pieces] = []
    for child, parent in itertools.pairwise((node, *module.outline.above(node))):
        if isinstance(parent, ast.If):
            if child in parent.orelse:
                found.append(["not (", *_pieces(options, Place(module, parent.test)), ")"])
            elif child in parent.body and not module.text(parent.test).startswith("__name__"):
                found.append(_pieces(options, Place(module, parent.test)))
            elif child in parent.body and module is not options.program.script:
                return None
        elif isinstance(parent, ast.Try):
            # A handler that raises again lets the failure pass.
            if child not in parent.body or not all(isinstance(each.body[-1], ast.Raise) for each in parent.handlers):
                return None
        elif isinstance(parent, _FUNCTIONS):
            around = _guards_of_calls(options, parent, depth + 1)
            return None if around is None or _is_left_before(module, node, parent) else found + around
        elif not isinstance(parent, (*_TRANSPARENT, ast.Module)):
            return None
    return None if _is_left_before(module, node, None) else found


def _guards_of_calls(options: Options, function: Function, depth: int) -> list[_Pieces] | None:
    """The conditions under which a function is called."""
    if depth > _MAX_DEPTH:
        return None
    calls = options.program.calls(function)
    found = (_guards(options, call.module, call.node, depth) for call in calls)
    return next((guards for guards in found if guards is not None), None)


def _is_left_before(module: Module, node: ast.AST, function: Function | None) -> bool:
    """Whether a function, or the script for None, may have ended without a failure before it comes to a node."""
    line = getattr(node, "lineno", 0)
    ends: list[ast.AST] = list(module.nodes(ast.Return))
    ends += [call for call in module.calls if _exit_fails(module, call) is False]
    return any(getattr(each, "lineno", 0) < line and module.outline.function_of(each) is function for each in ends)
