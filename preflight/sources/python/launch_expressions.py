"""Expressions of a program as text in which stands what a launch gives: `4 * 2 == world_size`.

Options stand in it as the launch line gives them, values of files as the files have them, the number of ranks by a name
of `SYMBOLS`, and everything else as `unknown`.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re

from preflight.model.job import Known
from preflight.model.job.value import FileValue, OfOptions, Part, ProgramOption
from preflight.sources.python.environment import given_variables
from preflight.sources.python.module import Module, argument
from preflight.sources.python.outline import end_of
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
#: Expressions are followed to this depth.
_MAX_DEPTH = 12
#: Characters of a text or list that is compared with.
_MAX_LITERAL = 300
#: A longer expression is not one that people write.
_MAX_PIECES = 400

Pieces = list[Part]
#: What a launch decides.
VALUES = (ProgramOption, FileValue)


def value_of(pieces: Pieces) -> Known | OfOptions:
    """The value of a claim about the text that pieces make."""
    if not any(isinstance(piece, VALUES) for piece in pieces):
        return Known("".join(map(str, pieces)))
    return OfOptions("what the launch line and files give", (), tuple(pieces), True)


def pieces_of(options: Options, place: Place, depth: int = 0) -> Pieces:
    """The pieces of the text of an expression."""
    if depth > _MAX_DEPTH or not is_fixed(options, place.expression):
        return [UNKNOWN]
    key = id(place.expression)
    if key not in options.pieces:
        found = _pieces(options, place, depth)
        options.pieces[key] = found if len(found) <= _MAX_PIECES else [UNKNOWN]
    return options.pieces[key]


def _pieces(options: Options, place: Place, depth: int) -> Pieces:
    module, expression = options.program.meaning(*place)

    def inner(each: ast.expr) -> Pieces:
        return ["(", *pieces_of(options, Place(module, each), depth + 1), ")"]

    def value(each: ast.expr) -> Pieces:
        # `args.size or 8` is one of the two, and not whether one of them is true.
        is_choice = isinstance(options.program.meaning(module, each).expression, ast.BoolOp)
        return [UNKNOWN] if is_choice else inner(each)

    if isinstance(expression, ast.BoolOp):
        parts = [inner(value) for value in expression.values]
        return [piece for part in parts for piece in (f" {_SIGNS[type(expression.op)]} ", *part)][1:]
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, (ast.Not, ast.USub)):
        return ["not " if isinstance(expression.op, ast.Not) else "-", *inner(expression.operand)]
    if isinstance(expression, ast.BinOp) and type(expression.op) in _SIGNS:
        return [*value(expression.left), f" {_SIGNS[type(expression.op)]} ", *value(expression.right)]
    if isinstance(expression, ast.Compare):
        sides = [
            options.program.meaning(module, each).expression for each in (expression.left, *expression.comparators)
        ]
        if any(isinstance(side, (ast.List, ast.Set)) for side in sides) and not all(
            isinstance(sign, (ast.In, ast.NotIn)) for sign in expression.ops
        ):
            # A list equals no tuple, as which it would be written.
            return [UNKNOWN]
        found = value(expression.left)
        for sign, side in zip(expression.ops, expression.comparators, strict=True):
            found += [f" {_SIGNS[type(sign)]} ", *value(side)]
        return found
    if isinstance(expression, (ast.Tuple, ast.List, ast.Set)):
        return ["(", *(piece for item in expression.elts for piece in (*inner(item), ", ")), ")"]
    return [_atom(options, module, expression)]


#: Methods that change a list or a set.
_GROWING = ("append", "extend", "add", "insert", "remove", "discard", "update", "pop", "clear", "sort", "reverse")


def is_fixed(options: Options, expression: ast.expr) -> bool:
    """Whether nothing in the program changes the list that a name may stand for."""
    name = end_of(expression)
    return not name or not any(name in _changed(module) for module in options.program.modules)


@functools.lru_cache(maxsize=64)
def _changed(module: Module) -> frozenset[str]:
    """The names whose lists a module changes in place."""
    receivers = [call.func.value for call in module.named(*_GROWING) if isinstance(call.func, ast.Attribute)]
    receivers += [node.target for node in module.nodes(ast.AugAssign)]
    receivers += [node.value for node in module.nodes(ast.Subscript) if not isinstance(node.ctx, ast.Load)]
    return frozenset(map(end_of, receivers)) - {""}


def _atom(options: Options, module: Module, expression: ast.expr) -> Part:
    kind = ""
    if isinstance(expression, ast.Call):
        if _WORLD_SIZE.fullmatch(module.called(expression)) and not (expression.args or expression.keywords):
            starts = [call for each in options.program.modules for call in each.named("init_process_group")]
            return "world_size" if all(argument(call, "world_size") is None for call in starts) else UNKNOWN
        if isinstance(expression.func, ast.Name) and expression.func.id == "int" and len(expression.args) == 1:
            variable = variable_read(module, expression.args[0]) or ""
            if variable in _VARIABLES:
                return UNKNOWN if _is_set(options, variable) else _VARIABLES[variable]
            module, expression = options.program.meaning(module, expression.args[0])
            kind = "int"
    if isinstance(expression, ast.Name):
        # It could not be followed.
        return UNKNOWN
    if isinstance(expression, ast.Attribute) and (option := options.of(expression, module)) is not None:
        return option._replace(kind=kind) if kind and not option.kind.startswith("store_") else option
    taken = ProgramFiles(options).value(module, expression)
    if taken is not None:
        return taken._replace(kind=kind)
    value = module.fold(expression) if not kind else None
    return repr(value.value) if isinstance(value, Known) and len(repr(value.value)) <= _MAX_LITERAL else UNKNOWN


def _is_set(options: Options, variable: str) -> bool:
    """Whether the program may set a variable itself."""
    for module in options.program.modules:
        stores = [node for node in module.nodes(ast.Subscript) if not isinstance(node.ctx, ast.Load)]
        of_environment = [node for node in stores if module.name(node.value) == "os.environ"]
        if variable in given_variables(module) or not all(isinstance(n.slice, ast.Constant) for n in of_environment):
            return True
    return False


def branch(options: Options, module: Module, node: ast.AST) -> OfOptions | None:
    """The condition of the branches around a node, and around the only call of the function that it is in.

    None if neither the launch line nor a file decides it.
    """
    tests: list[Pieces] = []
    for child, parent in itertools.pairwise((node, *module.outline.above(node))):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            test = pieces_of(options, Place(module, parent.test))
            is_inside = child is parent.body or (isinstance(parent.body, list) and child in parent.body)
            tests.append(["(", *test, ")"] if is_inside else ["not (", *test, ")"])
        elif isinstance(parent, ast.ExceptHandler):
            tests.append([UNKNOWN])
        elif isinstance(parent, _FUNCTIONS):
            calls = options.program.calls(parent)
            around = branch(options, calls[0].module, calls[0].node) if len(calls) == 1 else None
            tests += [list(around.made_of)] if around is not None else []
            break
    if not any(isinstance(piece, VALUES) for test in tests for piece in test):
        return None
    pieces = [piece for test in tests for piece in (" and ", *test)][1:]
    return OfOptions("what the launch line and files give", (), tuple(pieces), True)
