"""The vocabulary of claims: every quantity a source may state, with its type, unit and meaning.

A source states only these (or `env.NAME` for a variable the ranks will see). `agrees` marks the quantities for
which the one disagreement rule compares what sets them with what requires them.
"""

from __future__ import annotations

from dataclasses import dataclass

ENVIRONMENT_PREFIX = "env."


@dataclass(frozen=True, slots=True)
class Quantity:
    """One entry of the vocabulary. `kind` is the Python type of a known value."""

    name: str
    kind: type
    meaning: str
    unit: str = ""
    agrees: bool = False


_ALL = (
    # How many of what is started.
    Quantity("nodes", int, "nodes that take part in the launch", "nodes", agrees=True),
    Quantity("min_nodes", int, "lower end of an elastic range of nodes", "nodes"),
    Quantity("tasks", int, "tasks (copies of the launched command) the scheduler or MPI starts in all", "tasks"),
    Quantity("tasks_per_node", int, "copies of the launched command started on each node", "tasks", agrees=True),
    Quantity("processes_per_node", int, "ranks the launcher starts on each node", "processes", agrees=True),
    Quantity("world_size", int, "ranks of the job in all", "ranks", agrees=True),
    Quantity("gpus_per_node", int, "GPUs the job holds on each node", "GPUs", agrees=True),
    Quantity("gpus_per_task", int, "GPUs the scheduler binds to each task", "GPUs"),
    Quantity("cpus_per_task", int, "CPU cores of each task", "cores"),
    Quantity("memory_per_node_mib", int, "memory the scheduler grants on each node", "MiB"),
    Quantity("time_limit_s", int, "wall time after which the scheduler ends the job", "s"),
    Quantity("partition", str, "scheduler partition or queue"),
    Quantity("hosts", tuple, "names of the job's nodes in rank order"),
    Quantity("host_slots", int, "slots of one host of a hostfile (scope.node names the host)", "slots"),
    Quantity("node_rank", int, "index of the node this launch line is for"),
    Quantity("rank", int, "global rank of the process"),
    Quantity("local_rank", int, "rank of the process on its node"),
    # How ranks find each other.
    Quantity("rendezvous_backend", str, "torchrun back end: static, c10d, etcd ..."),
    Quantity("rendezvous_endpoint", str, "host[:port] given to --rdzv_endpoint"),
    Quantity("rendezvous_id", str, "job id given to --rdzv_id"),
    Quantity("standalone", bool, "torchrun --standalone: a single-node rendezvous of its own"),
    Quantity("master_addr", str, "host name or address of rank 0's store"),
    Quantity("master_port", int, "TCP port of rank 0's store"),
    Quantity("backend", str, "process-group back end: nccl, gloo, mpi ..."),
    Quantity("process_group_timeout_s", int, "time-out of collectives", "s"),
    Quantity("max_restarts", int, "times the launcher restarts a failed group"),
    # Batch and parallel sizes.
    Quantity("train_batch_size", int, "samples of one optimizer step over all ranks (global batch)", "samples"),
    Quantity("micro_batch_size_per_gpu", int, "samples of one forward pass on one rank", "samples"),
    Quantity("gradient_accumulation_steps", int, "forward passes per optimizer step"),
    Quantity("tensor_parallel_size", int, "ranks that share one layer"),
    Quantity("pipeline_parallel_size", int, "pipeline stages"),
    Quantity("context_parallel_size", int, "ranks that share one sequence"),
    Quantity("expert_parallel_size", int, "ranks that share the experts"),
    Quantity("data_parallel_size", int, "model replicas"),
    Quantity("zero_stage", int, "DeepSpeed ZeRO stage"),
    Quantity("fp16_enabled", bool, "DeepSpeed fp16.enabled"),
    Quantity("bf16_enabled", bool, "DeepSpeed bf16.enabled"),
    Quantity("elasticity_enabled", bool, "DeepSpeed elasticity: the batch sizes are then computed, not read"),
    # Parameter servers.
    Quantity("ps_mode", bool, "the launch starts parameter servers and trainers, not a collective job"),
    Quantity("ps_servers", int, "parameter servers in all", "servers"),
    Quantity("ps_workers", int, "trainers in all", "trainers"),
    Quantity("ps_server_endpoints", tuple, "host:port of every parameter server, in index order"),
    Quantity("ps_worker_endpoints", tuple, "host:port of every trainer, in index order"),
    Quantity("ps_role", str, "role of the process: PSERVER, TRAINER ..."),
    Quantity("ps_index", int, "index of the process among those of its role"),
    Quantity("ps_current_endpoint", str, "the process's own host:port"),
    Quantity("paddle_version", str, "PaddlePaddle version the job names"),
    # What the training script does.
    Quantity("script", str, "the training script, relative to the root"),
    Quantity("uses_ddp", bool, "wraps a model in DistributedDataParallel"),
    Quantity("uses_fsdp", bool, "wraps a model in FullyShardedDataParallel or fully_shard"),
    Quantity("training_framework", str, "library whose trainer drives the loop (and calls set_epoch itself)"),
    Quantity("local_rank_argument", str, "spelling of the local-rank option the script declares"),
    Quantity("strict_arguments", bool, "the script's own parser stops at options that the script does not declare"),
    Quantity("dataloader", str, "variable a DataLoader is bound to; its other claims name this one in `because`"),
    Quantity("distributed_sampler", str, "variable a DistributedSampler is bound to; empty when to none"),
    Quantity("sampler_shuffle", bool, "whether that sampler shuffles"),
    Quantity("set_epoch_called", bool, "set_epoch is called somewhere in the script"),
    Quantity("dataloader_workers", int, "DataLoader num_workers", "processes"),
    Quantity("dataloader_drop_last", bool, "DataLoader drop_last"),
    Quantity("dataloader_shuffle", bool, "DataLoader shuffle=True"),
    Quantity("dataloader_sampler", str, "variable given as DataLoader sampler="),
    Quantity("dataloader_batch_size", int, "DataLoader batch_size: samples of one rank's step", "samples"),
    Quantity("loop_over_epochs", bool, "the script iterates over epochs"),
    Quantity("serial_work", str, "long work done by one rank while others wait (download, preprocess, map ...)"),
    Quantity("argument_default", str, "argparse default; `scope.role` is empty, the spelling names the option"),
    Quantity("data_path", str, "file or directory the ranks read their data from"),
    Quantity("shard_list", tuple, "file names of the data shards, where the files spell them out"),
    # The job context: where ranks really run.
    Quantity("interpreter", str, "Python interpreter the ranks are started with"),
    Quantity("working_directory", str, "directory the ranks start in"),
    Quantity("container", str, "container image and runtime the ranks run in"),
    Quantity("prelude", str, "set-up line before the launch (module load, conda activate, source venv)"),
)

QUANTITIES: dict[str, Quantity] = {quantity.name: quantity for quantity in _ALL}


def is_known(name: str) -> bool:
    """Whether a source may state this quantity."""
    return name in QUANTITIES or (name.startswith(ENVIRONMENT_PREFIX) and len(name) > len(ENVIRONMENT_PREFIX))
