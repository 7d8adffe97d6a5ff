"""To which parts of itself a program certainly comes, and under which conditions that a launch decides."""

from __future__ import annotations

import ast
import itertools

from preflight.model.job import Known
from preflight.sources.python.launch_expressions import Pieces, pieces_of
from preflight.sources.python.module import Module, last
from preflight.sources.python.outline import Function
from preflight.sources.python.program import Place
from preflight.sources.python.program_options import Options

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Statements and expressions in which everything is run whenever they are.
_TRANSPARENT = (ast.With, ast.Assign, ast.AnnAssign, ast.Expr, ast.Return, ast.Call, ast.keyword, ast.Starred)
#: Decorators under which a function is run as it is written.
_PLAIN = frozenset(("record", "no_grad", "inference_mode", "cache", "lru_cache"))
#: Contexts that may keep a failure.
_KEEPING = frozenset(("suppress", "raises", "assertRaises"))
_EXITS = ("exit", "quit", "_exit")
_LEAVES = (ast.Return, ast.Continue, ast.Break)
#: Calls of functions are followed to this depth.
_MAX_DEPTH = 12


class ProgramFlow:
    """The way of a program through its modules."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._program = options.program
        self._may_end: dict[int, bool] = {}

    def guards(self, module: Module, node: ast.AST, depth: int = 0) -> list[Pieces] | None:
        """The conditions under which the program comes to a node; None if that depends on anything else."""
        found: list[Pieces] = []
        for child, parent in itertools.pairwise((node, *module.outline.above(node))):
            if isinstance(parent, ast.If):
                if is_main(parent.test):
                    if child not in parent.body or module is not self._program.script:
                        return None
                elif child in parent.orelse:
                    found.append(["not (", *pieces_of(self._options, Place(module, parent.test)), ")"])
                elif child in parent.body:
                    found.append(pieces_of(self._options, Place(module, parent.test)))
            elif isinstance(parent, ast.Try):
                # A handler that raises again lets the failure pass.
                later = [*(statement for each in parent.handlers for statement in each.body), *parent.finalbody]
                leaves = any(isinstance(node, _LEAVES) for statement in later for node in ast.walk(statement))
                raises = all(isinstance(each.body[-1], ast.Raise) for each in parent.handlers)
                if child not in parent.body or not raises or leaves:
                    return None
            elif isinstance(parent, ast.With) and self._may_keep(module, parent):
                return None
            elif isinstance(parent, _FUNCTIONS):
                around = self._guards_of_calls(module, parent, depth + 1)
                return None if around is None or self._is_left_before(module, node, parent) else found + around
            elif not isinstance(parent, (*_TRANSPARENT, ast.Module)):
                return None
        if self._is_left_before(module, node, None):
            return None
        around = self._guards_of_imports(module, depth + 1) if module is not self._program.script else []
        return None if around is None else found + around

    def _may_keep(self, module: Module, block: ast.With) -> bool:
        """Whether the context of a block may keep a failure in it from the rest."""
        made = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        own = {node.name for each in self._program.modules for node in each.nodes(ast.ClassDef)}
        names = {module.called(call).rpartition(".")[2] for call in made}
        return bool(names & (_KEEPING | own)) or any(self._program.functions(module, call.func) for call in made)

    def _guards_of_calls(self, module: Module, function: Function, depth: int) -> list[Pieces] | None:
        """The conditions under which a function is called and run."""
        is_plain = isinstance(function, ast.FunctionDef) and isinstance(module.parent(function), ast.Module)
        made = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
        is_plain = is_plain and all(module.name(each).rpartition(".")[2] in _PLAIN for each in made)
        yields = (*module.nodes(ast.Yield), *module.nodes(ast.YieldFrom))
        if not is_plain or any(module.outline.function_of(each) is function for each in yields) or depth > _MAX_DEPTH:
            return None
        if len(module.outline.functions(function.name)) != 1:
            return None
        found = (self.guards(call.module, call.node, depth) for call in self._program.calls(function))
        return next((guards for guards in found if guards is not None), None)

    def _guards_of_imports(self, module: Module, depth: int) -> list[Pieces] | None:
        """The conditions under which a module is imported."""
        if depth > _MAX_DEPTH:
            return None
        places = self._program.imports_of(module)
        found = (self.guards(importing, statement, depth) for importing, statement in places)
        return next((guards for guards in found if guards is not None), None)

    def _is_left_before(self, module: Module, node: ast.AST, function: Function | None) -> bool:
        """Whether a function, or a module for None, may have ended without a failure before it comes to a node."""
        line = getattr(node, "lineno", 0)
        return any(
            getattr(each, "lineno", 0) < line and module.outline.function_of(each) is function
            for each in self._ends(module)
        )

    def _ends(self, module: Module) -> list[ast.AST]:
        """Where a module may end a function, or the program, without a failure."""
        found: list[ast.AST] = [*module.nodes(ast.Return)]
        found += [
            node
            for node in module.nodes(ast.Raise)
            if node.exc is not None and "Exit" in module.text(node.exc) and not _is_failure(module, node.exc)
        ]
        for call in module.calls:
            if exit_fails(module, call) is False:
                found.append(call)
                continue
            for other, function in self._program.called(module, call):
                if self._may_exit(other, function, 0):
                    found.append(call)
        return found

    def _may_exit(self, module: Module, function: Function, depth: int) -> bool:
        """Whether a function may end the program without a failure."""
        key = id(function)
        if key not in self._may_end:
            self._may_end[key] = False
            calls = module.outline.calls_in(function)
            raised = (node.exc for node in module.nodes(ast.Raise) if module.outline.function_of(node) is function)
            self._may_end[key] = (
                any(exit_fails(module, call) is False for call in calls)
                or any(each is not None and "Exit" in module.text(each) for each in raised)
                or (
                    depth < _MAX_DEPTH
                    and any(
                        self._may_exit(*place, depth + 1)
                        for call in calls
                        for place in self._program.called(module, call)
                    )
                )
            )
        return self._may_end[key]


def is_main(test: ast.expr) -> bool:
    """Whether this is `__name__ == "__main__"`."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
    )


def fails(module: Module, body: list[ast.stmt]) -> bool:
    """Whether a block certainly ends in an exception, or in an exit that reports a failure."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    if any(isinstance(node, (*_LEAVES, ast.Try)) for node in nodes):
        return False
    if any(isinstance(node, ast.Call) and exit_fails(module, node) is False for node in nodes):
        return False
    end = body[-1]
    if isinstance(end, ast.Raise):
        return end.exc is not None and _is_failure(module, end.exc)
    return isinstance(end, ast.Expr) and isinstance(end.value, ast.Call) and exit_fails(module, end.value) is True


def _is_failure(module: Module, raised: ast.expr) -> bool:
    """Whether an exception is one that ends a program as failed, if nothing handles it."""
    if "Exit" not in module.text(raised):
        return True
    status = module.fold(raised.args[0]) if isinstance(raised, ast.Call) and raised.args else Known(0)
    return isinstance(status, Known) and status.value not in (0, None, False)


def exit_fails(module: Module, call: ast.Call) -> bool | None:
    """Whether a call ends the program as failed; None if it does not end it."""
    called = module.called(call)
    name = last(called)
    if name == "error" and "parser" in called:
        return True
    if called.startswith("os.exec"):
        # Another program takes its place.
        return False
    if name not in _EXITS:
        return None
    status = module.fold(call.args[0]) if call.args else Known(0)
    return isinstance(status, Known) and status.value not in (0, None, False)
