"""Claims about what a training loop does beside its steps, and about long work of one rank for which all others wait.

The others wait inside a collective, whose timeout must be longer than that work: an hour of downloading or
preprocessing under a timeout of ten minutes kills the job.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from preflight.model.job import Claim
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.module import Module, argument, last
from preflight.sources.python.outline import dotted, end_of

_SAVING = re.compile(
    r"save\w*|\w*_save|\w*checkpoint\w*|dump|\w*ckpt\w*|export\w*|upload\w*|commit|write_model", re.IGNORECASE
)
#: Words of libraries and callbacks that save by themselves.
_SAVES_ITSELF = re.compile(
    r"Trainer\b|callbacks?|[cC]heckpoint(?:er|Manager|Callback)|[lL]ightning|Snapshot|elastic|orbax"
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: What changes the parameters, or runs a program that does.
_TRAINS = re.compile(
    r"(?:^|\.)(?:run|minimize|train_batch|zero_grad|clear_grad|clear_gradients|training_step)$|opt\w*\.step$"
)
_PROFILERS = ("profile", "Profiler", "start_profiler")
#: What bounds a profile to some steps.
_SCHEDULES = ("schedule", "scheduler")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about saving, profiling and shared models."""
    steps = [call for call in module.named("backward") if not call.args]
    if steps:
        yield from _savings(module, steps[0])
    yield from _profilers(module)
    if "no_sync" in module.file.text or _SYNC_FLAG in module.file.text:
        yield from _late_exchanges(module)
        yield from _unsynced_backwards(module)
    if "gather_for_metrics" not in module.file.text and "Accelerator" in module.file.text:
        yield from _gathered_duplicates(module)
    if "Process" in module.file.text and "torch" in module.file.text:
        yield from _unshared_models(module)


#: What leaves out the samples that were added to the last batch.
_TRUNCATES = re.compile(r"samples_seen|\[:\s*len\(|even_batches|\.dataset\)|total_dataset_length|remainder")


def _gathered_duplicates(module: Module) -> Iterator[Claim]:
    """Yield a `gather` of predictions and references, which counts samples that fill up the last batch twice.

    Source: accelerate/accelerator.py of 1.12 (gather_for_metrics drops them).
    """
    for call in module.named("gather"):
        owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        is_in_loop = any(isinstance(outer, _LOOPS) for outer in module.outline.above(call))
        text = ast.unparse(call)
        if (
            "add_batch(" not in module.file.text
            or not re.search(r"acc", owner, re.IGNORECASE)
            or not is_in_loop
            or not re.search(r"label|ref|target", text)
        ):
            continue
        if _TRUNCATES.search(module.file.text) is None:
            yield module.feature("gathered_with_duplicates", call)
            return


def _unsynced_backwards(module: Module) -> Iterator[Claim]:
    """Yield blocks under `no_sync` with a backward pass whose forward pass comes before the block, in the same loop.

    Sources: torch/nn/parallel/distributed.py of 2.13 and paddle/distributed/parallel.py of 3.3: the forward pass
    decides whether gradients are exchanged.
    """
    for block in module.nodes(ast.With):
        opened = [node for item in block.items for node in ast.walk(item.context_expr)]
        models = {dotted(node.value) for node in opened if isinstance(node, ast.Attribute) and node.attr == "no_sync"}
        called = {dotted(node.func) for each in block.body for node in ast.walk(each) if isinstance(node, ast.Call)}
        loop = next((outer for outer in module.outline.above(block) if isinstance(outer, _LOOPS)), None)
        if len(models) != 1 or loop is None or called & models or not any(last(name) == "backward" for name in called):
            continue
        before = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and node.lineno < block.lineno]
        forward = next((call for call in before if dotted(call.func) in models), None)
        if forward is not None:
            yield module.feature("no_sync_after_forward", block.items[0].context_expr, forward, condition="")


def _late_exchanges(module: Module) -> Iterator[Claim]:
    """Yield optimizer steps whose last backward pass exchanged nothing: each rank applies only its own gradients.

    `no_sync` of DistributedDataParallel covers another round of the accumulation than the step does, or the flag that
    it sets is set after the forward pass, which reads it.
    """
    for loop in module.nodes(ast.For):
        rounds = [node for node in ast.walk(loop) if isinstance(node, ast.Attribute) and node.attr == "no_sync"]
        steps = [
            call for call in module.named("step") if call in ast.walk(loop) and _OPTIMIZER.search(dotted(call.func))
        ]
        for unsynced, step in itertools.product(rounds[:1], steps[:1]):
            tests = [_test_in(module, node, loop) for node in (unsynced, step)]
            if None not in tests and _is_apart(loop, tests[0], tests[1]):
                yield module.feature("step_without_exchange", step, unsynced, condition="")
    for flag in module.nodes(ast.Assign):
        target = flag.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != _SYNC_FLAG:
            continue
        if _is_never_true(module, flag.value):
            yield module.feature("exchange_never_made", flag, condition="")
        child: ast.AST = flag
        block = module.outline.parent(flag)
        while isinstance(block, ast.If) and child in block.body:
            child, block = block, module.outline.parent(block)
        if not isinstance(block, _LOOPS):
            continue
        before = block.body[: block.body.index(child)] if child in block.body else []
        calls = [node for each in before for node in ast.walk(each) if isinstance(node, ast.Call)]
        forward = next((call for call in calls if dotted(call.func) == dotted(target.value)), None)
        if forward is not None and not any(end_of(call.func) == "backward" for call in calls):
            yield module.feature("exchange_decided_after_forward", flag, forward)


def _is_never_true(module: Module, test: ast.expr) -> bool:
    """Return whether a condition is `i == n` in the rounds of `for i in range(n)`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Eq, ast.GtE)):
        return False
    loops = (each for each in module.outline.above(test) if isinstance(each, ast.For))
    loop = next((each for each in loops if ast.unparse(each.target) == ast.unparse(test.left)), None)
    bounds = ("range({})", "range(0, {})")
    return loop is not None and ast.unparse(loop.iter) in (b.format(ast.unparse(test.comparators[0])) for b in bounds)


_SYNC_FLAG = "require_backward_grad_sync"
_OPTIMIZER = re.compile(r"opt|scaler", re.IGNORECASE)


def _test_in(module: Module, node: ast.AST, loop: ast.For) -> tuple[ast.expr, bool] | None:
    """Return the condition in a loop under which a node is reached, and its outcome; None if there is not just one."""
    found: list[tuple[ast.expr, bool]] = []
    child = node
    for outer in module.outline.above(node):
        if outer is loop:
            break
        if isinstance(outer, ast.If):
            found.append((outer.test, not module.outline.is_else(child)))
        elif isinstance(outer, ast.IfExp) and child is not outer.test:
            found.append((outer.test, child is outer.body))
        child = outer
    return found[0] if len(found) == 1 else None


def _is_apart(loop: ast.For, unsynced: tuple[ast.expr, bool] | None, step: tuple[ast.expr, bool] | None) -> bool:
    """Return whether each step comes in a round without an exchange, whatever the number of rounds between steps."""
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for count in (2, 3, 4):
        outcomes = []
        for number in range(2 * count):
            values = [_number(test, counters, number, count) for test, _ in filter(None, (unsynced, step))]
            if len(values) != 2 or None in values or unsynced is None or step is None:
                return False
            outcomes.append((bool(values[0]) is unsynced[1], bool(values[1]) is step[1]))
        if not any(steps for _, steps in outcomes) or not all(alone for alone, steps in outcomes if steps):
            return False
    return True


def _number(expression: ast.expr, counters: set[str], number: int, count: int) -> int | None:
    """Return the round for which a condition holds, if all other names are the rounds of a step."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, int):
        return int(expression.value)
    if isinstance(expression, (ast.Name, ast.Attribute)):
        return number if dotted(expression) in counters else count
    parts = [_number(each, counters, number, count) for each in _PARTS.get(type(expression), list)(expression)]
    if not parts or None in parts or len(parts) > 2:
        return None
    kind = expression.ops[0] if isinstance(expression, ast.Compare) else getattr(expression, "op", None)
    compute = _OPERATORS.get(type(kind))
    return int(compute(*parts)) if compute is not None and not (isinstance(kind, ast.Mod) and not parts[1]) else None


_PARTS: dict[type[ast.expr], Callable[[Any], list[ast.expr]]] = {
    ast.BinOp: lambda node: [node.left, node.right],
    ast.Compare: lambda node: [node.left, *node.comparators],
    ast.UnaryOp: lambda node: [node.operand],
}
_OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Not: operator.not_,
}


def _savings(module: Module, step: ast.Call) -> Iterator[Claim]:
    """Yield whether a script that trains saves anything inside a loop, or through a library."""
    saving = [call for call in module.calls if _SAVING.fullmatch(last(module.called(call)))]
    inside = any(_is_in_loop(module, call) for call in saving) or _SAVES_ITSELF.search(module.file.text) is not None
    yield module.claim("saves_while_training", inside, step, condition="")


def _is_in_loop(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a call is inside a loop, or in a function that may be called in one."""
    for outer in module.outline.above(node):
        if isinstance(outer, _LOOPS):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [call for call in module.outline.calls_named(outer.name) if call is not node]
            # The callers of a method, or of a function that is passed on, are not known.
            return not calls or depth > 3 or any(_is_in_loop(module, call, depth + 1) for call in calls)
    return False


def _profilers(module: Module) -> Iterator[Claim]:
    """Yield a profiler that records all steps of a loop: without a schedule, and without an end inside the loop."""
    for call in module.named(*_PROFILERS):
        name = module.called(call)
        if (
            "profiler" not in name
            or not is_foreign(name)
            or any(argument(call, each) is not None for each in _SCHEDULES)
        ):
            continue
        loop = _profiled_loop(module, call)
        if loop is None or any(isinstance(node, ast.Break) for node in ast.walk(loop)):
            continue
        ends = {"stop", "stop_profiler", "export_chrome_trace"}
        if any(isinstance(node, ast.Call) and end_of(node.func) in ends for node in ast.walk(loop)):
            continue
        yield module.claim("profiles_every_step", name, call)


def _profiled_loop(module: Module, call: ast.Call) -> ast.AST | None:
    """Return the training loop that runs while a profiler is on."""
    within = next((outer for outer in module.outline.above(call) if isinstance(outer, ast.With)), None)
    name = module.bound_to(call)
    if within is not None and any(item.context_expr is call for item in within.items):
        return next((node for node in ast.walk(within) if _trains(node)), None)
    started = last(module.called(call)) == "start_profiler" or any(
        dotted(start.func) == f"{name}.start" for start in module.named("start")
    )
    if not started:
        return None
    function = module.outline.function_of(call)
    loops = [loop for loop in module.nodes(ast.For) if module.outline.function_of(loop) is function and _trains(loop)]
    return next((loop for loop in loops if loop.lineno > call.lineno), None)


def _trains(node: ast.AST) -> bool:
    if not isinstance(node, _LOOPS):
        return False
    called = [ast.unparse(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return any(_TRAINS.search(name) for name in called)


def _unshared_models(module: Module) -> Iterator[Claim]:
    """Yield a model that several forked processes train, and that is not in shared memory."""
    if "share_memory" in module.file.text or "spawn" in module.file.text or "forkserver" in module.file.text:
        return
    for call in module.named("Process"):
        target, given = argument(call, "target", 1), argument(call, "args", 2)
        functions = module.outline.functions(end_of(getattr(target, "value", target))) if target is not None else ()
        passed = getattr(given, "value", given)
        if len(functions) != 1 or not isinstance(passed, (ast.Tuple, ast.List)) or not _is_repeated(module, call):
            continue
        trained = _trained_parameters(functions[0])
        for parameter, item in zip(functions[0].args.args, passed.elts, strict=False):
            if parameter.arg in trained and isinstance(item, ast.Name):
                yield module.claim("model_not_shared", item.id, call)
                return


def _is_repeated(module: Module, call: ast.Call) -> bool:
    return any(isinstance(outer, (*_LOOPS, ast.ListComp)) for outer in module.outline.above(call))


def _trained_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the arguments whose parameters the function gives to an optimizer that it steps."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if not {"backward", "step"} <= {end_of(call.func) for call in calls}:
        return set()
    owners = [
        call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters"
    ]
    return {dotted(owner) for owner in owners}


_RANK = re.compile(r"(?:^|_)rank(?:$|_)|^(?:rank|RANK)$|rank$", re.IGNORECASE)
_FIRST = re.compile(r"is_(?:main|master|rank_?0|rank_?zero|local_main|world_process_zero|first)\w*", re.IGNORECASE)
#: Statements that are examined between the two barriers of one rank's work.
_MAX_STATEMENTS = 200
_CONTEXTS = {
    "main_process_first",
    "local_main_process_first",
    "rank_zero_first",
    "torch_distributed_zero_first",
}
_BARRIERS = {"barrier", "wait_for_everyone", "broadcast", "broadcast_object_list", "monitored_barrier"}
#: Calls that take minutes to hours: downloads, unpacking, tokenizing, building indices.
_LONG = re.compile(
    r"(?:snapshot_|hf_hub_|url|_)?download\w*|urlretrieve|load_dataset|map|extractall|pre_?process(?:_data\w*|ing\w*)?"
    r"|tokeni[sz]e(?:_\w+)?|prepare_data\w*|process_data\w*|build_(?:index|vocab|dataset)\w*|convert_(?!tokens_to|ids_to)\w+",
)
#: Names that are quick functions when they are not methods.
_QUICK = {"map"}


def serial_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about serial work."""
    blocks_with: list[ast.With | ast.AsyncWith] = [*module.nodes(ast.With), *module.nodes(ast.AsyncWith)]
    for block in blocks_with:
        contexts = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if any(last(module.called(context)) in _CONTEXTS for context in contexts):
            yield from _long_calls(module, block.body)
    barriers = module.named(*sorted(_BARRIERS))
    if not barriers:
        return
    blocks = _Blocks(module, barriers)
    for node in module.nodes(ast.If):
        if _is_first_rank(module, node.test) and blocks.wait_later(node):
            yield from _long_calls(module, node.body)
        elif _is_other_ranks(module, node.test) and blocks.contain_barrier(node.body):
            yield from _long_calls(module, blocks.work_before_release(node))


def _long_calls(module: Module, statements: list[ast.stmt]) -> Iterator[Claim]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                name = module.called(node)
                if name not in _QUICK and _LONG.fullmatch(last(name)):
                    yield module.claim("serial_work", module.text(node.func), node)


def _is_first_rank(module: Module, test: ast.expr) -> bool:
    """Return `rank == 0`, `not rank`, `args.local_rank in (-1, 0)`, `is_main_process()`."""
    if isinstance(test, ast.BoolOp):
        return any(_is_first_rank(module, value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if not _is_rank(test.left):
            return False
        right = module.fold(test.comparators[0])
        values = getattr(right, "value", None)
        if isinstance(test.ops[0], ast.Eq):
            return values == 0
        return isinstance(test.ops[0], ast.In) and isinstance(values, tuple) and set(values) == {-1, 0}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(test.operand)
    called = test.func if isinstance(test, ast.Call) else test
    return bool(_FIRST.fullmatch(_end(called)))


def _is_other_ranks(module: Module, test: ast.expr) -> bool:
    """Return `rank != 0`, `rank > 0`, `local_rank not in (-1, 0)`, `not is_main_process()`."""
    if isinstance(test, ast.BoolOp):
        return any(_is_other_ranks(module, value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _is_rank(test.left) and isinstance(test.ops[0], (ast.NotEq, ast.Gt, ast.NotIn))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        called = test.operand.func if isinstance(test.operand, ast.Call) else test.operand
        return bool(_FIRST.fullmatch(_end(called)))
    return False


def _is_rank(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call):
        expression = expression.func
    return bool(_RANK.search(_end(expression)))


def _end(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


class _Blocks:
    """The statements that contain a barrier, and the order of statements; computed once, so that the analysis stays
    linear.
    """

    def __init__(self, module: Module, barriers: list[ast.Call]) -> None:
        self._module = module
        self._holding: set[int] = set()
        self._places: dict[int, tuple[list[ast.stmt], int]] = {}
        self._last_barrier: dict[int, int] = {}
        for call in barriers:
            self._mark_ancestors(call)
        for branch in module.nodes(ast.If):
            # Only blocks with an `if` are needed.
            parent = module.parent(branch)
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(parent, block, None)
                if isinstance(statements, list) and statements and id(statements[0]) not in self._places:
                    self._place(statements)

    def _mark_ancestors(self, node: ast.AST) -> None:
        at: ast.AST | None = node
        while at is not None and id(at) not in self._holding:
            self._holding.add(id(at))
            at = self._module.parent(at)

    def _place(self, statements: list[ast.stmt]) -> None:
        for index, statement in enumerate(statements):
            self._places[id(statement)] = (statements, index)
            if id(statement) in self._holding:
                self._last_barrier[id(statements)] = index

    def contain_barrier(self, statements: list[ast.stmt]) -> bool:
        """Return whether one of these contains a barrier."""
        return any(id(statement) in self._holding for statement in statements)

    def wait_later(self, node: ast.If) -> bool:
        """Return whether the other ranks reach a barrier: in the other branch, later, or at the end of this one."""
        statements, index = self._places.get(id(node), ([], 0))
        is_after = self._last_barrier.get(id(statements), -1) > index
        return is_after or self.contain_barrier(node.orelse) or self.contain_barrier(node.body[-1:])

    def work_before_release(self, node: ast.If) -> list[ast.stmt]:
        """Return the work of the first rank between `if rank != 0: barrier()` and the `if rank == 0: barrier()` after
        it.
        """
        statements, index = self._places.get(id(node), ([], 0))
        for end in range(index + 1, min(len(statements), index + 1 + _MAX_STATEMENTS)):
            statement = statements[end]
            if isinstance(statement, ast.If) and self.contain_barrier(statement.body):
                if _is_first_rank(self._module, statement.test):
                    return statements[index + 1 : end]
                return []
        return []
