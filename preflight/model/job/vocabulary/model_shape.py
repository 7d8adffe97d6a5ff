"""The model: its shape, its number formats, and where its states are kept. Memory follows from these."""

from preflight.model.job.quantity import Quantity

MODEL = (
    Quantity("num_layers", int, "transformer layers"),
    Quantity("hidden_size", int, "width of the model"),
    Quantity("ffn_hidden_size", int, "width inside the feed-forward part of a layer"),
    Quantity("expert_ffn_hidden_size", int, "width inside each expert, if it differs from other layers"),
    Quantity("expert_layers", str, "which layers have experts, in the notation of Megatron-LM's --moe-layer-freq"),
    Quantity("attention_heads", int, "attention heads of a layer"),
    Quantity("query_groups", int, "groups of heads that share keys and values"),
    Quantity("sequence_length", int, "tokens of one sample", "tokens"),
    Quantity("vocabulary_size", int, "tokens in the vocabulary"),
    Quantity("num_experts", int, "total number of experts of a layer"),
    Quantity("model_parameters", int, "parameters of the whole model, computed from its own configuration"),
    Quantity("gated_feed_forward", bool, "the feed-forward part has a gate (SwiGLU), so three matrices"),
    Quantity("recompute", str, "which activations are recomputed in the backward pass: full, selective, none"),
    Quantity(
        "sequence_parallel", bool, "the parts that tensor parallelism does not split are split along the sequence"
    ),
    Quantity("distributed_optimizer", bool, "optimizer states are split over the data-parallel ranks"),
    Quantity("layers_per_virtual_stage", int, "layers of each chunk, if a pipeline stage holds several"),
    Quantity("train_samples", int, "samples of the whole training run", "samples"),
    Quantity("train_steps", int, "optimizer steps of the whole training run", "steps"),
    Quantity("save_interval", int, "optimizer steps between two checkpoints", "steps"),
    Quantity("fp8_format", str, "8-bit number format of matrix products"),
    Quantity("fp16_type", str, "DeepSpeed fp16.type"),
    Quantity("fp16_loss_scale", float, "loss scale; 0 is a dynamic one"),
    Quantity("offload_optimizer_device", str, "where ZeRO keeps optimizer states: cpu, nvme, none"),
    Quantity("offload_param_device", str, "where ZeRO-3 keeps parameters: cpu, nvme, none"),
    Quantity("optimizer_type", str, "optimizer by name"),
    Quantity("torch_adam", bool, "DeepSpeed uses torch's Adam instead of compiling its own"),
    Quantity("communication_data_type", str, "number format in which gradients are exchanged"),
    Quantity("overlap_comm", bool, "gradients are exchanged during the backward pass"),
    Quantity("reduce_bucket_size", int, "elements that are reduced together", "elements"),
    Quantity("deepspeed_key", str, "a key of DeepSpeed's configuration, dotted below its section"),
)
