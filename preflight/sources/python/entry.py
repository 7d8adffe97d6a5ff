"""Whether a script does something when it is run, or only defines things for others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from preflight.job import Claim
from preflight.sources.python.module import Module
from preflight.sources.python.outline import dotted
from preflight.sources.python.ranks import Who, audience

#: Modules set up such things for their own use; it starts nothing.
_SETTING_UP = (
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
_WORKING = (ast.For, ast.While, ast.With, ast.AsyncFor)


def claims(module: Module) -> Iterator[Claim]:
    """The claim that the script is an entry point, at the statement that makes it one."""
    for statement in module.tree.body:
        if _works(module, statement):
            claim = module.claim("entry_point", True, statement, condition="", spelling="runs by itself")
            # The line itself tells nothing, and may hold what nobody should keep.
            yield replace(claim, span=replace(claim.span, snippet=""))
            return


def _works(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        if "__name__" in module.text(statement.test):
            return True
        if any(_works(module, each) for each in (*statement.body, *statement.orelse)):
            return True
        # `if rank == 0: saver = Saver(path)`: nothing but a script asks for its rank before it is called.
        made = any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in statement.body)
        return made and audience(module, statement.test) not in (Who.ALL, Who.UNTOLD)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.IfExp):
        return audience(module, statement.value.test) not in (Who.ALL, Who.UNTOLD)
    if isinstance(statement, _WORKING):
        return True
    if isinstance(statement, ast.Try):
        return any(_works(module, each) for each in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = dotted(statement.value.func) or getattr(statement.value.func, "attr", "")
        return not any(each in name.lower() for each in _SETTING_UP)
    return False
