"""Claims of TensorFlow scripts: the cluster in a literal TF_CONFIG, and the strategy that uses it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from preflight._util.budget import truncate
from preflight.model.job import Claim, alternatives
from preflight.sources.python.module import Module, last

_STRATEGIES = (
    "ParameterServerStrategy",
    "ParameterServerStrategyV1",
    "ParameterServerStrategyV2",
    "MultiWorkerMirroredStrategy",
    "CollectiveAllReduceStrategy",
)
#: Parts of a cluster that are known only at run time become null.
_MAX_DEPTH = 6
_MAX_ENTRIES = 2000


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
    """A literal as JSON; null for values known only at run time."""
    meant = module.definition(expression)
    if depth > _MAX_DEPTH:
        return None
    if isinstance(meant, ast.Dict):
        keys = truncate(meant.keys, _MAX_ENTRIES, "entries of TF_CONFIG")
        pairs = zip(keys, meant.values[:_MAX_ENTRIES], strict=True)
        return {
            str(key.value): _plain(module, value, depth + 1) for key, value in pairs if isinstance(key, ast.Constant)
        }
    if isinstance(meant, (ast.List, ast.Tuple)):
        return [_plain(module, item, depth + 1) for item in truncate(meant.elts, _MAX_ENTRIES, "entries of TF_CONFIG")]
    found = alternatives(module.fold(meant))
    return found[0] if len(found) == 1 and isinstance(found[0], (str, int, float, bool)) else None
