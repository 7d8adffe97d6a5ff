"""Gradients that a framework scales or exchanges itself: losses that are divided a second time, and gradients that
reach an optimizer of Horovod without an exchange.

Sources: deepspeed/runtime/engine.py (`backward` divides by gradient_accumulation_steps) of 0.3 to 0.19;
accelerate/accelerator.py (`backward`) of 0.12 to 1.15; horovod/tensorflow/__init__.py (`compute_gradients` exchanges,
`apply_gradients` does not) of 0.9 to 0.28.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

#: Names of the number of backward passes before a step: `args.gradient_accumulation_steps`, `accum_iter`, `gas`.
_ACCUMULATION = re.compile(
    r"(?:gradient|grad|g)?_?acc(?:um(?:ulat(?:e|ion|ed))?)?(?:_?grads?|_?gradients?)?_?(?:steps?|iters?|num|n|batches|times)?"
    r"|gas|ga_steps|num_(?:accumulation|accum)_steps|accumulation",
    re.IGNORECASE,
)
#: Names of that kind that may hold something else: an accuracy.
_OTHER_MEANINGS = frozenset(("acc", "accs", "acc_n", "acc_num", "accn"))


def divided_losses(module: Module) -> Iterator[Claim]:
    """Yield a loss that is divided by the number of accumulated steps before a backward pass that divides it, too.

    Such passes are those of a DeepSpeed engine (`engine.backward(loss)`, `engine.step()`) and of an Accelerator.
    """
    for backward in module.named("backward"):
        if not isinstance(backward.func, ast.Attribute) or len(backward.args) != 1:
            continue
        scales = argument(backward, "scale_wrt_gas")
        owner = dotted(backward.func.value)
        name = "loss_divided_for_accelerator" if _is_accelerator(module, owner) else "loss_divided_for_engine"
        if scales is not None or not owner or (name.endswith("engine") and not _is_engine(module, backward, owner)):
            continue
        division = _division(module, backward)
        if division is not None:
            yield module.feature(name, division, backward, condition=module.condition(backward))
            return


#: The number of all ranks.
_ALL_RANKS = re.compile(r"(?:\w+\.)*(?:get_)?world_size(?:\(\))?")


def losses_divided_by_ranks(module: Module) -> Iterator[Claim]:
    """Yield a loss that is divided by the number of ranks before its backward pass.

    Source: torch/nn/parallel/distributed.py of 2.13 (the gradients of the ranks are averaged).
    """
    if "register_comm_hook" in module.file.text:
        return
    for backward in module.named("backward"):
        loss = backward.func.value if isinstance(backward.func, ast.Attribute) and not backward.args else None
        function = module.outline.function_of(backward)
        divided: ast.AST | None = loss if isinstance(loss, ast.BinOp) and _has_divisor(loss) else None
        assignments: list[ast.Assign | ast.AugAssign] = [*module.nodes(ast.Assign), *module.nodes(ast.AugAssign)]
        for node in assignments if isinstance(loss, ast.Name) else ():
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_before = node.lineno < backward.lineno and module.outline.function_of(node) is function
            if not is_before or dotted(target) != dotted(loss) or module.condition(node) != module.condition(backward):
                continue
            if isinstance(node, ast.AugAssign):
                is_divided = isinstance(node.op, ast.Div) and _ALL_RANKS.fullmatch(ast.unparse(node.value)) is not None
            else:
                is_divided = isinstance(node.value, ast.BinOp) and _has_divisor(node.value)
            divided = node if is_divided else divided
        if divided is not None:
            yield module.feature("loss_divided_by_ranks", divided, backward, condition=module.condition(backward))
            return


def _has_divisor(value: ast.BinOp) -> bool:
    """Return whether an expression is divided by the number of ranks, last or before it is divided again."""
    while isinstance(value.op, ast.Div):
        if _ALL_RANKS.fullmatch(ast.unparse(value.right)):
            return True
        if not isinstance(value.left, ast.BinOp):
            return False
        value = value.left
    return False


def _is_accelerator(module: Module, owner: str) -> bool:
    return "accelerator" in owner.lower() or any(module.bound_to(call) == owner for call in module.named("Accelerator"))


def _is_engine(module: Module, backward: ast.Call, owner: str) -> bool:
    """Return whether an object makes backward passes and steps like an engine of DeepSpeed, in one function."""
    if re.search(r"optim|scaler|fabric|booster|loss|criterion", owner, re.IGNORECASE):
        return False
    function = module.outline.function_of(backward)
    return any(
        isinstance(step.func, ast.Attribute)
        and dotted(step.func.value) == owner
        and not step.args
        and module.outline.function_of(step) is function
        for step in module.named("step")
    )


def _division(module: Module, backward: ast.Call) -> ast.AST | None:
    """Return the node that divides the loss by the accumulated steps on every path to the backward pass, or None."""
    loss = backward.args[0]
    if isinstance(loss, ast.BinOp):
        return loss if _divides(module, loss) else None
    name = dotted(loss)
    if not name:
        return None
    function = module.outline.function_of(backward)
    products = [each for each in module.nodes(ast.BinOp) if isinstance(each.op, ast.Mult)]
    if any(_is_accumulation(module, side) for each in products for side in (each.left, each.right)):
        # It may be multiplied by the steps before.
        return None
    above = [backward, *module.outline.above(backward)]
    assignments: list[ast.Assign | ast.AugAssign] = [*module.nodes(ast.Assign), *module.nodes(ast.AugAssign)]
    for node in sorted(assignments, key=lambda each: each.lineno, reverse=True):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.lineno >= backward.lineno or module.outline.function_of(node) is not function:
            continue
        if name not in [dotted(target) for target in targets]:
            continue
        if not _leads_to(module, node, above):
            return None
        if isinstance(node, ast.AugAssign):
            if isinstance(node.op, ast.Div) and _is_accumulation(module, node.value):
                return node
            if isinstance(node.op, (ast.Mult, ast.Div)):
                return None
            continue
        if isinstance(node.value, ast.BinOp) and _divides(module, node.value):
            return node
        if not _only_adds(node.value, name):
            return None
    return None


def _leads_to(module: Module, node: ast.stmt, above: list[ast.AST]) -> bool:
    """Return whether a statement stands before a pass on its way, or under a test of the number of steps alone."""
    parent = module.parent(node)
    while isinstance(parent, ast.If) and not any(parent is each for each in above):
        names = {each.id for each in ast.walk(parent.test) if isinstance(each, ast.Name)}
        tested = [each for each in ast.walk(parent.test) if isinstance(each, (ast.Name, ast.Attribute))]
        if parent.orelse or not any(_is_accumulation(module, each) for each in tested) or len(names) > 1:
            return False
        parent = module.parent(parent)
    return any(parent is each for each in above) and not _on_other_branch(node, above)


def _on_other_branch(node: ast.stmt, above: list[ast.AST]) -> bool:
    """Return whether a statement is in one branch of a condition and the pass in the other."""
    for each in above:
        if isinstance(each, ast.If):
            inside = any(child is node for part in each.body for child in ast.walk(part))
            passes = any(child is above[0] for part in each.body for child in ast.walk(part))
            outside = any(child is node for part in each.orelse for child in ast.walk(part))
            if (inside or outside) and inside != passes:
                return True
    return False


def _only_adds(value: ast.expr, name: str) -> bool:
    """Return whether a new value is the old one with something added: `loss + aux`, `loss.mean()`."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        return _only_adds(value.left, name) or _only_adds(value.right, name)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        return _only_adds(value.func.value, name)
    return dotted(value) == name


def _divides(module: Module, value: ast.BinOp) -> bool:
    return isinstance(value.op, ast.Div) and _is_accumulation(module, value.right)


def _is_accumulation(module: Module, value: ast.expr) -> bool:
    """Return whether an expression is the number of backward passes before a step, by its name."""
    if isinstance(value, ast.Constant):
        given = (argument(call, "gradient_accumulation_steps") for call in module.named("Accelerator"))
        return any(each is not None and ast.unparse(value_of(each)) == ast.unparse(value) for each in given)
    if isinstance(value, ast.Call):
        text = last(dotted(value.func)) if not value.args else last(dotted(value.args[0]))
        if isinstance(value.func, ast.Attribute) and value.func.attr == "get" and value.args:
            text = str(value.args[0].value) if isinstance(value.args[0], ast.Constant) else ""
    elif isinstance(value, ast.Subscript):
        text = str(value.slice.value) if isinstance(value.slice, ast.Constant) else ""
    else:
        text = last(dotted(value))
    return text not in _OTHER_MEANINGS and bool(text) and _ACCUMULATION.fullmatch(text.removeprefix("get_")) is not None


_EXCHANGES = re.compile(r"\b(?:compute_gradients|DistributedGradientTape|\w*allreduce\w*|_aggregate_gradients)\s*\(")
_GRADIENTS = frozenset(("tensorflow.gradients", "tensorflow.compat.v1.gradients", "tf.gradients"))
_LEGACY = re.compile(r"(?:tf|tensorflow)\.(?:compat\.v1\.)?train\.\w*Optimizer")


def unexchanged_gradients(module: Module) -> Iterator[Claim]:
    """Yield gradients of `tf.gradients` that are applied by an optimizer of TensorFlow 1 in Horovod's."""
    if _EXCHANGES.search(module.file.text) is not None:
        return
    computed = [call for call in module.named("gradients") if module.called(call) in _GRADIENTS]
    wrapped = {}
    for call in module.named("DistributedOptimizer"):
        inner = argument(call, "optimizer", 0)
        if not module.called(call).startswith("horovod.tensorflow.Distributed") or inner is None:
            continue
        given = value_of(inner)
        kinds = [given, *((module.bindings_of(given) or []) if isinstance(given, ast.Name) else [])]
        names = [module.called(kind) for kind in kinds if isinstance(kind, ast.Call)]
        legacy = [name for name in names if _LEGACY.fullmatch(name)]
        if legacy and all(name in legacy or name.startswith("horovod.") for name in names):
            wrapped[module.bound_to(call)] = call
    for apply in module.named("apply_gradients"):
        owner = dotted(apply.func.value) if isinstance(apply.func, ast.Attribute) else ""
        if owner in wrapped and computed:
            yield module.feature("gradients_not_exchanged", apply, computed[0], wrapped[owner])
            return
