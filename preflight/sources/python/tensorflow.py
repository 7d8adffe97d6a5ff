"""Claims of TensorFlow scripts: the cluster written out in TF_CONFIG, and the strategy it is for."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from preflight.job import Claim, alternatives
from preflight.sources.python.module import Module, last

_STRATEGIES = (
    "ParameterServerStrategy",
    "ParameterServerStrategyV1",
    "ParameterServerStrategyV2",
    "MultiWorkerMirroredStrategy",
    "CollectiveAllReduceStrategy",
)
#: Parts of a cluster that only run time knows are kept as null.
_DEEPEST = 6
_MOST_ENTRIES = 2000


def claims(module: Module) -> Iterator[Claim]:
    """All claims about clusters and strategies."""
    if "TF_CONFIG" not in module.file.text and "Strategy" not in module.file.text:
        return
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Subscript) or module.name(target.value) != "os.environ":
                continue
            if getattr(module.fold(target.slice), "value", None) != "TF_CONFIG":
                continue
            dumped = module.definition(node.value)
            if isinstance(dumped, ast.Call) and module.called(dumped) == "json.dumps" and dumped.args:
                table = module.definition(dumped.args[0])
                if isinstance(table, ast.Dict):
                    yield module.claim("tf_config", json.dumps(_plain(module, table, 0)), table)
    for call in module.named(*_STRATEGIES):
        yield module.claim("tf_strategy", last(module.called(call)), call)


def _plain(module: Module, expression: ast.expr, depth: int) -> Any:
    """A literal as JSON knows it; null for what only run time knows."""
    meant = module.definition(expression)
    if depth > _DEEPEST:
        return None
    if isinstance(meant, ast.Dict):
        pairs = zip(meant.keys[:_MOST_ENTRIES], meant.values[:_MOST_ENTRIES], strict=True)
        return {
            str(key.value): _plain(module, value, depth + 1) for key, value in pairs if isinstance(key, ast.Constant)
        }
    if isinstance(meant, (ast.List, ast.Tuple)):
        return [_plain(module, item, depth + 1) for item in meant.elts[:_MOST_ENTRIES]]
    found = alternatives(module.fold(meant))
    return found[0] if len(found) == 1 and isinstance(found[0], (str, int, float, bool)) else None
