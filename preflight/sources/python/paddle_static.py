"""Claims about static programs of Paddle and the order of operations on them, and about data sets of trainers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.sources.python.attributes import enclosing
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

#: Variables that differ from trainer to trainer, by their last name.
_RANK = re.compile(
    r"(?:trainer|worker|proc|process|global|local|dist|node)?_?(?:rank|rank_id|id|index|idx)|worker_index|get_rank"
)
_RANKED = re.compile(r"trainer|worker|rank|proc|node")
_STARTUP = re.compile(r"start_?up|init_prog", re.IGNORECASE)
_EVALUATED = re.compile(r"test|eval|infer|valid|pred", re.IGNORECASE)
_DIVIDING = re.compile(
    r"get_file_shard|split_files|worker_index|worker_num|trainer_id|trainer_num|trainers_num|TRAINER_ID|cluster_files"
)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about programs, loops over batches and data sets."""
    calls: dict[str, list[ast.Call]] = {}
    for call in module.calls:
        calls.setdefault(last(module.called(call)), []).append(call)
    minimized = calls.get("minimize", [])
    first: dict[int, ast.Call] = {}
    for call in minimized:
        if not module.condition(call):
            first.setdefault(id(enclosing(module, call)), call)
    for call in calls.get("clone", []):
        yield from _clone(module, call, first)
    for call in calls.get("enable_static", []):
        if module.called(call).startswith("paddle"):
            yield module.claim("static_graph_enabled", True, call, source="paddle")
    if minimized:
        yield from _state_startup(module, calls, minimized)
    if "transpile" in calls:
        yield from _state_closed(module, calls)
    for loop in module.nodes(ast.For):
        yield from _state_uneven_loop(module, loop)
    for name in ("local_shuffle", "global_shuffle"):
        for call in calls.get(name, []):
            yield from _state_shuffle(module, call, name)
    lists = calls.get("set_filelist", [])
    divided = bool(lists) and _DIVIDING.search(module.file.text) is not None
    for call in lists:
        yield from _files(module, call, divided=divided)


def _clone(module: Module, call: ast.Call, first: dict[int, ast.Call]) -> Iterator[Claim]:
    """Whether `clone(for_test=True)` comes before or after minimize, if both are unconditional and in one function."""
    given = argument(call, "for_test", 0)
    if given is None or module.fold(value_of(given)) != Known(True):
        yield from _state_training_clone(module, call, given)
        return
    owner = module.text(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if _EVALUATED.search(owner):
        # A program that was built for evaluation has no optimizer of its own.
        return
    other = first.get(id(enclosing(module, call)))
    if other is not None:
        order = "after" if other.lineno < call.lineno else "before"
        reason = module.claim("optimizer", "", other.func, spelling=module.text(other.func), source="paddle")
        yield module.claim(
            "test_program_cloned", order, call.func, spelling=module.text(call), source="paddle", because=(reason,)
        )


def _state_training_clone(module: Module, call: ast.Call, given: ast.keyword | ast.expr | None) -> Iterator[Claim]:
    """A program for evaluation, by the name of its variable or function, that is cloned as it is for training."""
    if (given is not None and module.fold(value_of(given)) != Known(False)) or not module.named("minimize"):
        return
    function = module.outline.function_of(call)
    names = (module.bound_to(call), function.name if function is not None else "")
    owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    built = module.definition(call.func.value) if isinstance(call.func, ast.Attribute) else call
    # Tensors are cloned, too: by name only programs count.
    is_program = "prog" in owner.lower() or (isinstance(built, ast.Call) and "rogram" in last(module.called(built)))
    if is_program and any(_EVALUATED.search(name) for name in names) and not _EVALUATED.search(owner):
        yield module.claim("evaluation_clone_trains", module.text(call), call, source="paddle")


def _state_startup(module: Module, calls: dict[str, list[ast.Call]], minimized: list[ast.Call]) -> Iterator[Claim]:
    """Whether a script that trains a static program with its own Executor runs a startup program at all."""
    executors = {module.bound_to(call) for call in calls.get("Executor", [])} - {""}
    runs = [c for c in calls.get("run", []) if isinstance(c.func, ast.Attribute) and dotted(c.func.value) in executors]
    if not runs:
        return
    others = [
        c for name in ("train_from_dataset", "load_persistables", "load_params", "load") for c in calls.get(name, [])
    ]
    given = [module.text(item) for call in runs for item in (*call.args, *(k.value for k in call.keywords))]
    ran = any(_STARTUP.search(text) for text in given)
    if not ran and (others or not all(_is_plain_run(module, call) for call in runs)):
        return
    first = runs[0]
    yield module.claim("startup_program_run", ran, first.func, spelling=module.text(first.func), source="paddle")


def _state_closed(module: Module, calls: dict[str, list[ast.Call]]) -> Iterator[Claim]:
    """Whether an executor that trains in a loop is closed, for scripts that transpile their program themselves."""
    made = [call for name in ("Executor", "ParallelExecutor") for call in calls.get(name, [])]
    names = {module.bound_to(call): call for call in made if module.bound_to(call)}
    for call in calls.get("run", []):
        owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if owner in names and _is_in_loop(module, call):
            closed = any(isinstance(c.func, ast.Attribute) for c in calls.get("close", []))
            yield module.claim("executor_closed", closed, call.func, spelling=module.text(call.func), condition="")
            return


def _is_in_loop(module: Module, node: ast.AST) -> bool:
    current = module.parent(node)
    while current is not None and not isinstance(current, (ast.FunctionDef, ast.Module)):
        if isinstance(current, (ast.For, ast.While)):
            return True
        current = module.parent(current)
    return False


def _is_plain_run(module: Module, call: ast.Call) -> bool:
    """Whether a call of Executor.run feeds or fetches, or names the main program: then it is not a startup program."""
    if argument(call, "feed", 1) is not None or argument(call, "fetch_list", 2) is not None:
        return True
    given = argument(call, "program", 0)
    return given is not None and "main" in module.text(value_of(given))


def _state_uneven_loop(module: Module, loop: ast.For) -> Iterator[Claim]:
    """`if trainer_id != 3 and batch_id > 100: break`: the loop ends sooner for some trainers."""
    for node in loop.body:
        if not isinstance(node, ast.If):
            continue
        ends = next((item for item in node.body if isinstance(item, (ast.Break, ast.Continue))), None)
        named = _rank_named(module, node.test) if ends is not None else ""
        if named:
            yield module.claim(
                "rank_dependent_steps",
                named,
                node.test,
                spelling=f"if {module.text(node.test)}",
                condition="",
                source="paddle",
            )


def _rank_named(module: Module, test: ast.expr) -> str:
    """The rank that a condition compares, by name; empty if there is none."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            written = last(dotted(side.func if isinstance(side, ast.Call) else side))
            if _RANK.fullmatch(written) and _RANKED.search(written):
                return written
    return ""


def _state_shuffle(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """State calls that shuffle a QueueDataset, which streams its files and cannot shuffle them."""
    if not isinstance(call.func, ast.Attribute):
        return
    made = module.definition(call.func.value)
    if not isinstance(made, ast.Call):
        return
    short = last(module.called(made))
    kind = argument(made, "datafeed_class", 0) if short == "create_dataset" else None
    streams = short == "QueueDataset" or (
        short == "create_dataset" and (kind is None or module.fold(value_of(kind)) == Known("QueueDataset"))
    )
    memory = short == "InMemoryDataset" or (
        kind is not None and module.fold(value_of(kind)) == Known("InMemoryDataset")
    )
    if memory and name == "global_shuffle":
        alone = argument(call, "fleet", 0) is None
        yield module.claim("global_shuffle_alone", alone, call.func, spelling=module.text(call), source="paddle")
    if streams:
        yield module.claim("stream_dataset_shuffled", name, call.func, source="paddle")


def _files(module: Module, call: ast.Call, *, divided: bool) -> Iterator[Claim]:
    """Whether the files of a data set are this trainer's share."""
    if not call.args and not call.keywords:
        return
    given = call.args[0] if call.args else call.keywords[0].value
    if not divided and not _is_listing(module, given):
        return
    yield module.claim("dataset_files_shared", divided, given, source="paddle")


def _is_listing(module: Module, given: ast.expr) -> bool:
    """Whether this is a literal list, or one that the script builds from the files of a folder."""
    made = module.definition(given)
    if isinstance(made, ast.Call):
        return last(module.called(made)) in ("listdir", "glob")
    if isinstance(made, ast.ListComp):
        return any(last(module.called(c)) in ("listdir", "glob") for c in ast.walk(made) if isinstance(c, ast.Call))
    return isinstance(made, ast.List) and len(made.elts) > 1
