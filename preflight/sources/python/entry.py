"""Decides whether a script does something when run, or only defines things for other modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from preflight.model.job import Claim
from preflight.sources.python.module import Module
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import RankSet, ranks_where_true

#: Calls with which modules set themselves up; they start nothing.
_SETUP_CALLS = (
    "log",
    "warn",
    "sys.path",
    "torch.backends",
    "torch.set_",
    "os.environ",
    "register",
    "load_dotenv",
    "add_argument",
)
_EFFECTFUL_NODES = (ast.For, ast.While, ast.With, ast.AsyncFor)


def claims(module: Module) -> Iterator[Claim]:
    """The claim that the script is an entry point, at the statement that makes it one."""
    for statement in module.tree.body:
        if _has_effect(module, statement):
            claim = module.claim("entry_point", True, statement, condition="", spelling="runs by itself")
            # The line itself is not informative, and may contain a secret.
            yield replace(claim, span=replace(claim.span, snippet=""))
            return


def _has_effect(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        if "__name__" in module.text(statement.test):
            return True
        if any(_has_effect(module, each) for each in (*statement.body, *statement.orelse)):
            return True
        # `if rank == 0: saver = Saver(path)`: only a script queries its rank at import.
        made = any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in statement.body)
        return made and ranks_where_true(module, statement.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.IfExp):
        return ranks_where_true(module, statement.value.test) not in (RankSet.ALL, RankSet.UNDECIDED)
    if isinstance(statement, _EFFECTFUL_NODES):
        return True
    if isinstance(statement, ast.Try):
        return any(_has_effect(module, each) for each in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = dotted(statement.value.func) or getattr(statement.value.func, "attr", "")
        return not any(each in name.lower() for each in _SETUP_CALLS)
    return False
