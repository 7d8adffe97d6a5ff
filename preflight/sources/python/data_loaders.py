"""Claims about how ranks get their data: samplers, loaders, epochs, batch sizes, files of a data set, and data sets
that use the GPU where an item is read, which the workers of a loader cannot do after a fork.

The claims of one loader or sampler belong together: each names the claim of its object (`dataloader`,
`distributed_sampler`) in `because`, so that a rule can distinguish two loaders of one script.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from preflight.model.job import Claim, Known, OneOf, Strength, Unresolved, alternatives
from preflight.sources.base import SourceFile
from preflight.sources.formats.structured import Kind
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import Module, argument, is_none, last, qualified, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, is_local, is_rank, ranks_where_true
from preflight.sources.python.shards import UNSYNCHRONIZED_WORK, items_of, setting_of
from preflight.sources.python.words import WORDS

_Loop: TypeAlias = "ast.For | ast.AsyncFor"
#: Sampler to (position of `shuffle`, its default): torch shuffles by default, Paddle does not.
_SAMPLERS = {"DistributedSampler": (3, True), "DistributedBatchSampler": (4, False)}
#: Positions of torch.utils.data.DataLoader's arguments; Paddle's differ, so there only keywords count.
_LOADER = {"batch_size": 1, "shuffle": 2, "sampler": 3, "batch_sampler": 4, "num_workers": 5, "drop_last": 8}
#: Keyword arguments only.
_LOADER_KEYWORDS = {
    "prefetch_factor": "dataloader_prefetch_factor",
    "persistent_workers": "dataloader_persistent_workers",
}
_LOADER_QUANTITY = {
    "batch_size": "dataloader_batch_size",
    "shuffle": "dataloader_shuffle",
    "num_workers": "dataloader_workers",
    "drop_last": "dataloader_drop_last",
}
#: Calls whose first argument is a data file or directory, by the last two parts of the name.
_READERS = frozenset(WORDS["data_readers"])
#: Names of data that is not for training, as whole words.
_EVALUATION_DATA = re.compile(
    r"(?:^|_)(?:val|valid|validation|test|eval|evaluation|dev|predict|infer)(?:_?(?:set|data|dataset|ds|dst))?(?:$|_)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:^|_)epochs?(?:$|_|\d)", re.IGNORECASE)
_EVALUATION = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_COUNTERS = ("range", "trange", "tqdm")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about samplers, loaders, epochs and data files."""
    for call in module.calls:
        short = last(module.called(call))
        if short in _SAMPLERS:
            yield from _sampler(module, call, short)
        elif short in ("DataLoader", "StatefulDataLoader"):
            yield from _loader(module, call)
        elif short == "set_epoch" and isinstance(call.func, ast.Attribute):
            yield module.claim("set_epoch_called", True, call)
        else:
            yield from _data(module, call)
    loops: list[_Loop] = [*module.nodes(ast.For), *module.nodes(ast.AsyncFor)]
    loaders = _sampled_loaders(module) if loops else {}
    for loop in loops:
        yield from _epochs(module, loop, loaders)


def _sampler(module: Module, call: ast.Call, short: str) -> Iterator[Claim]:
    position, default = _SAMPLERS[short]
    sampler = module.claim("distributed_sampler", module.bound_to(call), call)
    yield sampler
    data = argument(call, "dataset", 0)
    if data is not None and _EVALUATION_DATA.search(end_of(value_of(data))):
        yield module.claim("sampler_without_epochs", "its data are for evaluation", call, because=(sampler,))
    elif short == "DistributedBatchSampler":
        # paddle/io/dataloader/batch_sampler.py
        yield module.claim("sampler_without_epochs", "it counts its epochs itself", call, because=(sampler,))
    elif data is not None and _is_drawn_again(module, call, value_of(data)):
        yield module.claim("sampler_without_epochs", "its data are drawn again in each round", call, because=(sampler,))
    rank = argument(call, "rank", 2 if short == "DistributedSampler" else None)
    meant = module.definition(value_of(rank)) if rank is not None else None
    if rank is not None and meant is not None and is_rank(module, meant) and is_local(module, meant):
        yield module.claim("sampler_of_local_rank", module.text(value_of(rank)), rank, because=(sampler,))
    given = argument(call, "shuffle", position)
    if given is None:
        unknown = any(keyword.arg is None for keyword in call.keywords)
        value = Unresolved("given in **arguments") if unknown else Known(default)
        yield module.claim("sampler_shuffle", value, call, strength=Strength.DEFAULT, because=(sampler,))
    else:
        is_true = _is_given_true(module, call, value_of(given))
        shuffles = Known(True) if is_true else module.fold(value_of(given))
        yield module.claim("sampler_shuffle", shuffles, given, because=(sampler,))


def _is_given_true(module: Module, call: ast.Call, value: ast.expr) -> bool:
    """Return whether a value is a parameter of the function around a call, and any call of the function gives True."""
    function = module.outline.function_of(call)
    if function is None or not isinstance(value, ast.Name):
        return False
    names = [each.arg for each in function.args.args]
    if value.id not in names:
        return False
    position = names.index(value.id) - (names[0] in ("self", "cls"))
    given = (argument(each, value.id, position) for each in module.named(function.name))
    return any(module.fold(value_of(each)) == Known(True) for each in given if each is not None)


#: Names of what draws at random.
_DRAWS = re.compile(r"rand|sampl|shuffle|permut|choice|draw", re.IGNORECASE)
#: What a data set is made of is followed through so many names.
_MAX_NAMES = 4


def _is_drawn_again(module: Module, sampler: ast.Call, data: ast.expr) -> bool:
    """Return whether a loop makes both a sampler and its data, of the number of the round or at random."""
    loops = [outer for outer in module.outline.above(sampler) if isinstance(outer, (ast.For, ast.AsyncFor))]
    loop = loops[-1] if loops else None
    if loop is None or module.outline.function_of(loop) is not module.outline.function_of(sampler):
        return False
    counters = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    waiting = [data]
    for _ in range(_MAX_NAMES):
        made = [module.definition(each) for each in waiting]
        inside = [each for each in made if any(outer is loop for outer in module.outline.above(each))]
        nodes = [node for each in inside for node in ast.walk(each)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        # The name of the data itself is no call, and says nothing.
        if calls and any(node.id in counters for node in names):
            return True
        if any(_DRAWS.search(last(dotted(call.func))) for call in calls):
            return True
        waiting = [node for node in names if module.definition(node) is not node]
    return False


def _loader(module: Module, call: ast.Call) -> Iterator[Claim]:
    loader = module.claim("dataloader", module.bound_to(call), call)
    yield loader
    paddle = module.called(call).startswith("paddle")
    for name, position in _LOADER.items():
        given = argument(call, name, None if paddle else position)
        if given is None:
            continue
        expression = value_of(given)
        if name in ("sampler", "batch_sampler"):
            if not is_none(expression):
                shown = dotted(expression) or module.text(expression)
                yield module.claim("dataloader_sampler", shown, given, because=(loader,))
        else:
            yield module.claim(_LOADER_QUANTITY[name], module.fold(expression), given, because=(loader,))
    if paddle or any(keyword.arg is None for keyword in call.keywords):
        return
    for keyword in call.keywords:
        quantity = _LOADER_KEYWORDS.get(keyword.arg or "")
        if quantity is not None and not is_none(keyword.value):
            yield module.claim(quantity, module.fold(keyword.value), keyword, because=(loader,))


def _sampled_loaders(module: Module) -> dict[str, ast.Call]:
    """Return the loaders that have a sampler and are assigned to a variable, by its name, without those for
    evaluation.
    """
    found: dict[str, ast.Call] = {}
    for call in module.calls:
        if last(module.called(call)) not in ("DataLoader", "StatefulDataLoader"):
            continue
        position = None if module.called(call).startswith("paddle") else _LOADER["sampler"]
        given = argument(call, "sampler", position) or argument(call, "batch_sampler")
        name = module.bound_to(call)
        if name and not _EVALUATION.search(name) and given is not None and not is_none(value_of(given)):
            found[name] = call
    return found


def _epochs(module: Module, loop: _Loop, loaders: dict[str, ast.Call]) -> Iterator[Claim]:
    """Yield `for epoch in range(...)`, or a loop over a count with a loop over a loader in it.

    A range of one value is not a loop over epochs.
    """
    counter = loop.iter
    counts = isinstance(counter, ast.Call) and last(module.called(counter)) in _COUNTERS
    names = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
    if not any(_EPOCH.search(name) for name in names) and not (counts and _runs_over_a_loader(loop, loaders)):
        return
    if isinstance(counter, ast.Call) and counts:
        bounds = [module.fold(item) for item in counter.args]
        if bounds in ([Known(1)], [Known(0), Known(1)]):
            return
    spelling = f"for {module.text(loop.target)} in {module.text(loop.iter)}"
    yield module.claim("loop_over_epochs", True, loop.target, spelling=spelling)


def _runs_over_a_loader(outer: _Loop, loaders: dict[str, ast.Call]) -> bool:
    """Return whether a loop inside iterates over a loader that was made before: one made inside the loop starts again
    each time.
    """
    inside = {id(node) for node in ast.walk(outer)} if loaders else set()
    for loop in (node for each in outer.body for node in ast.walk(each)) if loaders else ():
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            continue
        for name in _iterated_names(loop.iter):
            if name in loaders and id(loaders[name]) not in inside:
                return True
    return False


def _iterated_names(expression: ast.expr) -> Iterator[str]:
    """Yield the names that a loop iterates over: `dl`, and those inside `enumerate(dl)` or `tqdm(dl)`, but not that of
    `len(dl)`.
    """
    if isinstance(expression, ast.Call):
        if last(dotted(expression.func)) not in ("len", "range"):
            for given in expression.args:
                yield from _iterated_names(given)
    elif dotted(expression):
        yield dotted(expression)


def _data(module: Module, call: ast.Call) -> Iterator[Claim]:
    name = module.called(call)
    pair = ".".join(name.split(".")[-2:])
    if name in _READERS or pair in _READERS:
        given = call.args[0] if call.args else None
        if given is not None and not isinstance(given, ast.Starred):
            yield from _paths(module, given)
    elif last(name) == "load_dataset":
        for key in ("data_files", "data_dir"):
            found = argument(call, key)
            if found is not None:
                yield from _paths(module, found)


def _paths(module: Module, given: ast.keyword | ast.expr) -> Iterator[Claim]:
    value = module.fold(value_of(given))
    if isinstance(value, (Unresolved, OneOf)):
        return
    (path,) = alternatives(value)
    if isinstance(path, tuple) and path and all(isinstance(item, str) and item for item in path):
        yield module.claim("shard_list", path, given)
    elif isinstance(path, str) and path and "://" not in path:
        yield module.claim("data_path", path, given)


#: Words that show that the script itself trains one model on several ranks, without a library that divides the data.
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel\b|hvd\.DistributedOptimizer|fully_shard\(|FullyShardedDataParallel\b|paddle\.DataParallel\b"
    r"|fleet\.distributed_model\("
)
#: Words of what divides data, or lets several ranks work on the same.
_DIVIDES = (
    r"lightning|Trainer\b|prepare_data_loader|webdataset|\.shard\(|split_dataset_by_node|num_shards|colossalai|mosaicml"
    r"|StreamingDataset|\[rank::|rank(?:\(\))?\s*::|::\s*(?:\w+\.)*(?:get_)?world|nodesplitter|split_by_node|composer"
    r"|ray\.train|parallel_state|tensor_parallel|pipeline_parallel|device_mesh|DeviceMesh|parallelize_|hybrid_configs"
    r"|worker_num"
)
_MAY_DIVIDE = re.compile(_DIVIDES)
#: With those of what takes effect only where a loader gets it, or is given to it.
_DIVIDING_WORDS = re.compile(
    rf"{_DIVIDES}|accelerat|fabric|deepspeed|DistributedSampler|BatchSampler|[sS]ampler\s*=|\bset_epoch\(|num_replicas"
)
#: An import alone divides nothing, and nor do samplers that draw from all of the data. A library that may divide is
#: recognised by its import.
_UNUSED = re.compile(
    r"^[ \t]*from[ \t]+(?:torch|paddle)[\w.]*[ \t]+import[ \t].*$"
    r"|\w*sampler\s*=\s*(?:\w+\.)*(?:Batch|Random|SubsetRandom|WeightedRandom)Sampler\(|\w*sampler=\w*sampler\b",
    re.MULTILINE,
)
_SHARED = re.compile(
    r"worker_info|rank|world|shard|split|islice|num_workers|process_index|num_replicas|partition|nodesplitter|hvd\.",
    re.IGNORECASE,
)
_OF_RANKS = re.compile(r"rank|world|num_replicas|process_index|hvd\.", re.IGNORECASE)
_INDEX_OF_RANK = re.compile(r"(?=.*rank)(?=.*(?:world|size|num_replicas|nranks|trainers))", re.IGNORECASE)
_EVALUATION_WORDS = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_PADDLE_LOADERS = ("paddle.io.DataLoader", "paddle.fluid.io.DataLoader")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader", "DataLoader", "data.DataLoader")


def may_divide(text: str, *, is_followed: bool = False) -> bool:
    """Return whether a script may use something that divides data among the ranks.

    Args:
        is_followed: whether what a loader gets, and where it goes, is known.
    """
    return (_MAY_DIVIDE if is_followed else _DIVIDING_WORDS).search(_UNUSED.sub("", text)) is not None


def is_for_evaluation(call: ast.Call, text: str) -> bool:
    """Return whether a loader is called, or made of, something for validation or tests."""
    line = text.splitlines()[call.lineno - 1] if call.lineno <= text.count("\n") + 1 else ""
    data = ast.unparse(call.args[0]) if call.args else ""
    return any(_EVALUATION_WORDS.search(each) for each in (line.partition("=")[0], data))


def unsplit_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about data that is not divided among the ranks."""
    text = module.file.text
    if _DISTRIBUTED.search(text) is None:
        return
    for call in module.named("WebDataset"):
        if call.args:
            yield from _web_datasets(module, call)
    indices = (module.text(node.slice) for node in module.nodes(ast.Subscript))
    # Each rank may take files of its own: `files[(n * world_size + rank) % len(files)]`.
    if may_divide(text) or any(map(_INDEX_OF_RANK.search, indices)):
        return
    for node in module.nodes(ast.ClassDef):
        if any(end_of(base) == "IterableDataset" for base in node.bases) and not _SHARED.search(module.source(node)):
            yield module.claim("data_unsplit", "stream", node, spelling=f"class {node.name}(IterableDataset)")
    for call in module.named("load_dataset"):
        if not _EVALUATION_WORDS.search(f"{module.bound_to(call)} {module.text(call)}") and _streams(call):
            yield module.claim("data_unsplit", "hub", call)
    for call in module.named("DataLoader"):
        if module.called(call) in _LOADERS and _shuffles_all(module, call):
            yield module.claim("data_unsplit", "loader", call)
        elif module.called(call) in _PADDLE_LOADERS and _shuffles_all(module, call):
            yield module.claim("data_unsplit", "paddle_loader", call)


def _streams(call: ast.Call) -> bool:
    """Return whether `load_dataset` certainly gets `streaming=True`."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "streaming"), None)
    return isinstance(given, ast.Constant) and given.value is True


def _shuffles_all(module: Module, call: ast.Call) -> bool:
    """Return whether a training loader shuffles its data without a sampler for the rank."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in given or len(call.args) > 3:
        return False
    data = argument(call, "dataset", 0)
    if data is not None and _OF_RANKS.search(module.source(module.definition(value_of(data)))):
        # `Subset(data, range(rank, len(data), world_size))`
        return False
    sampler = given.get("sampler") or given.get("batch_sampler")
    if sampler is not None:
        return _samples_all(module, sampler)
    shuffle = argument(call, "shuffle", 2)
    names = (module.bound_to(call), module.text(call.args[0]) if call.args else "")
    if shuffle is None or any(_EVALUATION_WORDS.search(name) for name in names):
        return False
    value = value_of(shuffle)
    return isinstance(value, ast.Constant) and value.value is True


#: Samplers that draw from all of the data, whatever the rank.
_RANDOM = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")


def _samples_all(module: Module, sampler: ast.expr) -> bool:
    """Return whether a sampler certainly draws at random from all of the data."""
    made = module.definition(sampler)
    if not isinstance(made, ast.Call):
        return False
    name = last(module.called(made))
    inner = argument(made, "sampler", 0)
    if name != "BatchSampler":
        return name in _RANDOM
    shuffle = value_of(given) if (given := argument(made, "shuffle")) is not None else None
    shuffles = isinstance(shuffle, ast.Constant) and shuffle.value is True
    return shuffles or (inner is not None and _samples_all(module, value_of(inner)))


def _web_datasets(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield a WebDataset without any division of its shards among the ranks."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in given or not isinstance(call.func, (ast.Attribute, ast.Name)):
        return
    splitter = given.get("nodesplitter")
    if (
        (splitter is not None and not is_none(splitter))
        or "resampled" in given
        or "ResampledShards" in module.text(call)
    ):
        return
    if _EVALUATION_WORDS.search(module.bound_to(call)) or "split_by_node" in module.file.text:
        return
    yield module.claim("data_unsplit", "webdataset", call)


#: Position of `batch_size` among the arguments, by the last name of the call; None: by keyword only.
_BATCHING: dict[str, int | None] = {
    "DataLoader": 1,
    "DistributedBatchSampler": 1,
    "BatchSampler": None,
    "batch": 1,
    "init": None,
    "set_batch_size": 0,
}
_ALIKE = (RankSet.ALL, RankSet.UNDECIDED)
#: A choice within a choice is followed to this depth.
_MAX_DEPTH = 4


def batch_claims(module: Module) -> Iterator[Claim]:
    """Yield each batch size that is computed from the rank: by a conditional on it, or by arithmetic with it."""
    for call in module.named(*_BATCHING):
        given = argument(call, "batch_size", _BATCHING[last(module.called(call))])
        if given is None:
            continue
        size = module.definition(value_of(given))
        if _is_by_rank(module, size):
            yield module.claim("batch_size_of_rank", module.text(size), given)


def _is_by_rank(module: Module, size: ast.expr, depth: int = 0) -> bool:
    """Return whether ranks certainly have different numbers."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(size, ast.IfExp):
        return _is_choice(module, size)
    if isinstance(size, ast.BinOp):
        return _is_arithmetic(module, size, depth)
    if isinstance(size, ast.Name):
        return _is_assigned_by_rank(module, size)
    if isinstance(size, ast.Subscript):
        return is_rank(module, size.slice) and _has_different(module, module.definition(size.value))
    if isinstance(size, ast.Call):
        return _is_returned_by_rank(module, size)
    return False


def _is_choice(module: Module, size: ast.IfExp) -> bool:
    """Return whether `size` is like `64 if rank == 0 else 32`: two different numbers."""
    if ranks_where_true(module, size.test) in _ALIKE:
        return False
    return _are_different(module, [size.body, size.orelse])


def _are_different(module: Module, sizes: Sequence[ast.expr]) -> bool:
    """Return whether all `sizes` are known numbers and at least two of them differ."""
    numbers = [alternatives(module.fold(size)) for size in sizes]
    return len(numbers) > 1 and all(len(found) == 1 for found in numbers) and len(set(numbers)) > 1


def _is_arithmetic(module: Module, size: ast.BinOp, depth: int) -> bool:
    """Return whether `size` is a sum or product with the rank in it, such as `32 * (1 + fleet.worker_index())`."""
    if not isinstance(size.op, (ast.Mult, ast.Add)):
        return False
    parts = [module.definition(part) for part in (size.left, size.right)]
    return any(is_rank(module, part) or _is_by_rank(module, part, depth + 1) for part in parts)


def _is_assigned_by_rank(module: Module, name: ast.Name) -> bool:
    """Return whether `if rank == 0: size = 64` and another assignment in the same function give the variable its
    value.
    """
    function = module.outline.function_of(name)
    given = [
        node
        for node in module.nodes(ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
        and module.outline.function_of(node) is function
    ]
    guarded = [node for node in given if _is_under_rank(module, node)]
    return bool(guarded) and _are_different(module, [node.value for node in given])


def _is_under_rank(module: Module, node: ast.AST) -> bool:
    """Return whether the innermost branch around a node depends on the rank."""
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If):
            return ranks_where_true(module, outer.test) not in _ALIKE
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False


def _is_returned_by_rank(module: Module, call: ast.Call) -> bool:
    """Return whether a table is asked for the rank's entry, or a function of the script returns a number by rank."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args and is_rank(module, call.args[0]):
        table = module.definition(call.func.value)
        return _has_different(module, table, call.args[1:2])
    functions = module.outline.functions(call.func.id) if isinstance(call.func, ast.Name) else ()
    if len(functions) != 1:
        return False
    returns = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Return) and node.value is not None]
    values = [node.value for node in returns if node.value is not None]
    if len(values) == 1:
        return isinstance(values[0], ast.IfExp) and _is_choice(module, values[0])
    return any(_is_under_rank(module, node) for node in returns) and _are_different(module, values)


def _has_different(module: Module, table: ast.expr, others: Sequence[ast.expr] = ()) -> bool:
    """Return whether a literal list or dictionary has different numbers."""
    if isinstance(table, ast.Dict):
        return _are_different(module, [*table.values, *others])
    return isinstance(table, (ast.List, ast.Tuple)) and _are_different(module, table.elts)


#: Functions of fleet that give a trainer its share.
_SHARES = ("get_file_shard", "split_files")


def divided_claims(module: Module) -> Iterator[Claim]:
    """Yield the lists that ranks divide, with the number of their items.

    Of the lists that a function of fleet divides, those that are written in its call are settings of the call.
    """
    text = module.file.text
    lists: list[tuple[ast.expr, ast.AST]] = []
    if "::" in text:
        for node in module.nodes(ast.Subscript):
            part = node.slice
            lower = part.lower if isinstance(part, ast.Slice) and part.step is not None else None
            if lower is not None and is_rank(module, lower):
                lists.append((node.value, node))
    if "//" in text:
        lists += _chunks(module)
    for call in module.named(*_SHARES):
        given = argument(call, "files", 0)
        if given is not None and "fleet" in module.called(call):
            lists.append((value_of(given), call))
    for listed, place in lists:
        function = module.outline.function_of(place)
        names = (module.text(listed), module.file.path, function.name if function is not None else "")
        found = None if any(map(UNSYNCHRONIZED_WORK.search, names)) else items_of(module, listed)
        if found is not None and not (found.certain and isinstance(place, ast.Call)):
            written = replace(module.claim("divided_items", found.number, place, condition=""), span=found.span)
            yield module.claim("divided_items", found.number, place, condition="", because=(written,))


#: Other names for the number of a rank.
_NUMBER = re.compile(r"(?:\w+\.)?(?:worker|trainer|node|shard|part)_?(?:id|idx|index|no)", re.IGNORECASE)


def _chunks(module: Module) -> Iterator[tuple[ast.expr, ast.AST]]:
    """Yield `per = len(files) // ranks` and `files[rank * per : (rank + 1) * per]`."""
    for node in module.nodes(ast.Assign):
        value, name = node.value, dotted(node.targets[0])
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv):
            continue
        counted = value.left.args if isinstance(value.left, ast.Call) and dotted(value.left.func) == "len" else []
        function = module.outline.function_of(node)
        for part in module.nodes(ast.Subscript) if counted and name else ():
            lower = part.slice.lower if isinstance(part.slice, ast.Slice) else None
            same = module.outline.function_of(part) is function and dotted(part.value) == dotted(counted[0])
            terms = [term for term in ast.walk(lower) if isinstance(term, ast.expr)] if lower is not None else []
            of_rank = any(is_rank(module, term) or _NUMBER.fullmatch(dotted(term)) for term in terms)
            if same and of_rank and any(dotted(term) == name for term in terms):
                yield counted[0], part


#: What runs a program that is named next.
_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh)")


def pipe_programs(module: Module) -> Iterator[Claim]:
    """Yield data sets of Paddle whose `pipe_command` names a program that is not near the script."""
    if "paddle" not in module.file.text:
        return
    for call in module.named("init", "set_pipe_command", "_set_pipe_command", "_init_distributed_settings"):
        given = argument(call, "pipe_command", None if last(module.called(call)) == "init" else 0)
        if given is None:
            continue
        known, because = module.fold(value_of(given)), None
        setting = setting_of(module, value_of(given)) if not isinstance(known, Known) else None
        if setting is not None and setting.node.kind is Kind.SCALAR:
            known = Known(setting.node.value)
            because = replace(module.claim("script_feature", "pipe_command", given, condition=""), span=setting.span)
        command = known.value if isinstance(known, Known) else None
        program = _program(command) if isinstance(command, str) else ""
        if program and not _exists(module, program):
            feature = module.feature(f"pipe_program_missing:{program}", given)
            yield replace(feature, because=(because,)) if because is not None else feature


def _program(command: str) -> str:
    """Return the script that a command runs, as far as it is a file of the job."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    runs = [word for word in words[1:2] if _INTERPRETER.fullmatch(words[0])] or [
        word for word in words[:1] if "/" in word
    ]
    plain = (word for word in runs if re.fullmatch(r"[\w./-]+\.(?:py|sh)", word) and not word.startswith(("/", "-")))
    return next(plain, "")


def _exists(module: Module, path: str) -> bool:
    """Return whether a relative path is a file, seen from the folder of the script, or from one above it."""
    folder = posixpath.dirname(module.file.path)
    folders = [folder]
    while folder:
        folder = posixpath.dirname(folder)
        folders.append(folder)
    paths = (posixpath.normpath(posixpath.join(each, path)) for each in folders)
    return any(isinstance(module.files.read(each), SourceFile) for each in paths if not each.startswith(".."))


#: Methods of a dataset that the workers of a loader run.
_READS = ("__getitem__", "__getitems__")
_GPU = re.compile(r"cuda(?::\d+)?|gpu(?::\d+)?")
_MAKES_GPU = re.compile(r"""f?["']cuda:|torch\.device\(f?["']cuda""")
_SPAWNS = re.compile(r"spawn|forkserver")


def datasets_on_gpu(module: Module) -> Iterator[Claim]:
    """Yield `gpu_in_dataset:CLASS` for each such class, and `loaded_by_workers:CLASS` for each that workers load."""
    for function in (each for name in _READS for each in module.outline.functions(name)):
        owner = module.parent(function)
        moves = [call for call in module.outline.calls_in(function) if _moves_to_gpu(module, call)]
        call = next((call for call in moves if not module.condition(call)), None)
        # Items may be kept on the CPU by an earlier return, or in a worker.
        returns = [each for each in module.nodes(ast.Return) if module.outline.function_of(each) is function]
        kept = "worker_info" in module.source(function) or any(map(module.condition, returns))
        if isinstance(owner, ast.ClassDef) and call is not None and not kept:
            yield module.claim("script_feature", f"gpu_in_dataset:{qualified(module, owner.name)}", call)
    if "DataLoader" not in module.file.text or not _uses_gpu(module):
        return
    texts = [module.file.text, *(each.text for each in imports.texts_of_modules(module)[0])]
    if any(map(_SPAWNS.search, texts)):
        return
    for call in module.named("DataLoader"):
        if not module.called(call).startswith("torch."):
            continue
        workers, dataset = argument(call, "num_workers"), argument(call, "dataset", 0)
        if workers is None or dataset is None or argument(call, "multiprocessing_context") is not None:
            continue
        count = module.fold(value_of(workers))
        made = module.definition(value_of(dataset))
        if isinstance(count, Known) and count.value and isinstance(made, ast.Call):
            yield module.claim("script_feature", f"loaded_by_workers:{qualified(module, module.called(made))}", workers)


def repeated_streams(module: Module) -> Iterator[Claim]:
    """Yield `stream_for_all_workers:CLASS` for each such class, and `streamed_by_workers:CLASS` where workers read it.

    Source: torch/utils/data/dataset.py of 2.13 (IterableDataset): each worker gets a copy of the data set.
    """
    for owner in module.nodes(ast.ClassDef):
        if not any(last(dotted(base)) == "IterableDataset" for base in owner.bases):
            continue
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef) or method.name != "__iter__":
                continue
            reads_file = "open(" in module.source(owner)
            if reads_file and _yields_all(module, method) and _OF_WORKERS.search(module.source(owner)) is None:
                yield module.claim("script_feature", f"stream_for_all_workers:{qualified(module, owner.name)}", method)
    for call in module.named("DataLoader"):
        workers, dataset = argument(call, "num_workers"), argument(call, "dataset", 0)
        if workers is None or dataset is None or argument(call, "worker_init_fn") is not None:
            continue
        count, made = module.fold(value_of(workers)), module.definition(value_of(dataset))
        if isinstance(count, Known) and isinstance(count.value, int) and count.value > 1 and isinstance(made, ast.Call):
            name = qualified(module, module.called(made))
            yield module.claim("script_feature", f"streamed_by_workers:{name}", workers)


#: Words of a stream that gives its workers different items, or draws them.
_OF_WORKERS = re.compile(
    r"worker|random|randint|randperm|shuffle|\.sample\(|shard|split_|_split|queue|socket|requests\.|consumer",
    re.IGNORECASE,
)


def _yields_all(module: Module, method: ast.FunctionDef) -> bool:
    """Return whether a method yields the items of a file, or of something that the object keeps, in one loop."""
    loops = [node for node in ast.walk(method) if isinstance(node, ast.For)]
    yields = [node for node in ast.walk(method) if isinstance(node, ast.Yield)]
    sources = [ast.unparse(loop.iter) for loop in loops]
    opened = [call for call in module.outline.calls_in(method) if last(dotted(call.func)) == "open"]
    return bool(loops and yields) and (bool(opened) or any("self." in each for each in sources))


def _uses_gpu(module: Module) -> bool:
    """Return whether the script itself certainly uses CUDA; a process that has not may fork workers that do."""
    return any(
        always_reached(module, call)
        and (module.called(call).endswith("cuda.set_device") or _moves_to_gpu(module, call))
        and not any(isinstance(outer, ast.ClassDef) for outer in module.outline.above(call))
        for call in (*module.named("set_device"), *module.named("cuda", "to"))
    )


def _moves_to_gpu(module: Module, call: ast.Call) -> bool:
    """Return whether a call puts a tensor on the GPU: `x.cuda()`, `x.to("cuda")`, `torch.zeros(1, device="cuda")`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return True
    given = argument(call, "device") or (call.args[0] if call.func.attr == "to" and call.args else None)
    if given is None:
        return False
    device = module.fold(value_of(given))
    if isinstance(device, Known):
        return isinstance(device.value, str) and _GPU.fullmatch(device.value) is not None
    return _MAKES_GPU.match(module.source(module.definition(value_of(given)))) is not None
