"""Schedules of the learning rate that count the steps of all ranks as those of one.

`len(dataset) // batch_size` is the number of batches of one process. Where a sampler gives each rank its part of the
data, a rank takes that many steps divided by the number of ranks, so a schedule of that length is never completed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

_SAMPLERS = ("DistributedSampler", "DistributedBatchSampler")
#: Calls that make a schedule which is stepped after each batch, or after each epoch.
_SCHEDULES = re.compile(
    r"get_\w*(?:schedule|scheduler)\w*|\w*DecayWithWarmup|\w*Warmup\w*(?:LR|Scheduler|Schedule|Decay)?|OneCycleLR"
    r"|CosineAnnealingLR|CosineAnnealingDecay|PolynomialLR|PolynomialDecay|LinearLR|LinearWarmup|\w*LRScheduler"
)
#: Words of what knows the number of ranks, or counts the steps of all.
_OF_RANKS = re.compile(r"world|nranks|replica|gpus?\b|_gpu|device|num_proc|n_proc|ranks|trainers|\bsize\b|worker", re.I)
#: Libraries that step a schedule once for each rank, or make it themselves.
_STEPS_ITSELF = re.compile(r"\baccelerat|lightning|Trainer\(|split_batches")


def claims(module: Module) -> Iterator[Claim]:
    """Yield `schedule_of_all_data` where the length of a schedule certainly is that of all data, not of a rank.

    The schedule is stepped in the loop over a loader that gets a sampler of its ranks, which is made of the same data
    and of the same batch size as the length.
    """
    text = module.file.text
    if not any(name in text for name in _SAMPLERS) or _STEPS_ITSELF.search(text) is not None:
        return
    for sampler in module.named(*_SAMPLERS):
        data, function = argument(sampler, "dataset", 0), module.outline.function_of(sampler)
        name = dotted(value_of(data)) if data is not None else ""
        if not name.isidentifier() or argument(sampler, "num_replicas") is not None or module.condition(sampler):
            continue
        loader = _loader_of(module, sampler)
        size = _batch_size(sampler, loader) if loader is not None else ""
        if loader is None or not size or _is_changed(module, size):
            continue
        for count in (node for node in module.nodes(ast.BinOp) if module.outline.function_of(node) is function):
            if not _is_number_of_batches(module, count, name, size) or _is_made_between(module, name, sampler, count):
                continue
            schedule = _schedule_of(module, count)
            if schedule is not None and _is_stepped_by_batch(module, schedule, module.bound_to(loader)):
                yield module.feature("schedule_of_all_data", count, sampler, schedule, condition="")


#: Words of a number of steps, and of the loops over epochs and batches.
_BATCHES = re.compile(r"len\(\w*(?:loader|dl|dataloader|batches)\w*\)|steps_per_epoch|estimated_stepping_batches")
_LOOP_OF_EPOCHS = re.compile(r"epoch", re.IGNORECASE)


def unit_claims(module: Module) -> Iterator[Claim]:
    """Yield `schedule_of_steps_by_epoch` where a schedule as long as all steps is stepped once in each epoch.

    Source: lightning/pytorch/core/optimizer.py of 2.5 (`interval` is "epoch" by default).
    """
    for schedule in module.calls:
        if not _SCHEDULES.fullmatch(last(module.called(schedule))) or _BATCHES.search(module.file.text) is None:
            continue
        given = [*schedule.args, *(keyword.value for keyword in schedule.keywords)]
        lengths = [ast.unparse(_definition_inside(module, each)) for each in given]
        if not any(_BATCHES.search(each) for each in lengths):
            continue
        function = module.outline.function_of(schedule)
        if function is not None and function.name == "configure_optimizers":
            text = module.source(function)
            if "interval" not in text and "lr_scheduler" in text and "lr_scheduler_step" not in module.file.text:
                yield module.feature("schedule_of_steps_by_epoch", schedule, condition="")
            continue
        name = module.bound_to(schedule)
        steps = [step for step in module.named("step") if name and dotted(step.func) == f"{name}.step"]
        loops = [
            [ast.unparse(outer.iter) for outer in module.outline.above(step) if isinstance(outer, ast.For)]
            for step in steps
        ]
        if (
            len(loops) == 1
            and len(loops[0]) == 1
            and _LOOP_OF_EPOCHS.search(loops[0][0])
            and "epoch" in "".join(lengths)
        ):
            yield module.feature("schedule_of_steps_by_epoch", steps[0], schedule, condition="")


def _definition_inside(module: Module, expression: ast.expr) -> ast.expr:
    """Return an expression, or what a name in it, or in `int(...)`, is assigned."""
    names = [node for node in ast.walk(expression) if isinstance(node, ast.Name)]
    found = [module.definition(name) for name in names]
    longer = [each for each in found if not isinstance(each, (ast.Name, ast.Constant))]
    return ast.Tuple([expression, *longer]) if longer else expression


def accelerate_claims(module: Module) -> Iterator[Claim]:
    """Yield `schedule_stepped_by_all` where the length of a prepared schedule is the number of batches of one rank.

    Source: accelerate/scheduler.py of 1.12 (AcceleratedScheduler.step): it steps once for each rank.
    """
    text = module.file.text
    if "Accelerator" not in text or "split_batches" in text or "step_scheduler_with_optimizer" in text:
        return
    prepared = [call for call in module.named("prepare") if isinstance(call.func, ast.Attribute)]
    for length in module.named("len"):
        loader = dotted(length.args[0]) if len(length.args) == 1 else ""
        before = [
            call
            for call in prepared
            if call.lineno < length.lineno and loader and loader in map(dotted, call.args)
            if module.outline.function_of(call) is module.outline.function_of(length)
        ]
        if not before or _OF_RANKS.search(_whole_statement(module, length)) is not None:
            continue
        schedule = _schedule_of_expression(module, length)
        names = {module.bound_to(schedule)} if schedule is not None else set()
        if schedule is not None and any(
            names & set(map(dotted, call.args)) or any(value_of(each) is schedule for each in call.args)
            for call in prepared
        ):
            yield module.feature("schedule_stepped_by_all", schedule, before[0], condition="")
            return


def rates_of_one_node(module: Module) -> Iterator[Claim]:
    """Yield `rate_scaled_by_node_gpus` where a learning rate is multiplied by the number of GPUs of one node."""
    counts = [call for call in module.named("device_count") if module.called(call).startswith(("torch.", "paddle."))]
    for call in counts:
        names = {"", module.bound_to(call)} - {""}
        for product in module.nodes(ast.BinOp):
            sides = (product.left, product.right) if isinstance(product.op, ast.Mult) else ()
            if not any(side is call or dotted(side) in names for side in sides):
                continue
            if _is_rate(module, product) and not _NODES.search(_whole_statement(module, product)):
                yield module.feature("rate_scaled_by_node_gpus", product, condition="")
                return


#: Words of the number of nodes, or of all ranks.
_NODES = re.compile(r"node|world|machine|host|\bsize\b", re.IGNORECASE)
_RATE = re.compile(r"(?:.*_)?(?:lr|learning_rate)(?:_.*)?", re.IGNORECASE)


def _is_rate(module: Module, product: ast.expr) -> bool:
    """Return whether an expression is a learning rate: what an argument or a variable of such a name gets."""
    outer = module.parent(product)
    while isinstance(outer, ast.BinOp):
        outer = module.parent(outer)
    if isinstance(outer, ast.keyword):
        return _RATE.fullmatch(outer.arg or "") is not None
    if isinstance(outer, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
        return any(_RATE.fullmatch(last(dotted(target))) for target in targets)
    return False


def _loader_of(module: Module, sampler: ast.Call) -> ast.Call | None:
    """Return the only loader that gets a sampler."""
    name = module.bound_to(sampler)
    found = []
    for call in module.named("DataLoader"):
        given = argument(call, "batch_sampler") or argument(call, "sampler")
        if given is not None and (value_of(given) is sampler or (name and dotted(value_of(given)) == name)):
            found.append(call)
    return found[0] if len(found) == 1 else None


def _batch_size(sampler: ast.Call, loader: ast.Call) -> str:
    """Return the batch size of a rank as it is written; empty if there is none."""
    batched = last(dotted(sampler.func)) == "DistributedBatchSampler"
    given = argument(sampler if batched else loader, "batch_size", 1)
    expression = value_of(given) if given is not None else None
    is_plain = isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant))
    return ast.unparse(expression) if expression is not None and is_plain else ""


def _is_changed(module: Module, size: str) -> bool:
    """Return whether a script computes the batch size, which may then be a part of that of all ranks, or their sum."""
    statements: list[ast.Assign | ast.AugAssign] = [*module.nodes(ast.Assign), *module.nodes(ast.AugAssign)]
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        computed = isinstance(node, ast.AugAssign) or any(isinstance(each, ast.BinOp) for each in ast.walk(node.value))
        if computed and any(ast.unparse(target).rpartition(".")[2] == size.rpartition(".")[2] for target in targets):
            return True
    return _OF_RANKS.search(size.replace("batch_size", "")) is not None


def _is_number_of_batches(module: Module, count: ast.BinOp, name: str, size: str) -> bool:
    """Return whether an expression is `len(dataset) // batch_size`, and nothing around it divides by the ranks.

    The length may be multiplied, as in `epochs * len(dataset) // batch_size`.
    """
    length = count.left
    while isinstance(length, ast.BinOp) and isinstance(length.op, ast.Mult):
        length = length.left if isinstance(length.left, (ast.Call, ast.BinOp)) else length.right
    if not isinstance(count.op, (ast.FloorDiv, ast.Div)) or not isinstance(length, ast.Call):
        return False
    if dotted(length.func) != "len" or len(length.args) != 1 or dotted(length.args[0]) != name:
        return False
    return ast.unparse(count.right) == size and _OF_RANKS.search(_whole_statement(module, count)) is None


def _whole_statement(module: Module, node: ast.AST) -> str:
    """Return the text of the statement around an expression, without names of batch sizes."""
    while not isinstance(node, ast.stmt):
        outer = module.parent(node)
        if outer is None:
            break
        node = outer
    return re.sub(r"\w*batch_size\w*", "", ast.unparse(node))


def _is_made_between(module: Module, name: str, *places: ast.expr) -> bool:
    """Return whether the data get another value between two places, where they would have two lengths."""
    first, second = sorted(place.lineno for place in places)
    return any(
        first < node.lineno < second and any(dotted(target) == name for target in node.targets)
        for node in module.nodes(ast.Assign)
    )


def _schedule_of(module: Module, count: ast.BinOp) -> ast.Call | None:
    """Return the schedule that gets a number of steps, itself or by one name that nothing else changes."""
    outer: ast.AST | None = count
    while outer is not None and not isinstance(outer, (ast.stmt, ast.Call)):
        outer = module.parent(outer)
    if isinstance(outer, ast.Call) and dotted(outer.func) in ("int", "math.ceil", "max", "round", "ceil"):
        return _schedule_of_expression(module, outer)
    return _schedule_of_expression(module, count)


def _schedule_of_expression(module: Module, expression: ast.expr) -> ast.Call | None:
    outer: ast.AST | None = module.parent(expression)
    while outer is not None and not isinstance(outer, (ast.stmt, ast.Call)):
        outer = module.parent(outer)
    if isinstance(outer, ast.Call):
        return outer if _SCHEDULES.fullmatch(last(module.called(outer))) else None
    name = dotted(outer.targets[0]) if isinstance(outer, ast.Assign) and len(outer.targets) == 1 else ""
    function = module.outline.function_of(expression)
    statements: list[ast.Assign | ast.AugAssign] = [*module.nodes(ast.Assign), *module.nodes(ast.AugAssign)]
    changed = [
        node
        for node in statements
        if module.outline.function_of(node) is function
        and name in map(dotted, node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    if not name or len(changed) != 1:
        return None
    for call in module.calls:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if (
            module.outline.function_of(call) is function
            and _SCHEDULES.fullmatch(last(module.called(call)))
            and any(dotted(each) == name for each in given)
        ):
            return call
    # `total = steps * epochs` is one name further on.
    for node in module.nodes(ast.Assign):
        within = any(dotted(each) == name for each in ast.walk(node.value) if isinstance(each, ast.expr))
        if within and node is not outer and _OF_RANKS.search(_whole_statement(module, node)) is None:
            inner = next(each for each in ast.walk(node.value) if isinstance(each, ast.expr) and dotted(each) == name)
            if module.outline.function_of(node) is function and len(node.targets) == 1:
                return _schedule_by_name(module, dotted(node.targets[0]), inner)
    return None


def _schedule_by_name(module: Module, name: str, place: ast.expr) -> ast.Call | None:
    """Return the schedule that gets a number by its name."""
    function = module.outline.function_of(place)
    for call in module.calls:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_schedule = module.outline.function_of(call) is function and _SCHEDULES.fullmatch(last(module.called(call)))
        if is_schedule and name and any(dotted(each) == name for each in given):
            return call
    return None


def _is_stepped_by_batch(module: Module, schedule: ast.Call, loader: str) -> bool:
    """Return whether a schedule is stepped once for each batch of a loader."""
    name = module.bound_to(schedule)
    for step in module.named("step") if name and loader else ():
        if dotted(step.func) != f"{name}.step":
            continue
        loop = next((outer for outer in module.outline.above(step) if isinstance(outer, (ast.For, ast.While))), None)
        over = loop.iter if isinstance(loop, ast.For) else None
        if over is not None and any(dotted(each) == loader for each in ast.walk(over) if isinstance(each, ast.expr)):
            return True
    return False
