"""Values that every rank computes for itself where all of them need the same one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from preflight.sources.python.collectives import AGREEING
from preflight.sources.python.imports import is_foreign
from preflight.sources.python.module import last
from preflight.sources.python.simulation.run_state import Event, Run
from preflight.sources.python.simulation.values import OF_RANK, External, Own, mixed

#: Where calls take the root, the rank that the others get something from or give it to: torch 2.13, Paddle 3.3, Horovod
#: 0.28. A group's own root is a rank of the group, which may differ between groups.
_ROOTS = {
    **dict.fromkeys(("broadcast", "broadcast_object_list"), ("src", 1)),
    "reduce": ("dst", 1),
    **dict.fromkeys(("gather", "gather_object"), ("dst", 2)),
    **dict.fromkeys(("scatter", "scatter_object_list"), ("src", 2)),
}
_HOROVOD_ROOTS = ("broadcast", "broadcast_", "broadcast_parameters", "broadcast_object", "broadcast_variables")
#: Functions that divide data at random, with the argument that makes all ranks divide it alike.
_SPLITS = {
    "torch.utils.data.random_split": "generator",
    "torch.utils.data.dataset.random_split": "generator",
    "paddle.io.random_split": "generator",
    "sklearn.model_selection.train_test_split": "random_state",
}
#: Functions that return what the ranks have exchanged, and leave their arguments as they are: mpi4py 4.1, Horovod 0.28.
_RETURNING = re.compile(
    r"^mpi4py\.MPI\.COMM_WORLD\.(?:bcast|allreduce|allgather|alltoall|scatter)$"
    r"|^horovod\.\w+\.(?:allreduce|allgather|alltoall|broadcast|broadcast_object|allgather_object|grouped_allreduce)$"
)
_SCHEDULERS = ("ReduceLROnPlateau().step", "ReduceOnPlateau().step")


def features(run: Run) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the features of calls that get, or draw, another value on each rank, in a run of any rank."""
    if not run.is_of_any:
        return
    if run.is_complete and not run.is_wrapped:
        yield from (("initial_weights_differ", event, None) for event in _initial_weights(run.events))
    is_seeded = is_unread = False
    if any(last(event.name) in ("spawn", "Process", "TorchTrainer") for event in run.events):
        # What comes before is done once, in the parent.
        return
    for event in run.events:
        given = (*event.arguments, *event.keywords.values())
        # What sets seeds by another name, or on a condition, too.
        is_seeded |= "seed" in last(event.name) and not any(isinstance(mixed(each), Own) for each in given)
        # What cannot be read may set seeds as well.
        is_unread |= not is_foreign(event.name) if event.name else isinstance(event.node.func, ast.Name)
        if event.doubt > 1:
            continue
        if _has_own_root(event):
            yield "root_differs", event, None
        elif event.name in _SPLITS and (
            _is_drawn_by_rank(event) or (not is_seeded and not is_unread and _is_random_split(event))
        ):
            yield "split_differs", event, None
        elif event.is_statement and event.times is not None and _is_discarded(event):
            yield "result_discarded", event, None
        elif event.name.endswith(_SCHEDULERS) and any(_is_of_data(each) for each in given):
            yield "learning_rate_differs", event, None


def _initial_weights(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the call that exchanges gradients between models that each rank seeds with its own number.

    Source: torch/nn/init.py of 2.13 draws weights from the generator that `manual_seed` sets.
    """
    names = [last(event.name) for event in events]
    gradients = [
        event
        for event, name in zip(events, names, strict=True)
        if AGREEING.search(name) and event.doubt < 2 and any(".grad" in ast.unparse(each) for each in event.node.args)
    ]
    may_agree = re.compile(
        r"broadcast|load|state_dict|from_pretrained|all_?gather|scatter|average|sync|spawn|^(?:zeros|ones|constant)_$"
    )
    is_pretrained = any({"weights", "pretrained"} & event.keywords.keys() for event in events)
    if not gradients or is_pretrained or any(may_agree.search(name) for name in names):
        return
    seeded = [event for event in events if "seed" in last(event.name)]
    if seeded and all(mixed(*event.arguments, *event.keywords.values()) is OF_RANK for event in seeded):
        yield gradients[0]


def _is_random_split(event: Event) -> bool:
    """Return whether a call divides data at random, without a generator."""
    is_given = event.keywords.get(_SPLITS[event.name]) is not None
    is_given |= event.name.endswith("random_split") and len(event.arguments) > 2
    return not is_given and event.keywords.get("shuffle") is not False


def _is_drawn_by_rank(event: Event) -> bool:
    """Return whether the generator or seed of a random split comes from the rank."""
    at = event.arguments[2] if event.name.endswith("random_split") and len(event.arguments) > 2 else None
    given = event.keywords.get(_SPLITS[event.name], at)
    if isinstance(given, External) and given.last in ("manual_seed()", "default_rng()", "RandomState()"):
        return mixed(*given.arguments, *given.keywords.values()) is OF_RANK
    return mixed(given) is OF_RANK


def _is_discarded(event: Event) -> bool:
    """Return whether every rank exchanges a variable, discards the result and uses the variable later."""
    argument = event.node.args[0] if event.node.args else None
    if not _RETURNING.search(event.name) or not isinstance(argument, ast.Name):
        return False
    if event.guards and any(branch.is_own for branch in event.branches.values()):
        return False
    later = "\n".join(event.file.text.splitlines()[event.node.end_lineno or event.node.lineno :])
    return re.search(rf"\b{argument.id}\b", later) is not None


def _has_own_root(event: Event) -> bool:
    """Return whether each rank names another root, among all ranks."""
    short = last(event.name)
    package = event.name.partition(".")[0]
    if package == "horovod":
        is_of_all = "process_set" not in event.keywords and len(event.arguments) < 4
        keyword, position = ("root_rank", 1) if short in _HOROVOD_ROOTS and is_of_all else ("", 0)
    else:
        is_known = event.name.startswith(("torch.distributed.", "paddle.distributed."))
        keyword, position = _ROOTS.get(short, ("", 0)) if is_known and "group" not in event.keywords else ("", 0)
        if len(event.arguments) > position + 1 + (short == "reduce"):
            # The group comes after the root, and after the operation of `reduce`.
            return False
    at = event.arguments[position] if keyword and len(event.arguments) > position else None
    root = event.keywords.get(keyword, at)
    return bool(keyword) and isinstance(root, Own) and root.of_rank


def _is_of_data(value: object) -> bool:
    """Return whether the rank's own data decide a value, and not its number."""
    origin = mixed(value)
    return isinstance(origin, Own) and not origin.of_rank and not origin.of_part
