"""Settings of trainers, Accelerate and FSDP."""

from preflight.model.job.quantity import Quantity

TRAINING = (
    Quantity("mixed_precision", str, "precision of the trainer: no, fp16, bf16, fp8"),
    Quantity("learning_rate", float, "learning rate of the optimizer"),
    Quantity("weight_decay", float, "weight decay of the optimizer"),
    Quantity("warmup_steps", float, "steps of learning-rate warm-up"),
    Quantity("gradient_clipping", float, "maximum norm of the gradients"),
    Quantity("model_name", str, "model that is trained, by name or path"),
    Quantity("low_cpu_mem_usage", bool, "that a training script loads its model without a full copy in host memory"),
    Quantity("trainer_set_up", bool, "the call with which a script sets up its trainer before it loads the model"),
    Quantity("device_map", str, "where Accelerate puts the parts of a model that a training script loads"),
    Quantity("gradient_checkpointing", bool, "the trainer recomputes activations in the backward pass"),
    Quantity("save_strategy", str, "when the trainer saves: no, steps, epoch, best"),
    Quantity("save_steps", float, "steps between two checkpoints; below 1 a fraction of all steps"),
    Quantity("eval_strategy", str, "when the trainer evaluates: no, steps, epoch"),
    Quantity("eval_steps", float, "steps between two evaluations; below 1 a fraction of all steps"),
    Quantity("load_best_model", bool, "the trainer loads its best checkpoint at the end"),
    Quantity("sharding_library", str, "library that the trainer shards with: deepspeed or fsdp"),
    Quantity("lightning_strategy", str, "family of the strategy that Lightning is given: deepspeed, fsdp, ddp ..."),
    Quantity("lightning_precision", str, "precision that Lightning is given: bf16-mixed, 16-true ..."),
    Quantity("trainer_argument", str, "name of one argument that the trainer is given"),
)

ACCELERATE = (
    Quantity("accelerate_key", str, "one key of an Accelerate configuration, dotted below its section"),
    Quantity("distributed_type", str, "distributed_type of Accelerate: MULTI_GPU, DEEPSPEED, FSDP ..."),
    Quantity(
        "multinode_launcher", str, "launcher that starts DeepSpeed on several machines: pdsh, openmpi, standard ..."
    ),
    Quantity("rendezvous_backend_unread", str, "backend set under a key that the launcher does not read"),
)

FSDP = (
    Quantity("fsdp_version", int, "1 wraps in FullyShardedDataParallel, 2 uses fully_shard"),
    Quantity("fsdp_wrap_policy", str, "which modules become units: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP"),
    Quantity("fsdp_layer_classes", tuple, "names of the layer classes that become units"),
    Quantity("fsdp_sharding_strategy", str, "what is sharded: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD ..."),
    Quantity("fsdp_state_dict_type", str, "how checkpoints are written: FULL_, SHARDED_ or LOCAL_STATE_DICT"),
    Quantity("fsdp_backward_prefetch", str, "when the next unit is gathered in the backward pass"),
    Quantity("fsdp_forward_prefetch", bool, "the next unit is gathered in advance in the forward pass"),
    Quantity("fsdp_offload_params", bool, "parameters and gradients are kept in host memory"),
    Quantity("fsdp_use_orig_params", bool, "parameters keep their own names and shapes"),
    Quantity("fsdp_cpu_ram_efficient_loading", bool, "only the first rank loads the weights"),
    Quantity("fsdp_sync_module_states", bool, "the first rank's weights are sent to all others"),
    Quantity(
        "fsdp_reshard_after_forward", str, "whether (version 2) or how parameters are freed after the forward pass"
    ),
    Quantity("fsdp_activation_checkpointing", bool, "FSDP recomputes activations in the backward pass"),
)
