"""TOML of prime-rl: nodes and GPUs of trainer and inference, degrees, batch, length.

Source of the keys: src/prime_rl/configs (rl.py: deployment; trainer.py: model, optim, ckpt; orchestrator.py) and
examples/ of prime-rl 0.5. The program `rl` starts the trainer's ranks itself; inference runs on separate nodes.
"""

from __future__ import annotations

import re

from preflight.sources.configs.frameworks.table import Framework, Key, as_count, as_float, as_text

PRIME_RL = Framework(
    name="prime-rl",
    suffixes=(".toml",),
    signs=(
        re.compile(
            r"^\[{1,2}(?:orchestrator|inference|deployment|trainer|env|buffer|sampling|model|data|client|weight_broadcast)"
            r"(?:\.[\w.]+)?\]{1,2}",
            re.MULTILINE,
        ),
        re.compile(
            r"^\[{1,2}(?:orchestrator|inference|deployment|monitors|ckpt|wandb|env|buffer|sampling|model\.(?:ac|lora)"
            r"|trainer\.\w+|slurm)(?:\.[\w.]+)?\]{1,2}",
            re.MULTILINE,
        ),
        re.compile(
            r"^[ \t]*(?:max_steps|batch_size|num_train_(?:nodes|gpus)|num_infer_(?:nodes|gpus)|rollouts_per_example"
            r"|group_size|max_async_level|impl|dp|tp)[ \t]*=",
            re.MULTILINE,
        ),
    ),
    others=(re.compile(r"^\[(?:project|build-system|tool|job|parallelism|training)(?:\.[\w.-]+)?\]", re.MULTILINE),),
    keys=(
        Key("deployment.num_train_nodes", "nodes", as_count),
        Key("deployment.num_nodes", "nodes", as_count),
        Key("deployment.num_train_gpus", "processes_per_node", as_count),
        Key("deployment.gpus_per_node", "gpus_per_node", as_count),
        Key("deployment.num_infer_gpus", "rollout_gpus", as_count),
        Key("inference.parallel.tp", "rollout_tensor_parallel_size", as_count),
        Key("inference.parallel.dp", "rollout_data_parallel_size", as_count),
        Key("inference.vllm.tensor_parallel_size", "rollout_tensor_parallel_size", as_count),
        Key("inference.vllm.data_parallel_size", "rollout_data_parallel_size", as_count),
        Key("trainer.model.cp", "context_parallel_size", as_count),
        Key("trainer.model.ep", "expert_parallel_size", as_count),
        Key("trainer.model.tp", "tensor_parallel_size", as_count),
        Key("trainer.model.dp_replicate", "replicate_degree", as_count),
        Key("model.cp", "context_parallel_size", as_count),
        Key("model.ep", "expert_parallel_size", as_count),
        Key("model.dp_replicate", "replicate_degree", as_count),
        Key("seq_len", "sequence_length", as_count),
        Key("trainer.model.seq_len", "sequence_length", as_count),
        Key("data.seq_len", "sequence_length", as_count),
        Key("data.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("data.batch_size", "train_batch_size", as_count),
        Key("max_steps", "train_steps", as_count),
        Key("trainer.optim.lr", "learning_rate", as_float),
        Key("optim.lr", "learning_rate", as_float),
        Key("ckpt.interval", "save_interval", as_count),
        Key("model.name", "model_name", as_text),
        Key("trainer.model.name", "model_name", as_text),
    ),
)
