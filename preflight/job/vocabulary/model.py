"""The model: its shape, its number formats, and what of it is kept where. What memory follows from."""

from preflight.job.quantity import Quantity

MODEL = (
    Quantity("num_layers", int, "transformer layers"),
    Quantity("hidden_size", int, "width of the model"),
    Quantity("ffn_hidden_size", int, "width inside the feed-forward part of a layer"),
    Quantity("attention_heads", int, "attention heads of a layer"),
    Quantity("query_groups", int, "groups of heads that share keys and values"),
    Quantity("sequence_length", int, "tokens of one sample", "tokens"),
    Quantity("vocabulary_size", int, "tokens the model knows"),
    Quantity("num_experts", int, "experts of a layer in all"),
    Quantity("gated_feed_forward", bool, "the feed-forward part has a gate (SwiGLU), so three matrices"),
    Quantity("recompute", str, "which activations are computed again in the backward pass: full, selective, none"),
    Quantity("sequence_parallel", bool, "the parts that tensor parallelism leaves whole are split along the sequence"),
    Quantity("distributed_optimizer", bool, "optimizer states are split over the data-parallel ranks"),
    Quantity("layers_per_virtual_stage", int, "layers of one of several chunks that a pipeline stage holds"),
    Quantity("train_samples", int, "samples of the whole training", "samples"),
    Quantity("train_steps", int, "optimizer steps of the whole training", "steps"),
    Quantity("save_interval", int, "optimizer steps between two checkpoints", "steps"),
    Quantity("fp8_format", str, "8-bit number format of matrix products"),
    Quantity("fp16_type", str, "DeepSpeed fp16.type"),
    Quantity("fp16_loss_scale", float, "loss scale; 0 is a dynamic one"),
    Quantity("offload_optimizer_device", str, "where ZeRO keeps optimizer states: cpu, nvme, none"),
    Quantity("offload_param_device", str, "where ZeRO-3 keeps parameters: cpu, nvme, none"),
    Quantity("optimizer_type", str, "optimizer by name"),
    Quantity("torch_adam", bool, "DeepSpeed takes torch's Adam, and compiles none of its own"),
    Quantity("communication_data_type", str, "number format in which gradients are exchanged"),
    Quantity("overlap_comm", bool, "gradients are exchanged while the backward pass goes on"),
    Quantity("reduce_bucket_size", int, "elements that are reduced together", "elements"),
    Quantity("deepspeed_key", str, "a key of DeepSpeed's configuration, dotted below its section"),
)
