"""Where ranks diverge: collectives that only some ranks reach, and steps that each rank takes alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from preflight.sources.base import SourceFile
from preflight.sources.python.collectives import AGREEING, is_collective_event
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.module import last
from preflight.sources.python.simulation.libraries import pattern

WRAPS = pattern("exchanging")
LAYER = pattern("layers")
_SHARDED = pattern("sharded")
#: The name of a divided model in an event.
SHARDED_MODEL = "torch.distributed.fsdp.FullyShardedDataParallel()"
#: What joins the ranks of a program that exchanges their gradients itself.
_JOINS = re.compile(r"(?:init_process_group|init_parallel_env)$")
_MAY_EXCHANGE = re.compile(
    r"hook|DataParallel|Trainer|prepare$|distribute|parallelize|shard_|^fit$|^Engine$|[Pp]ipeline|rpc"
)


class Early(NamedTuple):
    """A branch that may make a rank leave its loop or function while the others stay.

    Args:
        kind: `break`, `continue` or `return`.
        start: the number of calls in the run before.
        done: the collectives of the rank in the branch, which the others make later.
        of_rank: whether only some ranks, which are unknown, reach the condition.
    """

    kind: str
    node: ast.AST
    test: ast.expr
    file: SourceFile
    start: int
    done: Counter[str]
    of_rank: bool = False


class Divergence(NamedTuple):
    """A collective that some ranks do not reach, because each decides by its own value.

    Args:
        kind: `break`, `continue`, `return`, `while`, or `if` for a branch that contains the collective.
        node: where the ranks diverge.
        event: the collective.
        of_rank: whether the rank decides, together with something unknown.
    """

    kind: str
    node: ast.AST
    test: ast.expr
    file: SourceFile
    event: Any
    of_rank: bool = False


def waits(
    name: str, node: ast.Call, given: Sequence[Any], *, is_wrapped: bool, is_collective: bool, is_of_all: bool = False
) -> bool:
    """Return whether a rank waits for the others in a call.

    Args:
        given: its arguments.
        is_wrapped: whether something makes the ranks exchange their gradients.
        is_collective: whether Paddle's fleet does so without servers.
        is_of_all: whether the group that it is given has all ranks.
    """
    if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
        # A pass over RPC is of the worker that starts it.
        return is_wrapped and not name.startswith("torch.distributed.autograd.")
    if name.endswith("Executor().run"):
        # A static program of Paddle 2.6 that a distributed optimizer has minimised; others may be for evaluation.
        program = given[0] if given else None
        return (
            is_wrapped
            and is_collective
            and (program is None or getattr(program, "name", "").endswith("default_main_program()"))
        )
    return bool(_SHARDED.search(name)) or is_collective_event(name, node, is_of_all=is_of_all)


#: Names for what a model consists of.
_OF_MODEL = re.compile(r"param|weight|grad|state_dict|model|net\b|\.data\b|^p\b|flat|buffer|delta")


def trained_apart(events: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the call that joins the ranks, and a backward pass of which nothing exchanges the gradients before a step.

    None where something is wrapped that exchanges them, or where a call before a step may do so.
    """
    if any(WRAPS.search(event.name) or _MAY_EXCHANGE.search(called_name(event)) for event in events):
        return None
    # Some average the parameters after a number of steps instead.
    met = [event for event in events if event.waits and called_name(event) != "backward"]
    if any(_OF_MODEL.search(ast.unparse(each)) for event in met for each in event.node.args):
        return None
    # What a library that is not known returns may exchange them.
    own = {event.file.path.partition("/")[0].removesuffix(".py") for event in events}
    called = {event.name.partition(".")[0] for event in events if event.name and not is_foreign(event.name)}
    if called - own:
        return None
    joined = next((event for event in events if _JOINS.search(event.name)), None)
    passes = [at for at, event in enumerate(events) if called_name(event) == "backward"]
    steps = [at for at, event in enumerate(events) if called_name(event) in ("step", "minimize")]
    for at in passes:
        end = next((step for step in steps if step > at), None)
        between = events[at + 1 : end]
        if end is None or any(event.waits or AGREEING.search(called_name(event)) for event in between):
            return None
    return (joined, events[passes[0]]) if joined is not None and passes else None


def called_name(event: Any) -> str:
    """Return the last part of the name that a call is written with."""
    function = event.node.func
    return last(event.name) or (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))


def names_of(events: Sequence[Any]) -> Counter[str]:
    """Return how often each collective is called."""
    return Counter(_name(each) for each in events if _is_needed(each))


def only_in_one(blocks: Sequence[Sequence[Any]], depth: int) -> Any:
    """Return the first collective of two branches that the other one lacks; None if there is none."""
    for block, other in zip(blocks, reversed(blocks), strict=True):
        names = names_of(other)
        # What takes all parameters of a layer, times nothing, uses it.
        touches = any(event.name.endswith(".parameters") for event in other)
        for event in block:
            if event.is_layer and touches:
                continue
            if _is_needed(event) and event.depth <= depth and not names[_name(event)]:
                return event
    return None


def missed(early: Early, events: Sequence[Any], depth: int) -> Any:
    """Return the first collective that a rank misses which left early; None if there is none."""
    done = Counter() if early.kind == "break" else Counter(early.done)
    for event in events:
        name = _name(event)
        if _is_needed(event) and done[name]:
            done[name] -= 1
        elif _is_needed(event) and event.depth <= depth:
            return event
    return None


def _is_needed(event: Any) -> bool:
    return bool(event.waits or event.is_layer)


def _name(event: Any) -> str:
    if event.is_layer:
        return ast.unparse(event.node.func)
    return last(event.name) or (event.node.func.attr if isinstance(event.node.func, ast.Attribute) else "")
