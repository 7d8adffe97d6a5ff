"""Claims about data that no rank gets a part of: every rank reads all of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.job import Claim
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, argument, is_none, value_of
from preflight.sources.python.outline import end_of

#: The script itself trains one model on several ranks, without a library that hands out the data.
_DISTRIBUTED = lazy_pattern(
    r"DistributedDataParallel\b|hvd\.DistributedOptimizer|fully_shard\(|FullyShardedDataParallel\b"
)
_HANDED_OUT = lazy_pattern(
    r"accelerat|lightning|Trainer\b|fabric|deepspeed|prepare_data_loader|DistributedSampler|ParallelBatchSampler|webdataset"
    r"|BatchSampler|[sS]ampler\s*=|num_replicas|\.shard\(|split_dataset_by_node|num_shards|colossalai|mosaicml|StreamingDataset"
    r"|\[rank::|rank\s*::|nodesplitter|split_by_node|composer|ray\.train|parallel_state|tensor_parallel|pipeline_parallel|device_mesh|DeviceMesh|parallelize_",
)
_SHARED = lazy_pattern(
    r"worker_info|rank|world|shard|split|islice|num_workers|process_index|num_replicas|partition|nodesplitter|hvd\.",
    re.IGNORECASE,
)
_EVALUATION = lazy_pattern(r"val|test|eval|dev|infer|predict", re.IGNORECASE)
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader", "DataLoader", "data.DataLoader")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about data that are not split among the ranks."""
    text = module.file.text
    if _DISTRIBUTED.search(text) is None:
        return
    for call in module.named("WebDataset"):
        if call.args:
            yield from _web(module, call)
    if _HANDED_OUT.search(text) is not None:
        return
    for node in module.nodes(ast.ClassDef):
        if any(end_of(base) == "IterableDataset" for base in node.bases) and not _SHARED.search(module.source(node)):
            yield module.claim("data_unsplit", "stream", node, spelling=f"class {node.name}(IterableDataset)")
    for call in module.named("DataLoader"):
        if module.called(call) in _LOADERS and _shuffles_all(module, call):
            yield module.claim("data_unsplit", "loader", call)


def _shuffles_all(module: Module, call: ast.Call) -> bool:
    """A loader for training that shuffles whatever it is given, with no sampler."""
    given = {keyword.arg for keyword in call.keywords}
    if None in given or given & {"sampler", "batch_sampler"} or len(call.args) > 3:
        return False
    shuffle = argument(call, "shuffle", 2)
    names = (module.bound_to(call), module.text(call.args[0]) if call.args else "")
    if shuffle is None or any(_EVALUATION.search(name) for name in names):
        return False
    value = value_of(shuffle)
    return isinstance(value, ast.Constant) and value.value is True


def _web(module: Module, call: ast.Call) -> Iterator[Claim]:
    """A WebDataset that says nothing about how its shards are divided among the ranks."""
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
