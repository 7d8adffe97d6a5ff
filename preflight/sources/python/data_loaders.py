"""Claims about how ranks get their data: samplers, loaders, epochs, and files named in the script.

The claims of one loader or sampler belong together: each names the claim of its object (`dataloader`,
`distributed_sampler`) in `because`, so that a rule can distinguish two loaders of one script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from preflight.model.job import Claim, Known, OneOf, Strength, Unresolved, alternatives
from preflight.sources.python.module import Module, argument, is_none, last, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import is_local, is_rank

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
_READERS = {
    "numpy.load",
    "numpy.memmap",
    "glob.glob",
    "glob.iglob",
    "pandas.read_csv",
    "pandas.read_parquet",
    "h5py.File",
    "datasets.load_from_disk",
    "datasets.ImageFolder",
    "webdataset.WebDataset",
    "tensorflow.data.TFRecordDataset",
    "data.TFRecordDataset",
    "lmdb.open",
}
#: Names of data that is not for training, as whole words.
_EVALUATION_DATA = re.compile(
    r"(?:^|_)(?:val|valid|validation|test|eval|evaluation|dev|predict|infer)(?:_?(?:set|data|dataset|ds|dst))?(?:$|_)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:^|_)epochs?(?:$|_|\d)", re.IGNORECASE)
_EVALUATION = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_COUNTERS = ("range", "trange", "tqdm")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about samplers, loaders, epochs and data files."""
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
        yield module.claim("sampler_shuffle", module.fold(value_of(given)), given, because=(sampler,))


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
    """The loaders that have a sampler and are assigned to a variable, by its name, without those for evaluation."""
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
    """`for epoch in range(...)`, or a loop over a count with a loop over a loader in it.

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
    """Whether a loop inside iterates over a loader that was made before: one made inside the loop starts again each
    time.
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
    """The names that a loop iterates over: `dl`, and those inside `enumerate(dl)` or `tqdm(dl)`, but not that of
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
