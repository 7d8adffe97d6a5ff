"""Claims about loops that one rank leaves, or whose step it skips, while the others wait for it in a collective.

A step that runs `backward` of a distributed model is a collective. A rank that leaves the loop because of its own loss
or clock leaves the others waiting. A value that was reduced, gathered or broadcast is the same on all ranks; so is a
step count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Claim
from preflight.sources.python.collectives import COLLECTIVES, is_collective
from preflight.sources.python.module import Module, last
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, ranks_where_true

_Loop: TypeAlias = "ast.For | ast.While | ast.AsyncFor"
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
#: Without one of these words a script trains on one rank, and may leave its loops at any time.
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|Accelerator\b|accelerator\.backward|fabric\.backward"
    r"|horovod|deepspeed|init_process_group|init_parallel_env|DDPStrategy"
)
#: Calls that make all ranks agree on a value.
_AGREEING_CALLS = re.compile(
    r"reduce|gather|broadcast|sync|check_trigger|set_trigger|consensus|agree|all_ranks|global|across|is_last|allreduce"
    r"|barrier|compute|average_over|from_rank|any_rank|scaler|overflow|get_last_lr|token",
    re.IGNORECASE,
)
#: Values that differ between ranks.
_RANK_LOCAL_NAMES = re.compile(
    r"(?:^|_)(?:loss|losses|nan|acc|acc1|accuracy|metric|metrics|score|f1|bleu|wer|psnr|ppl|perplexity|patience)(?:_|$)"
    r"|is_?(?:nan|finite|inf)$|early_?stop\w*|(?:^|_)no_improve\w*|epochs_without",
    re.IGNORECASE,
)
#: Failures that affect one rank alone: out of memory, a bad sample, a lost connection.
_FAILURES = frozenset(("Exception", "BaseException", "RuntimeError", "OutOfMemoryError", "ValueError"))
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "datetime.datetime.now", "time.process_time")
#: Functions of other modules, whose results are unknown here.
_EXTERNAL_FUNCTIONS = re.compile(r"eval|valid|test|train|run|fit|step|check|should|stop|update", re.IGNORECASE)
_HOLDERS = ("self", "args", "cfg", "config", "opt", "torch", "math", "np", "time")
_MAX_NAMES = 60


def claims(module: Module) -> Iterator[Claim]:
    """All claims about loops that ranks leave at different times."""
    leaving: list[ast.stmt] = [*module.nodes(ast.Break), *module.nodes(ast.Continue), *module.nodes(ast.Return)]
    handlers = module.nodes(ast.ExceptHandler)
    if not (leaving or handlers or module.nodes(ast.While)) or _DISTRIBUTED.search(module.file.text) is None:
        return
    steps = _Steps(module)
    for handler in handlers:
        yield from _swallowed_failures(module, handler, steps)
    yield from _loop_conditions(module, steps)
    for node in leaving:
        place = _left_loop(module, node)
        if place is None:
            continue
        loop, test = place
        step = steps.later_step(loop, node)
        if step is not None and _is_rank_local(module, test, loop, steps):
            because = module.claim("guarded_collective", "step", step, condition="")
            kind = type(node).__name__.lower()
            yield module.claim("rank_local_exit", kind, node, spelling=f"if {module.text(test)}", because=(because,))


def _loop_conditions(module: Module, steps: _Steps) -> Iterator[Claim]:
    """`while loss > target:` around a step."""
    for loop in module.nodes(ast.While):
        step = steps.later_step(loop, loop)
        assigned = module.outline.assignments(module.outline.function_of(loop))
        names = [dotted(node) for node in ast.walk(loop.test) if isinstance(node, (ast.Name, ast.Attribute))]
        expressions = [loop.test, *(value for name in names for value in assigned.get(name, ()))]
        named = any(_RANK_LOCAL_NAMES.search(end_of(node)) for each in expressions for node in ast.walk(each))
        if step is not None and named and _is_rank_local(module, loop.test, loop, steps):
            because = module.claim("guarded_collective", "step", step, condition="")
            written = f"while {module.text(loop.test)}"
            yield module.claim("rank_local_exit", "while", loop.test, spelling=written, because=(because,))


def _swallowed_failures(module: Module, handler: ast.ExceptHandler, steps: _Steps) -> Iterator[Claim]:
    """Handlers that continue the loop after a step has failed on this rank."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {end_of(each) if each is not None else "Exception" for each in caught}
    guarded = module.outline.parent(handler)
    if not names & _FAILURES or not isinstance(guarded, ast.Try) or _ends_or_agrees(module, handler):
        return
    step = steps.within(guarded)
    if step is None or not any(isinstance(outer, _LOOPS) for outer in _in_function(module, guarded)):
        return
    because = module.claim("guarded_collective", "step", step, condition="")
    written = f"except {module.text(handler.type)}" if handler.type is not None else "except"
    yield module.claim("step_failure_swallowed", written, handler, condition="", spelling=written, because=(because,))


def _in_function(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    for outer in module.outline.above(node):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        yield outer


def _ends_or_agrees(module: Module, handler: ast.ExceptHandler) -> bool:
    """Whether a handler ends the process, re-raises the failure, or lets the ranks agree on it."""
    for node in (each for statement in handler.body for each in ast.walk(statement)):
        if isinstance(node, (ast.Raise, ast.Return, ast.Break)):
            return True
        if isinstance(node, ast.Call):
            name = module.called(node)
            if last(name) in ("exit", "_exit", "abort", "kill", "quit") or is_collective(module, node):
                return True
            if _AGREEING_CALLS.search(last(name)) and last(name) != "synchronize":
                return True
    return False


def _left_loop(module: Module, node: ast.AST) -> tuple[_Loop, ast.expr] | None:
    """The loop that a statement leaves, and the innermost condition around it."""
    test: ast.expr | None = None
    child = node
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If) and test is None and not module.outline.is_else(child):
            test = outer.test
        elif isinstance(outer, (ast.ExceptHandler, ast.Try)) and test is None:
            return None
        if isinstance(outer, _LOOPS):
            return (outer, test) if test is not None and not _in_else(outer, child) else None
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        child = outer
    return None


def _in_else(loop: _Loop, child: ast.AST) -> bool:
    return any(child is each for each in loop.orelse)


class _Steps:
    """The calls in which ranks wait for each other, by their loops."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._by_loop: dict[int, list[ast.Call]] = {}
        self._by_try: dict[int, ast.Call] = {}
        self._agreeing: dict[str, bool] = {}
        self._agreed: dict[int, frozenset[str]] = {}
        functions: set[str] = set()
        for call in module.named("backward", *COLLECTIVES):
            if last(module.called(call)) == "backward" or is_collective(module, call):
                self._note(call)
                function = module.outline.function_of(call)
                if function is not None and last(module.called(call)) == "backward":
                    functions.add(function.name)
        for name in functions:
            for call in module.outline.calls_named(name):
                if isinstance(call.func, ast.Name):
                    self._note(call)

    def _note(self, call: ast.Call) -> None:
        child: ast.AST = call
        for outer in self._module.outline.above(call):
            if isinstance(outer, ast.Try) and self._module.outline.is_guarded(child):
                self._by_try.setdefault(id(outer), call)
            child = outer
            if isinstance(outer, _LOOPS):
                self._by_loop.setdefault(id(outer), []).append(call)
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return

    def agrees(self, name: str) -> bool:
        """Whether the result of a call may be the same on every rank, by its name or by its effect."""
        if name not in self._agreeing:
            self._agreeing[name] = self._agrees(name)
        return self._agreeing[name]

    def _agrees(self, name: str) -> bool:
        short = last(name)
        own = self._module.outline.functions(short)
        if own:
            return any(_AGREEING_CALLS.search(self._module.source(each)) for each in own)
        # A class only counts, and does not decide: `EarlyStopping(patience=3)`.
        known = name.startswith(("torch.", "math.")) or short[:1].isupper()
        return _AGREEING_CALLS.search(short) is not None or (
            not known and _EXTERNAL_FUNCTIONS.search(short) is not None
        )

    def agreed_in(self, function: Function | None) -> frozenset[str]:
        """The names that a function passes to calls which make all ranks agree."""
        if id(function) not in self._agreed:
            calls = self._module.outline.calls_in(function)
            agreeing = [call for call in calls if _AGREEING_CALLS.search(last(self._module.called(call)))]
            nodes = (node for call in agreeing for node in ast.walk(call))
            names = {dotted(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}
            self._agreed[id(function)] = frozenset(names)
        return self._agreed[id(function)]

    def within(self, block: ast.Try) -> ast.Call | None:
        """A call in the guarded part of a `try` that the other ranks make as well."""
        return self._by_try.get(id(block))

    def later_step(self, loop: _Loop, node: ast.stmt) -> ast.Call | None:
        """A call that the other ranks still make when this one leaves: any call in a loop; for `continue`, only a later
        one.
        """
        found = self._by_loop.get(id(loop), [])
        if isinstance(node, ast.Continue):
            branch = next((outer for outer in self._module.outline.above(node) if isinstance(outer, ast.If)), None)
            first = branch.lineno if branch is not None else node.lineno
            here = [call for call in found if first <= call.lineno <= node.lineno]
            found = [call for call in found if call.lineno > node.lineno]
            if here and len(here) >= len(found):
                # `if rank == 0: barrier(); continue` and `barrier()` below: this rank has already joined the others.
                return None
        return found[0] if found else None


def _tests_around(module: Module, value: ast.expr) -> Iterator[ast.expr]:
    """The conditions under which a constant is assigned, in its function."""
    if isinstance(value, ast.Constant):
        for outer in _in_function(module, value):
            if isinstance(outer, ast.If):
                yield outer.test


def _is_rank_local(module: Module, test: ast.expr, loop: _Loop, steps: _Steps) -> bool:
    """Whether a condition depends on values that only this rank has; False if unknown."""
    if ranks_where_true(module, test) in (RankSet.FIRST, RankSet.LOCAL_FIRST, RankSet.OTHERS, RankSet.LOCAL_OTHERS):
        # `if is_main and stop: break`: the others certainly stay.
        return True
    pending: list[ast.AST] = [test]
    names: set[str] = set()
    # `meters["a"].avg` has no name; without its number, two variables that depend on each other would be followed
    # forever.
    seen: set[int] = set()
    own = False
    function = module.outline.function_of(loop)
    assigned, arguments_by_variable = (
        module.outline.assignments(function),
        module.outline.arguments_by_variable(function),
    )
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        spend()
        if isinstance(node, (ast.Name, ast.Attribute)):
            written = dotted(node)
            if written in names:
                continue
            names.add(written or end_of(node))
            if len(names) > _MAX_NAMES or _AGREEING_CALLS.search(written or end_of(node)):
                return False
            own = own or bool(_RANK_LOCAL_NAMES.search(end_of(node)))
            # `validate.best` is an attribute of a function, which may have agreed with the other ranks.
            if module.outline.functions(end_of(node)) and steps.agrees(end_of(node)):
                return False
            if written:
                values = assigned.get(written, ())
                pending.extend(values)
                # `stop = True` under a condition depends on that condition.
                pending.extend(test for value in values for test in _tests_around(module, value))
                pending.extend(arguments_by_variable.get(written, ()))
            # `flag.item()` depends on `flag`; `self.best` only on itself.
            if isinstance(node, ast.Attribute) and end_of(node.value) not in _HOLDERS:
                pending.append(node.value)
            continue
        if isinstance(node, ast.Call):
            name = module.called(node)
            if name in _CLOCKS or last(name) == "item":
                own = True
            elif steps.agrees(name):
                return False
            # The arguments of `model` say nothing about the result of `model(batch)`.
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            pending.extend(given)
            if isinstance(node.func, ast.Attribute):
                pending.append(node.func.value)
            continue
        pending.extend(ast.iter_child_nodes(node))
    return own and not names & steps.agreed_in(function)
