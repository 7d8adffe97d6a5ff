"""Claims of Horovod scripts: initialization, wrappers and broadcasts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, last

_OPTIMIZERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "DistributedTrainer")
#: Calls that give all ranks the same initial weights; elastic states do it on synchronisation.
_BROADCAST = re.compile(
    r"broadcast_(?:parameters|variables|global_variables|object|optimizer_state)|[Bb]roadcastGlobalVariables\w*"
    r"|BroadcastParameters|(?:Torch|TensorFlow|TensorFlowKeras|Object)?(?:Keras)?State\(|elastic\.run|hvd\.broadcast\("
)
#: What keeps and restores the state of an elastic training.
_ELASTIC = re.compile(r"elastic\.run|(?:Torch|TensorFlow|TensorFlowKeras|Object|Keras)State\(|elastic\.\w*State")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about Horovod."""
    if "horovod" not in module.file.text:
        return
    broadcast = _BROADCAST.search(module.file.text)
    if broadcast is not None:
        yield module.claim("horovod_broadcasts", broadcast.group(0).rstrip("("), module.tree, condition="")
    elastic = _ELASTIC.search(module.file.text)
    if elastic is not None:
        yield module.claim("elastic_state", elastic.group(0).rstrip("("), module.tree, condition="")
    for call in module.named("init", *_OPTIMIZERS):
        name = module.called(call)
        if not name.startswith("horovod."):
            continue
        if last(name) == "init":
            yield module.claim("horovod_started", True, call)
        elif last(name) in _OPTIMIZERS:
            yield module.claim("horovod_optimizer", last(name), call)
