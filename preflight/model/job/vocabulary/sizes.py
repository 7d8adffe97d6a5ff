"""Batch sizes, parallel sizes, precision: what is trained, and how it is divided."""

from preflight.model.job.quantity import Quantity

SIZES = (
    Quantity("train_batch_size", int, "samples of one optimizer step over all ranks (global batch)", "samples"),
    Quantity("micro_batch_size_per_gpu", int, "samples of one forward pass on one rank", "samples"),
    Quantity("gradient_accumulation_steps", int, "forward passes per optimizer step"),
    Quantity("tensor_parallel_size", int, "ranks that share one layer"),
    Quantity("pipeline_parallel_size", int, "pipeline stages"),
    Quantity("context_parallel_size", int, "ranks that share one sequence"),
    Quantity("expert_parallel_size", int, "ranks that share the experts"),
    Quantity("data_parallel_size", int, "model replicas"),
    Quantity("tokens_per_micro_batch", int, "tokens of one forward pass on one data-parallel rank", "tokens"),
    Quantity("replicate_degree", int, "copies of the ranks that shard one model among them"),
    Quantity("shard_degree", int, "ranks that shard the parameters of one model (FSDP)"),
    Quantity("zero_stage", int, "DeepSpeed ZeRO stage"),
    Quantity("fp16_enabled", bool, "DeepSpeed fp16.enabled"),
    Quantity("bf16_enabled", bool, "DeepSpeed bf16.enabled"),
    Quantity("elasticity_enabled", bool, "DeepSpeed elasticity: the batch sizes are computed from other settings"),
)
