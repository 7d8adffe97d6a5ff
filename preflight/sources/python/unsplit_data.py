"""Claims about data that is not divided among ranks, so that every rank reads all of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, is_none, value_of
from preflight.sources.python.outline import end_of

#: Words that show that the script itself trains one model on several ranks, without a library that divides the data.
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel\b|hvd\.DistributedOptimizer|fully_shard\(|FullyShardedDataParallel\b|paddle\.DataParallel\b"
)
_DIVIDING_WORDS = re.compile(
    r"accelerat|lightning|Trainer\b|fabric|deepspeed|prepare_data_loader|DistributedSampler|ParallelBatchSampler|webdataset"
    r"|BatchSampler|[sS]ampler\s*=|num_replicas|\.shard\(|split_dataset_by_node|num_shards|colossalai|mosaicml|StreamingDataset"
    r"|\[rank::|rank(?:\(\))?\s*::|::\s*(?:\w+\.)*(?:get_)?world|nodesplitter|split_by_node|composer|ray\.train|parallel_state|tensor_parallel|pipeline_parallel|device_mesh|DeviceMesh|parallelize_",
)
#: An import alone divides nothing. A library that may divide is recognised by its import.
_UNUSED = re.compile(r"^[ \t]*from[ \t]+torch[\w.]*[ \t]+import[ \t].*$", re.MULTILINE)
_SHARED = re.compile(
    r"worker_info|rank|world|shard|split|islice|num_workers|process_index|num_replicas|partition|nodesplitter|hvd\.",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_PADDLE_LOADERS = ("paddle.io.DataLoader", "paddle.fluid.io.DataLoader")
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader", "DataLoader", "data.DataLoader")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about data that is not divided among the ranks."""
    text = module.file.text
    if _DISTRIBUTED.search(text) is None:
        return
    for call in module.named("WebDataset"):
        if call.args:
            yield from _web_datasets(module, call)
    if _DIVIDING_WORDS.search(_UNUSED.sub("", text)) is not None:
        return
    for node in module.nodes(ast.ClassDef):
        if any(end_of(base) == "IterableDataset" for base in node.bases) and not _SHARED.search(module.source(node)):
            yield module.claim("data_unsplit", "stream", node, spelling=f"class {node.name}(IterableDataset)")
    for call in module.named("load_dataset"):
        if not _EVALUATION.search(f"{module.bound_to(call)} {module.text(call)}") and _streams(call):
            yield module.claim("data_unsplit", "hub", call)
    for call in module.named("DataLoader"):
        if module.called(call) in _LOADERS and _shuffles_all(module, call):
            yield module.claim("data_unsplit", "loader", call)
        elif module.called(call) in _PADDLE_LOADERS and _shuffles_all(module, call):
            yield module.claim("data_unsplit", "paddle_loader", call)


def _streams(call: ast.Call) -> bool:
    """Whether `load_dataset` is certainly given `streaming=True`."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "streaming"), None)
    return isinstance(given, ast.Constant) and given.value is True


def _shuffles_all(module: Module, call: ast.Call) -> bool:
    """Training loaders that shuffle their data without a sampler."""
    given = {keyword.arg for keyword in call.keywords}
    if None in given or given & {"sampler", "batch_sampler"} or len(call.args) > 3:
        return False
    shuffle = argument(call, "shuffle", 2)
    names = (module.bound_to(call), module.text(call.args[0]) if call.args else "")
    if shuffle is None or any(_EVALUATION.search(name) for name in names):
        return False
    value = value_of(shuffle)
    return isinstance(value, ast.Constant) and value.value is True


def _web_datasets(module: Module, call: ast.Call) -> Iterator[Claim]:
    """A WebDataset without any division of its shards among the ranks."""
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
    if _EVALUATION.search(module.bound_to(call)) or "split_by_node" in module.file.text:
        return
    yield module.claim("data_unsplit", "webdataset", call)
