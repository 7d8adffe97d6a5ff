"""Claims about static programs of Paddle: the order of operations on them, their inputs, parameters and data sets.

The loss is followed back through the assignments of its function, and through functions of the script that return it
together with inputs.

Only literal sizes are claimed; the names of layers are those of fluid.layers, paddle.static.nn and paddle.nn.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight._util.budget import note_skipped, spend
from preflight._util.sequences import grouped
from preflight.model.job import Claim, Known, Unresolved, Value, alternatives, lift
from preflight.model.job.value import Plain
from preflight.sources.python.module import Module, argument, enclosing, is_none, last, value_of
from preflight.sources.python.outline import Function, dotted
from preflight.sources.python.words import WORDS

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
    """Yield all claims about programs, loops over batches and data sets."""
    calls = grouped((last(module.called(call)), call) for call in module.calls)
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
        yield from _state_startup(module, calls)
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
    """Yield whether `clone(for_test=True)` comes before or after minimize, if both are unconditional and in one
    function.
    """
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


#: Layers that compute something else in training.
_DIFFERS_IN_TRAINING = re.compile(r"drop_?out|batch_?norm", re.IGNORECASE)


def _state_training_clone(module: Module, call: ast.Call, given: ast.keyword | ast.expr | None) -> Iterator[Claim]:
    """Yield a program for evaluation, by the name of its variable or function, that is cloned as it is for training."""
    if (given is not None and module.fold(value_of(given)) != Known(False)) or not module.named("minimize"):
        return
    if given is not None and _DIFFERS_IN_TRAINING.search(module.file.text) is None:
        return
    function = module.outline.function_of(call)
    names = (module.bound_to(call), function.name if function is not None else "")
    owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    built = module.definition(call.func.value) if isinstance(call.func, ast.Attribute) else call
    # Tensors are cloned, too: by name only programs count.
    is_program = "prog" in owner.lower() or (isinstance(built, ast.Call) and "rogram" in last(module.called(built)))
    if "get_inference_program" in module.file.text and _is_replaced(module, call):
        return
    if is_program and any(_EVALUATED.search(name) for name in names) and not _EVALUATED.search(owner):
        yield module.claim("evaluation_clone_trains", module.text(call), call, source="paddle")


def _is_replaced(module: Module, call: ast.Call) -> bool:
    """Return whether `fluid.io.get_inference_program` gives the clone's name another program, which it prunes for
    testing.
    """
    name = module.bound_to(call)
    return bool(name) and any(
        module.bound_to(other) == name and last(module.called(other)) == "get_inference_program"
        for other in module.calls
    )


def _state_startup(module: Module, calls: dict[str, list[ast.Call]]) -> Iterator[Claim]:
    """Yield whether a script that trains a static program with its own Executor runs a startup program at all."""
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
    """Yield whether an executor that trains in a loop is closed, for scripts that transpile their program
    themselves.
    """
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
    """Return whether a call of Executor.run feeds or fetches, or names the main program: then it is not a startup
    program.
    """
    if argument(call, "feed", 1) is not None or argument(call, "fetch_list", 2) is not None:
        return True
    given = argument(call, "program", 0)
    return given is not None and "main" in module.text(value_of(given))


def _state_uneven_loop(module: Module, loop: ast.For) -> Iterator[Claim]:
    """Yield `if trainer_id != 3 and batch_id > 100: break`: the loop ends sooner for some trainers."""
    for node in loop.body:
        if not isinstance(node, ast.If):
            continue
        ends = next((item for item in node.body if isinstance(item, (ast.Break, ast.Continue))), None)
        named = _rank_named(node.test) if ends is not None else ""
        # `if step % trainers != trainer_id: continue` deals the steps out in turn.
        in_turn = isinstance(ends, ast.Continue) and any(isinstance(each, ast.Mod) for each in ast.walk(node.test))
        if named and not in_turn:
            yield module.claim(
                "rank_dependent_steps",
                named,
                node.test,
                spelling=f"if {module.text(node.test)}",
                condition="",
                source="paddle",
            )


def _rank_named(test: ast.expr) -> str:
    """Return the rank that a condition compares, by name; empty if there is none."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            written = last(dotted(side.func if isinstance(side, ast.Call) else side))
            if _RANK.fullmatch(written) and _RANKED.search(written):
                return written
    return ""


def _state_shuffle(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """Yield claims about calls that shuffle a QueueDataset, which streams its files and cannot shuffle them."""
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
    """Yield whether the files of a data set are this trainer's share."""
    if not call.args and not call.keywords:
        return
    given = call.args[0] if call.args else call.keywords[0].value
    if not divided and not _is_listing(module, given):
        return
    yield module.claim("dataset_files_shared", divided, given, source="paddle")


def _is_listing(module: Module, given: ast.expr) -> bool:
    """Return whether `given` is a literal list, or one that the script builds from the files of a folder."""
    made = module.definition(given)
    if isinstance(made, ast.Call):
        return last(module.called(made)) in ("listdir", "glob")
    if isinstance(made, ast.ListComp):
        return any(last(module.called(c)) in ("listdir", "glob") for c in ast.walk(made) if isinstance(c, ast.Call))
    return isinstance(made, ast.List) and len(made.elts) > 1


#: A program that reads its inputs through one of these is not fed.
_READERS = ("py_reader", "from_generator", "create_py_reader_by_data", "open_files", "train_from_dataset")
#: Variables that a loss is followed back through; a model written by hand has fewer.
_MAX_VARIABLES = 2000


def feed_claims(module: Module) -> Iterator[Claim]:
    """Yield claims about the inputs that a run of the trained program lacks, and the lists of data sets without one."""
    losses = [call for call in module.named("minimize") if call.args]
    inputs = _inputs(module)
    if len({module.text(call.args[0]) for call in losses}) != 1 or not inputs:
        return
    loss = losses[0].args[0]
    needed = _inputs_of(module, loss, inputs)
    if not needed:
        return
    for given, fed in _fed_runs(module, loss, inputs):
        missing = sorted(needed - fed)
        if missing:
            yield module.claim("inputs_not_fed", tuple(missing), given, source="paddle")


def _inputs(module: Module) -> dict[int, str]:
    """Return the names of the data layers, by the call; empty if one has no literal name."""
    found: dict[int, str] = {}
    for call in module.named("data"):
        name = module.called(call)
        if not name.startswith(("paddle.static", "paddle.fluid", "fluid", "static")):
            continue
        given = argument(call, "name", 0)
        text = module.fold(value_of(given)) if given is not None else None
        if not isinstance(text, Known) or not isinstance(text.value, str):
            return {}
        found[id(call)] = text.value
    return found


def _inputs_of(module: Module, loss: ast.expr, inputs: dict[int, str]) -> set[str]:
    """Return the names of the inputs that an expression is computed from."""
    found: set[str] = set()
    seen: set[tuple[int, str]] = set()
    stack: list[tuple[ast.expr, Function | None]] = [(loss, module.outline.function_of(loss))]
    while stack and len(seen) < _MAX_VARIABLES:
        spend()
        expression, function = stack.pop()
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and id(node) in inputs:
                found.add(inputs[id(node)])
            key = (id(function), dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else "")
            if not key[1] or key in seen:
                continue
            seen.add(key)
            stack.extend(_assignments(module, key[1], function))
    return found


def _assignments(module: Module, name: str, function: Function | None) -> Iterator[tuple[ast.expr, Function | None]]:
    """Yield the expressions that a variable gets its value from, each with the function that it is in."""
    for node in module.nodes(ast.Assign):
        if module.outline.function_of(node) is not function:
            continue
        for target in node.targets:
            if dotted(target) == name:
                yield from _values(module, node.value, None, function)
            elif isinstance(target, ast.Tuple):
                for index, each in enumerate(target.elts):
                    if dotted(each) == name:
                        yield from _values(module, node.value, index, function)


def _values(
    module: Module, value: ast.expr, index: int | None, function: Function | None
) -> Iterator[tuple[ast.expr, Function | None]]:
    """Yield the expressions that a value, or its element, may be: for a call of the script's own function, its
    results.
    """
    if index is not None and isinstance(value, ast.Tuple) and index < len(value.elts):
        yield value.elts[index], function
        return
    name = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
    called = module.outline.functions(name) if name else ()
    for node in ast.walk(called[0]) if len(called) == 1 else ():
        returned = node.value if isinstance(node, ast.Return) else None
        if index is not None and isinstance(returned, ast.Tuple) and index < len(returned.elts):
            returned = returned.elts[index]
        if returned is not None:
            yield returned, called[0]
    yield value, function


def _fed_runs(module: Module, loss: ast.expr, inputs: dict[int, str]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield each run that fetches the loss, and each data set that trains, with the names of its inputs."""
    if any(True for _ in module.named(*_READERS[:-1])):
        return
    trains = any(True for _ in module.named("train_from_dataset"))
    for call in module.named("init", "set_use_var") if trains else ():
        listed = argument(call, "use_var", 0 if last(module.called(call)) == "set_use_var" else None)
        names = _listed_names(module, listed, inputs)
        if listed is not None and names is not None:
            yield listed, names
    written = {module.text(loss), f"{module.text(loss)}.name"}
    for call in module.named("run"):
        feed, fetched = argument(call, "feed", 1), argument(call, "fetch_list", 2)
        asked = module.definition(value_of(fetched)) if fetched is not None else None
        if feed is None or not isinstance(asked, (ast.List, ast.Tuple)):
            continue
        if not any(module.text(item) in written for item in asked.elts):
            continue
        names = _names_in_feed(module, value_of(feed), inputs)
        if names is not None:
            yield feed, names


def _names_in_feed(module: Module, feed: ast.expr, inputs: dict[int, str]) -> set[str] | None:
    """Return the names in a literal dictionary, or in the list of the feeder; None if unknown."""
    made = module.definition(feed)
    if isinstance(made, ast.Dict):
        names = [_input_name(module, key, inputs) for key in made.keys]
        # A dictionary that the script adds to is not known.
        grows = isinstance(feed, ast.Name) and _grows(module, feed.id)
        return {name for name in names if name} if all(names) and not grows else None
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "feed":
        feeder = module.definition(made.func.value)
        if isinstance(feeder, ast.Call) and last(module.called(feeder)) == "DataFeeder":
            return _listed_names(module, argument(feeder, "feed_list", 0), inputs)
    return None


def _grows(module: Module, name: str) -> bool:
    """Return whether `feed[...] = ...` or `feed.update(...)` adds to a dictionary."""
    for node in module.nodes(ast.Subscript):
        if isinstance(node.ctx, ast.Store) and dotted(node.value) == name:
            return True
    return any(
        isinstance(call.func, ast.Attribute) and dotted(call.func.value) == name for call in module.named("update")
    )


def _listed_names(module: Module, listed: ast.keyword | ast.expr | None, inputs: dict[int, str]) -> set[str] | None:
    """Return the names of the inputs in a literal list of names or variables; None if one is unknown."""
    made = module.definition(value_of(listed)) if listed is not None else None
    if not isinstance(made, (ast.List, ast.Tuple)):
        return None
    names = [_input_name(module, item, inputs) for item in made.elts]
    return {name for name in names if name} if all(names) else None


def _input_name(module: Module, item: ast.expr | None, inputs: dict[int, str]) -> str:
    """Return the name of an input that is written as text, as a variable, or as its `.name`; empty if unknown."""
    if item is None:
        return ""
    folded = module.fold(item)
    if isinstance(folded, Known):
        return folded.value if isinstance(folded.value, str) else ""
    if isinstance(item, ast.Attribute) and item.attr == "name":
        item = item.value
    found = {inputs[id(node)] for value, _ in _sources(module, item) for node in [value] if id(node) in inputs}
    return found.pop() if len(found) == 1 else ""


def _sources(module: Module, item: ast.expr) -> Iterator[tuple[ast.expr, Function | None]]:
    """Yield each expression that a variable may get its value from, and the function that contains it."""
    name = dotted(item)
    for value, function in _assignments(module, name, module.outline.function_of(item)) if name else ():
        yield value, function
        if isinstance(value, ast.Name):
            yield from _assignments(module, value.id, function)


_FLUID = ("fluid.", "paddle.")
#: Layers with parameters whose shape is not followed; with one of them the list of parameters is incomplete.
_UNFOLLOWED_LAYERS = frozenset(WORDS["unfollowed_layers"])
_SIZED = frozenset(("embedding", "sparse_embedding", "fc", "create_parameter", *_UNFOLLOWED_LAYERS))
#: Layers of one script that are read; code written by hand has fewer.
_MAX_LAYERS = 1000
#: Layers that keep the last dimension of their first argument.
_KEEPING = frozenset(("relu", "tanh", "sigmoid", "dropout", "softmax", "sequence_pool", "mean_pool", "reshape_like"))


def layer_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about tables, layers and optimizers."""
    optimizers = {
        id(owner)
        for call in module.calls
        if last(module.called(call)) in ("minimize", ".minimize") and isinstance(call.func, ast.Attribute)
        for owner in (module.definition(call.func.value),)
    }
    layers = 0
    for call in module.calls:
        name = module.called(call)
        short = last(name)
        layers += name.startswith(_FLUID) and short in _SIZED
        if layers > _MAX_LAYERS:
            note_skipped(f"only the first {_MAX_LAYERS} layers were read")
            return
        if short in ("embedding", "sparse_embedding") and name.startswith(_FLUID):
            yield from _embedding(module, call, short)
        elif short == "fc" and name.startswith(_FLUID):
            yield from _fully_connected(module, call)
        elif (
            short == "create_parameter" and name.startswith(_FLUID) and (size := argument(call, "shape", 0)) is not None
        ):
            value = lift(_shape, module.fold(value_of(size)))
            yield module.claim("parameter_shape", value, call.func, spelling=module.text(call.func), source="paddle")
        elif short in _UNFOLLOWED_LAYERS and name.startswith(_FLUID):
            unknown = Unresolved(f"{module.text(call.func)}: its sizes cannot be determined from the script")
            yield module.claim("parameter_shape", unknown, call.func, source="paddle")
        elif id(call) in optimizers and ".optimizer." in f".{name}":
            class_name = short.removesuffix("Optimizer")
            yield module.claim("optimizer", class_name, call.func, spelling=module.text(call.func), source="paddle")


def _embedding(module: Module, call: ast.Call, short: str) -> Iterator[Claim]:
    size = argument(call, "size", 1)
    if size is None:
        return
    table = module.claim("embedding_shape", lift(_shape, module.fold(value_of(size))), size, source="paddle")
    yield table
    sparse = argument(call, "is_sparse", 2)
    if short == "sparse_embedding":
        yield module.claim("embedding_sparse", True, call.func, source="paddle", because=(table,))
        yield module.claim("served_table", module.text(call.func), call.func, source="paddle", because=(table,))
    elif sparse is not None:
        yield module.claim("embedding_sparse", module.fold(value_of(sparse)), sparse, source="paddle", because=(table,))
    distributed = argument(call, "is_distributed", 3)
    if distributed is not None:
        value = module.fold(value_of(distributed))
        yield module.claim("embedding_distributed", value, distributed, source="paddle", because=(table,))
        if value == Known(True):
            written = module.text(distributed)
            yield module.claim("served_table", written, distributed, source="paddle", because=(table,))
    given = argument(call, "param_attr", 5)
    if given is not None:
        yield module.claim("embedding_parameter", _parameter(module, given), given, source="paddle", because=(table,))


def _parameter(module: Module, given: ast.keyword | ast.expr) -> Value:
    """Return the name in `fluid.ParamAttr(name="emb")`, `{"name": "emb"}` or `"emb"`."""
    expression = module.definition(value_of(given))
    if isinstance(expression, ast.Call) and last(module.called(expression)) == "ParamAttr":
        name = argument(expression, "name", 0)
        if name is None or is_none(value_of(name)):
            return Known("")
        return module.fold(value_of(name))
    return module.fold(expression)


def _shape(item: Plain) -> Plain:
    if not isinstance(item, tuple) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in item):
        raise TypeError("sizes must be whole numbers")
    return item


def _fully_connected(module: Module, call: ast.Call) -> Iterator[Claim]:
    size, source = argument(call, "size", 1), argument(call, "input", 0) or argument(call, "x", 0)
    if size is None or source is None:
        return
    width = module.fold(value_of(size))
    shape = lift(_weight, _last_dimension(module, value_of(source)), width)
    yield module.claim("parameter_shape", shape, call.func, spelling=module.text(call.func), source="paddle")
    bias = argument(call, "bias_attr")
    if bias is None or module.fold(value_of(bias)) != Known(False):
        yield module.claim("parameter_shape", lift(_vector, width), size, source="paddle")


def _weight(rows: Plain, columns: Plain) -> Plain:
    return _shape((_number(rows), _number(columns)))


def _vector(size: Plain) -> Plain:
    return _shape((_number(size),))


def _number(item: Plain) -> int:
    if not isinstance(item, int):
        raise TypeError("sizes must be whole numbers")
    return item


def _last_dimension(module: Module, expression: ast.expr, depth: int = 0) -> Value:
    """Return the last dimension of a layer's output, if it, or a layer before it, has it as a literal."""
    made = module.definition(expression)
    unknown = Unresolved(f"{module.text(expression)}: its sizes are not followed")
    if not isinstance(made, ast.Call) or depth > 40:
        return unknown
    short = last(module.called(made))
    if short in ("fc", "embedding", "sparse_embedding"):
        size = argument(made, "size", 1)
        return lift(_final, module.fold(value_of(size))) if size is not None else unknown
    if short == "data":
        shape = argument(made, "shape", 1)
        return lift(_final, module.fold(value_of(shape))) if shape is not None else unknown
    if short in _KEEPING and made.args:
        return _last_dimension(module, made.args[0], depth + 1)
    if short in _KEEPING and (given := argument(made, "input") or argument(made, "x")) is not None:
        return _last_dimension(module, value_of(given), depth + 1)
    return unknown


def _final(item: Plain) -> Plain:
    found = item[-1] if isinstance(item, tuple) and item else item
    if not alternatives(Known(found)) or not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise TypeError("the last size is unknown")
    return found
