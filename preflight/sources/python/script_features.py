"""Features of a script that a framework refuses in company with others, or that make ranks wait for each other.

Each is stated as one claim, `script_feature`, at the place that shows it. Rules know which of them exclude each other,
together with settings of files and command lines (`data/combinations.toml` of the rules). A feature alone is fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from preflight.model.job import Claim
from preflight.sources.python import (
    checkpoint_names,
    dataset_files,
    horovod,
    model_features,
    point_to_point,
    single_ranks,
    worker_processes,
)
from preflight.sources.python.module import Module


def claims(module: Module) -> Iterator[Claim]:
    """Every feature of a script."""
    text = module.file.text
    for words, reader in _READERS:
        if any(word in text for word in words):
            yield from reader(module)


#: Readers of features, by words of which a script with the feature has one.
_READERS: tuple[tuple[tuple[str, ...], Callable[[Module], Iterable[Claim]]], ...] = (
    (("spawn", "start_processes"), worker_processes.spawned_at_import),
    (("spawn",), worker_processes.loaders_passed_to_spawn),
    (worker_processes.LOADERS, worker_processes.streams),
    (("FullyShardedDataParallel",), model_features.fsdp_parameters),
    (("get_peft_model", "fsdp_auto_wrap_policy"), model_features.adapters),
    (("load_in_4bit",), model_features.four_bits),
    (("half()", "GradScaler", "float16", "precision"), model_features.half_weights),
    (("checkpoint",), model_features.reentrant_checkpoints),
    (("find_unused_parameters",), model_features.unused_searched),
    (("PyLayer",), model_features.own_layers),
    (("DataParallel",), model_features.paddle_wrapped),
    (("DataParallel",), model_features.left_out_layers),
    (("torch.load",), model_features.loads),
    (("Plateau",), single_ranks.local_plateaus),
    (("DistributedDataParallel",), single_ranks.forward_on_one_rank),
    (("continue", "break"), single_ranks.skipped_collectives),
    (("is_file", "exists", "isfile", "is_dir", "isdir"), single_ranks.returns_by_file),
    (("requires_grad",), model_features.frozen_while_training),
    (("DistributedDataParallel",), model_features.ddp_without_search),
    (("accumulate(",), model_features.accumulation),
    (("optim_state_dict",), single_ranks.own_fsdp_state),
    (("def forward(",), model_features.left_out_of_classes),
    (("shuffle",), worker_processes.shuffled_beside_sampler),
    (("lambda", "def "), worker_processes.unpicklable),
    (("deepspeed",), model_features.deepspeed_parts),
    (("init_parallel_env", "init_process_group"), model_features.distributed_if_several),
    (("with_resources",), model_features.tuned_by_scaling),
    (("local_rank", "localrank"), single_ranks.items_of_local_rank),
    (("init_server",), model_features.servers_before_mode),
    (("group_sharded_parallel",), model_features.wrapped_twice),
    (("DataParallel", "fully_shard"), single_ranks.layers_of_one_rank),
    (("Process(",), worker_processes.forked_with_gpu),
    (("def prepare_data",), single_ranks.kept_by_prepare_data),
    (("RANK",), single_ranks.text_compared_with_number),
    (("no_sync",), model_features.steps_without_sync),
    (("process_first", "zero_first"), single_ranks.loaded_by_first),
    (("torch.load", "paddle.load", "load_file", "np.load"), checkpoint_names.claims),
    (("pipe_command",), dataset_files.pipe_programs),
    ((".recv(", ".Recv(", "recv("), point_to_point.exchanges),
    (("horovod", "byteps"), horovod.asked_before_start),
    (("horovod", "byteps"), horovod.single_pass_optimizers),
    (("backward(",), horovod.repeated_passes),
    (("extract", "unpack", "download", "copy"), single_ranks.prepared_by_first_rank),
)
