"""Batch sizes, parallel sizes, precision: what is trained, and how it is cut up."""

from preflight.job.quantity import Quantity

SIZES = (
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
)
