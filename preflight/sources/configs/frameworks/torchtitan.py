"""torchtitan's TOML.

Source of the keys: torchtitan/config/job_config.py of 0.2.1, and torchtitan/config_manager.py of 0.1.0 and before for
those that were renamed; torchtitan/config/configs.py of 0.3, where a configuration is a Python function
(`torchtitan/models/llama3/config_registry.py`).
"""

from __future__ import annotations

import posixpath
import re

from preflight.model.job import Known, as_int, lift
from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_float,
    as_path,
    word_of,
)
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.structured import Node, NodeClaims, value_of

_RECOMPUTE = {"full": "full", "selective": "selective", "none": "none"}

TORCHTITAN_KEYS = (
    Key("parallelism.data_parallel_replicate_degree", "replicate_degree", as_count),
    Key("training.data_parallel_replicate_degree", "replicate_degree", as_count),
    Key("parallelism.data_parallel_shard_degree", "shard_degree", as_count),
    Key("training.data_parallel_shard_degree", "shard_degree", as_count),
    Key("parallelism.tensor_parallel_degree", "tensor_parallel_size", as_count),
    Key("training.tensor_parallel_degree", "tensor_parallel_size", as_count),
    Key("parallelism.pipeline_parallel_degree", "pipeline_parallel_size", as_count),
    Key("experimental.pipeline_parallel_degree", "pipeline_parallel_size", as_count),
    Key("parallelism.context_parallel_degree", "context_parallel_size", as_count),
    Key("experimental.context_parallel_degree", "context_parallel_size", as_count),
    Key("parallelism.expert_parallel_degree", "expert_parallel_size", as_count),
    Key("training.num_tokens_per_microbatch_per_dp_rank", "tokens_per_micro_batch", as_count),
    Key("training.local_batch_size", "micro_batch_size_per_gpu", as_count),
    Key("training.batch_size", "micro_batch_size_per_gpu", as_count),
    Key("training.global_batch_size", "train_batch_size", as_count),
    Key("training.seq_len", "sequence_length", as_count),
    Key("training.max_context_length", "sequence_length", as_count),
    Key("training.steps", "train_steps", as_count),
    Key("training.max_norm", "gradient_clipping", as_float),
    Key("training.mixed_precision_param", "mixed_precision", word_of(FORMATS, "number format")),
    Key("training.dataloader.num_workers", "dataloader_workers"),
    Key("training.dataset_path", "data_path", as_path),
    Key("optimizer.lr", "learning_rate", as_float),
    Key("lr_scheduler.warmup_steps", "warmup_steps", as_float),
    Key("comm.init_timeout_seconds", "process_group_timeout_s", as_int),
    Key("activation_checkpoint.mode", "recompute", word_of(_RECOMPUTE, "mode of recomputation")),
)


def _also(node_claims: NodeClaims, root: Node) -> None:
    """State every key of a TOML file, and the checkpoint folder, which is below the dump folder, if checkpoints are
    enabled.
    """
    if node_claims.file.path.lower().endswith(".toml"):
        state_settings(node_claims, root, "torchtitan")
    section = root.at("checkpoint")
    switch = root.member("checkpoint", "enable") or root.member("checkpoint", "enable_checkpoint")
    if section is None or switch is None or value_of(switch.node) != Known(True):
        return
    node_claims.add_member("save_interval", section.member("interval"), as_count)
    node_claims.add_member("checkpoints_kept", section.member("keep_latest_k"), as_count)
    folder = section.member("folder")
    if folder is not None:
        above = root.text("job", "dump_folder") or "./outputs"
        node_claims.add_member(
            "checkpoint_path", folder, lambda value: lift(lambda item: _join_path(above, str(item)), value)
        )


def _join_path(above: str, folder: str) -> str:
    return posixpath.normpath(posixpath.join(above, folder))


TORCHTITAN = Framework(
    name="torchtitan",
    suffixes=(".toml",),
    signs=(
        re.compile(r"^\[(?:parallelism|training|job)\]", re.MULTILINE),
        re.compile(
            r"^[ \t]*(?:local_batch_size|seq_len|data_parallel_shard_degree|data_parallel_replicate_degree"
            r"|tensor_parallel_degree|pipeline_parallel_degree|context_parallel_degree|dump_folder)[ \t]*=",
            re.MULTILINE,
        ),
        re.compile(r"^\[(?:model|optimizer|checkpoint|activation_checkpoint|parallelism|metrics)\]", re.MULTILINE),
    ),
    keys=TORCHTITAN_KEYS,
    programs=("torchtitan.train",),
    imports=("torchtitan",),
    registries=("torchtitan/models", "torchtitan/experiments", "torchtitan/experiments/rl/examples"),
    also=_also,
    extended_by=("job.custom_config_module", "experimental.custom_args_module"),
)
