"""Conditions under which a program continues after its start: those that its parser checks, and those that it checks
itself before it trains, with `assert` or `if ...: raise`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.sources.python.launch_expressions import SYMBOLS, VALUES, Pieces, is_fixed, pieces_of, value_of
from preflight.sources.python.module import Module
from preflight.sources.python.program import Place
from preflight.sources.python.program_flow import ProgramFlow, fails
from preflight.sources.python.program_options import Options

#: What `int` and `float` read (Python's lexical definitions, without exotic digits).
_NUMBERS = {
    "int": r"\s*[+-]?[0-9]+(?:_[0-9]+)*\s*",
    "float": r"\s*[+-]?(?:(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))\s*",
}


def claims(module: Module) -> Iterator[Claim]:
    """The conditions to which a script certainly comes, each true where it continues."""
    if module.options is None or not module.options.program.is_complete:
        return
    flow = ProgramFlow(module.options)
    for each in module.options.program.modules:
        statements: list[ast.Assert | ast.If] = [*each.nodes(ast.Assert), *each.nodes(ast.If)]
        for statement in statements:
            if isinstance(statement, ast.Assert) or fails(each, statement.body):
                yield from _claim(module.options, flow, each, statement)
    yield from _of_parser(module.options, flow)


def _claim(options: Options, flow: ProgramFlow, module: Module, statement: ast.Assert | ast.If) -> Iterator[Claim]:
    condition = pieces_of(options, Place(module, statement.test))
    if isinstance(statement, ast.If):
        condition = ["not (", *condition, ")"]
    if any(piece in SYMBOLS or isinstance(piece, VALUES) for piece in condition):
        yield from _stated(flow, module, statement, condition, statement.test, "")


def _stated(
    flow: ProgramFlow, module: Module, at: ast.AST, condition: Pieces, place: ast.AST, spelling: str
) -> Iterator[Claim]:
    """The claim that a condition must hold, if the program certainly comes to a node, or where it does."""
    guards = flow.guards(module, at)
    if guards is not None:
        parts = [*(["not (", *guard, ")"] for guard in guards), condition]
        pieces = [piece for part in parts for piece in (" or ", *part)][1:]
        quantity = "parser_condition" if spelling else "start_condition"
        yield module.claim(quantity, value_of(pieces), place, condition="", spelling=spelling)


def _of_parser(options: Options, flow: ProgramFlow) -> Iterator[Claim]:
    """What argparse checks: that a required option is given, its choices and the type of its value."""
    parse = options.parse
    guards = flow.guards(*parse) if parse is not None else None
    if guards is None or guards:
        return
    for module, call, option in options.declarations():
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        # Each stands at its own argument: claims of one place are taken for one.
        conditions: list[tuple[Pieces, str, str]] = []
        # A missing option, and a default, are not checked.
        text = option._replace(kind="str", default=None, has_default=True)
        if isinstance(required := given.get("required"), ast.Constant) and required.value is True:
            conditions.append(([text, " is not None"], "is required", "required"))
        if option.kind in _NUMBERS:
            pattern = _NUMBERS[option.kind]
            condition: Pieces = [text, " is None or matches(", text, f", {pattern!r})"]
            conditions.append((condition, f"takes {option.kind}", "type"))
        choices = module.fold(given["choices"]) if "choices" in given else None
        if isinstance(choices, Known) and isinstance(choices.value, tuple) and is_fixed(options, given["choices"]):
            shown = ", ".join(map(str, choices.value))
            missing = option._replace(default=None, has_default=True)
            conditions.append(([missing, f" in {(*choices.value, None)!r}"], f"takes one of {shown}", "choices"))
        if not isinstance(module.parent(call), ast.Expr):
            # What is kept of it may be changed: `action.required = False`.
            continue
        for condition, what, keyword in conditions:
            yield from _stated(flow, module, call, condition, given[keyword], f"{option.names[-1]} {what}")
