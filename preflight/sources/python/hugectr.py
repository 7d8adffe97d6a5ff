"""HugeCTR's solver: `hugectr.CreateSolver(vvgpu=[[0, 1], [0, 1]], batchsize=16384)`.

Source: HugeCTR 25.03, HugeCTR/src/resource_manager.cpp (which requires one process for each list of `vvgpu`) and
HugeCTR/src/pybind/model.cpp (which divides the batch equally among all GPUs).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Relation, as_int
from preflight.sources.python.module import Module, argument, value_of


def claims(module: Module) -> Iterator[Claim]:
    """The processes, GPUs and batch of every solver."""
    for call in module.named("CreateSolver"):
        if not module.called(call).startswith("hugectr"):
            continue
        devices = argument(call, "vvgpu")
        lists = module.definition(value_of(devices)) if devices is not None else None
        if devices is not None and isinstance(lists, ast.List):
            inner = [module.definition(item) for item in lists.elts]
            if inner and all(isinstance(item, ast.List) and item.elts for item in inner):
                yield module.claim(
                    "world_size", Known(len(inner)), devices, relation=Relation.REQUIRES, source="hugectr"
                )
                most = max(len(item.elts) for item in inner if isinstance(item, ast.List))
                yield module.claim("gpus_per_node", Known(most), devices, relation=Relation.AT_LEAST, source="hugectr")
        batch = argument(call, "batchsize")
        if batch is not None:
            yield module.claim("train_batch_size", as_int(module.fold(value_of(batch))), batch, source="hugectr")
