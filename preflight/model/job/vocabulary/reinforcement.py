"""Reinforcement learning of language models: a step's prompts and responses, and the engines that generate them."""

from preflight.model.job.quantity import Quantity

REINFORCEMENT = (
    Quantity("prompts_per_step", int, "prompts of one reinforcement-learning step", "prompts"),
    Quantity("responses_per_prompt", int, "responses that are generated for each prompt", "responses"),
    Quantity("update_batch_size", int, "prompts (verl, SkyRL) of one optimizer step within a step", "prompts"),
    Quantity("update_micro_batch_size_per_gpu", int, "responses of one forward pass on one rank", "responses"),
    Quantity(
        "update_micro_batch_size",
        int,
        "responses of one forward pass on all ranks, as set for older versions of verl",
        "responses",
    ),
    Quantity("score_micro_batch_size_per_gpu", int, "responses of one pass that only scores them", "responses"),
    Quantity("dynamic_batch", bool, "micro batches are split by tokens, so their sizes need not divide evenly"),
    Quantity("rl_strategy", str, "how the trained model is sharded: fsdp, fsdp2, megatron"),
    Quantity("remove_padding", bool, "sequences are packed without padding"),
    Quantity("rollout_engine", str, "engine that generates responses: vllm, sglang, hf"),
    Quantity("rollout_engines", int, "total number of engines that generate responses", "engines"),
    Quantity("rollout_gpus", int, "GPUs of all engines that generate responses", "GPUs"),
    Quantity("rollout_tensor_parallel_size", int, "GPUs that share one layer in an engine", "GPUs"),
    Quantity("rollout_data_parallel_size", int, "replicas inside one engine"),
    Quantity("rollout_pipeline_parallel_size", int, "pipeline stages of one engine"),
    Quantity("colocated", bool, "training and generation share the same GPUs"),
    Quantity("allocation", str, "AReaL's allocation of GPUs to engines, as written"),
    Quantity("framework_variant", bool, "the program is not the framework's own, and may have fewer checks"),
    Quantity(
        "config_unresolvable", tuple, "key of a Hydra configuration with an interpolation that leads nowhere, and why"
    ),
    Quantity("config_refused", str, "why Hydra stops before the program starts"),
)
