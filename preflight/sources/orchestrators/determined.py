"""Experiments of Determined: an entry point that runs on the slots of a trial.

Sources: docs/reference/training/experiment-config-reference of Determined 0.38; master/pkg/schemas/expconf.
"""

from __future__ import annotations

import re

from preflight.model.job import as_int
from preflight.sources.configs.frameworks.table import Framework, Key, as_count, as_float
from preflight.sources.formats.structured import Node, value_of
from preflight.sources.orchestrators.orchestrator import Accelerators, Orchestrator
from preflight.sources.orchestrators.task_files import TaskFileSource

#: Values that trials of a search have in common; those that it varies are objects with a type.
_PARAMETERS = Framework(
    name="determined",
    suffixes=(),
    signs=(),
    keys=(
        Key("global_batch_size", "train_batch_size", as_count),
        Key("per_device_train_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("learning_rate", "learning_rate", as_float),
    ),
)


def _slots(root: Node) -> Accelerators | None:
    member = root.member("resources", "slots_per_trial") or root.member("resources", "slots")
    return Accelerators(member, as_int(value_of(member.node)), total=True) if member is not None else None


DETERMINED = Orchestrator(
    name="determined",
    signs=(
        re.compile(r"^entrypoint:", re.MULTILINE),
        re.compile(
            r"^(?:searcher|resources|hyperparameters|max_restarts|checkpoint_storage|bind_mounts|records_per_epoch"
            r"|workspace|project|min_validation_period|environment):",
            re.MULTILINE,
        ),
    ),
    code="entrypoint",
    environment=("environment.environment_variables",),
    nodes="",
    accelerators=_slots,
    variables={},
    others=(re.compile(r"^(?:apiVersion|services|run|commands|jobs|setup):", re.MULTILINE),),
    parameters="hyperparameters",
    framework=_PARAMETERS,
    is_word_list=True,
)
DETERMINED_SOURCE = TaskFileSource(DETERMINED)
