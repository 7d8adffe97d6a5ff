"""Files of trainers with a few keys of their own: NeMo Automodel, VeOmni, lingua, LitGPT, GraphStorm, MindFormers,
recipes of SageMaker HyperPod, tests of Megatron-LM, and HugeCTR's JSON.

Source of the keys: nemo_automodel 0.3 (recipes and components/distributed, components/training/step_scheduler.py);
VeOmni 0.2 (veomni/arguments/arguments_types.py); lingua (lingua/args.py, distributed.py); LitGPT 0.5 (litgpt/args.py,
pretrain.py); GraphStorm 0.5 (graphstorm/config/argument.py); MindFormers 1.7 (configs/,
mindformers/tools/register/template.py); sagemaker-hyperpod-recipes 1.8 (recipes_collection/recipes); Megatron-LM 0.15
(tests/functional_tests/test_cases); HugeCTR 2.3 (docs/configuration_file_setup.md).
"""

from __future__ import annotations

import re

from preflight._util.secret_names import is_secret
from preflight.model.job import Relation, Value, lift
from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_flag,
    as_float,
    as_path,
    as_text,
    map_alternatives,
    word_of,
)
from preflight.sources.formats.structured import Kind, Node, NodeClaims, value_of

_YAML = (".yaml", ".yml")


def _variables(node_claims: NodeClaims, root: Node) -> None:
    """State the environment variables (`ENV_VARS`) of a Megatron-LM test."""
    section = root.at("ENV_VARS")
    for member in section.in_force if section is not None else ():
        if member.node.kind is Kind.SCALAR and member.key.isidentifier() and not is_secret(member.key):
            node_claims.add(f"env.{member.key}", lift(str, value_of(member.node)), member)


AUTOMODEL = Framework(
    name="automodel",
    suffixes=_YAML,
    signs=(
        re.compile(r"^step_scheduler:", re.MULTILINE),
        re.compile(r"^[ \t]+(?:local_batch_size|global_batch_size):", re.MULTILINE),
    ),
    keys=(
        Key("step_scheduler.global_batch_size", "train_batch_size", as_count),
        Key("step_scheduler.local_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("step_scheduler.max_steps", "train_steps", as_count),
        Key("step_scheduler.ckpt_every_steps", "save_interval", as_count),
        *(
            Key(f"{section}.{key}", quantity, as_count)
            for section in ("distributed", "distributed_config")
            for key, quantity in (
                ("tp_size", "tensor_parallel_size"),
                ("cp_size", "context_parallel_size"),
                ("pp_size", "pipeline_parallel_size"),
                ("ep_size", "expert_parallel_size"),
                ("dp_size", "data_parallel_size"),
                ("dp_replicate_size", "replicate_degree"),
            )
        ),
        Key("distributed.sequence_parallel", "sequence_parallel", as_flag),
        Key("distributed.activation_checkpointing", "gradient_checkpointing", as_flag),
        Key("dist_env.backend", "backend", as_text),
        Key(
            "dist_env.timeout_minutes",
            "process_group_timeout_s",
            map_alternatives(lambda item: int(float(str(item)) * 60)),
        ),
        Key("model.pretrained_model_name_or_path", "model_name", as_text),
        Key("model.torch_dtype", "mixed_precision", word_of(FORMATS, "number format")),
        Key("dataloader.num_workers", "dataloader_workers"),
        Key("optimizer.lr", "learning_rate", as_float),
        Key("optimizer.weight_decay", "weight_decay", as_float),
        Key("checkpoint.checkpoint_dir", "checkpoint_path", as_path),
        Key("checkpoint.restore_from", "resume_path", as_path),
    ),
)

VEOMNI = Framework(
    name="veomni",
    suffixes=_YAML,
    signs=(
        re.compile(r"^train:", re.MULTILINE),
        re.compile(
            r"^[ \t]+(?:ulysses_(?:parallel_)?size|fsdp_mode|data_parallel_mode|rmpad|dyn_bsz\w*):", re.MULTILINE
        ),
        re.compile(r"^[ \t]+(?:micro_batch_size|global_batch_size):", re.MULTILINE),
    ),
    keys=(
        Key("train.global_batch_size", "train_batch_size", as_count),
        Key("train.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("train.accelerator.ulysses_size", "context_parallel_size", as_count),
        Key("train.ulysses_parallel_size", "context_parallel_size", as_count),
        Key("train.accelerator.ep_size", "expert_parallel_size", as_count),
        Key("train.expert_parallel_size", "expert_parallel_size", as_count),
        Key("train.accelerator.dp_replicate_size", "replicate_degree", as_count),
        Key("train.data_parallel_replicate_size", "replicate_degree", as_count),
        Key("train.accelerator.dp_shard_size", "shard_degree", as_count),
        Key("train.data_parallel_shard_size", "shard_degree", as_count),
        Key("train.max_steps", "train_steps", as_count),
        Key("train.optimizer.lr", "learning_rate", as_float),
        Key("train.lr", "learning_rate", as_float),
        Key("train.optimizer.weight_decay", "weight_decay", as_float),
        Key("train.checkpoint.output_dir", "checkpoint_path", as_path),
        Key("train.output_dir", "checkpoint_path", as_path),
        Key("train.save_steps", "save_interval", as_count),
        Key("data.max_seq_len", "sequence_length", as_count),
        Key("data.train_path", "data_path", as_path),
        Key("data.dataloader.num_workers", "dataloader_workers"),
        Key("data.num_workers", "dataloader_workers"),
        Key("model.model_path", "model_name", as_text),
    ),
)

LINGUA = Framework(
    name="lingua",
    suffixes=_YAML,
    signs=(
        re.compile(r"^distributed:", re.MULTILINE),
        re.compile(r"^[ \t]+(?:fsdp_type|dp_shard|dp_replicate|tp_size):", re.MULTILINE),
        re.compile(r"^(?:optim|dump_dir|probe_freq|profiling):", re.MULTILINE),
    ),
    keys=(
        Key("distributed.dp_shard", "shard_degree", as_count),
        Key("distributed.dp_replicate", "replicate_degree", as_count),
        Key("distributed.tp_size", "tensor_parallel_size", as_count),
        Key("distributed.model_dtype", "mixed_precision", word_of(FORMATS, "number format")),
        Key("distributed.backend", "backend", as_text),
        Key("distributed.timeout", "process_group_timeout_s", as_count),
        Key("data.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("data.seq_len", "sequence_length", as_count),
        Key("data.root_dir", "data_path", as_path),
        Key("grad_acc_steps", "gradient_accumulation_steps", as_count),
        Key("steps", "train_steps", as_count),
        Key("optim.lr", "learning_rate", as_float),
        Key("optim.warmup", "warmup_steps", as_float),
        Key("optim.clip", "gradient_clipping", as_float),
        Key("model.dim", "hidden_size", as_count),
        Key("model.n_layers", "num_layers", as_count),
        Key("model.n_heads", "attention_heads", as_count),
        Key("model.n_kv_heads", "query_groups", as_count),
        Key("model.vocab_size", "vocabulary_size", as_count),
        Key("dump_dir", "checkpoint_path", as_path),
        Key("checkpoint.dump.every", "save_interval", as_count),
        Key("checkpoint.dump.keep", "checkpoints_kept", as_count),
    ),
)

LITGPT = Framework(
    name="litgpt",
    suffixes=_YAML,
    signs=(
        re.compile(r"^train:", re.MULTILINE),
        re.compile(r"^[ \t]+(?:lr_warmup_steps|max_tokens|lr_warmup_fraction):", re.MULTILINE),
        re.compile(r"^(?:out_dir|checkpoint_dir|initial_checkpoint_dir|tokenizer_dir):", re.MULTILINE),
    ),
    keys=(
        Key("num_nodes", "nodes", as_count, Relation.REQUIRES),
        Key("devices", "processes_per_node", as_count, Relation.REQUIRES),
        Key("train.global_batch_size", "train_batch_size", as_count),
        Key("train.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("train.max_seq_length", "sequence_length", as_count),
        Key("train.max_steps", "train_steps", as_count),
        Key("train.save_interval", "save_interval", as_count),
        Key("train.max_norm", "gradient_clipping", as_float),
        Key("precision", "mixed_precision", word_of(FORMATS, "precision of Lightning")),
        Key("out_dir", "checkpoint_path", as_path),
        Key("optimizer.init_args.lr", "learning_rate", as_float),
        Key("optimizer.init_args.weight_decay", "weight_decay", as_float),
    ),
)

HYPERPOD = Framework(
    name="hyperpod",
    suffixes=_YAML,
    signs=(
        re.compile(r"^run:[^\n]*\n(?:(?:[ \t#][^\n]*)?\n){0,40}?[ \t]+model_type:", re.MULTILINE),
        re.compile(r"^(?:training_config|trainer|training_args|model|evaluation):", re.MULTILINE),
        re.compile(r"^[ \t]+(?:results_dir|replicas|data_s3_path|output_s3_path):", re.MULTILINE),
    ),
    keys=(
        Key("trainer.num_nodes", "nodes", as_count, Relation.REQUIRES),
        Key("run.replicas", "nodes", as_count, Relation.REQUIRES),
        Key("trainer.devices", "processes_per_node", as_count, Relation.REQUIRES),
        Key("training_config.training_args.train_batch_size", "train_batch_size", as_count),
        Key("training_config.global_batch_size", "train_batch_size", as_count),
        Key("model.global_batch_size", "train_batch_size", as_count),
        Key("training_config.training_args.micro_train_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("model.train_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("model.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        *(
            Key(f"model.{key}", quantity, as_count)
            for key, quantity in (
                ("tensor_model_parallel_degree", "tensor_parallel_size"),
                ("tensor_model_parallel_size", "tensor_parallel_size"),
                ("pipeline_model_parallel_size", "pipeline_parallel_size"),
                ("context_parallel_degree", "context_parallel_size"),
                ("context_parallel_size", "context_parallel_size"),
                ("expert_model_parallel_degree", "expert_parallel_size"),
                ("shard_degree", "shard_degree"),
                ("max_context_width", "sequence_length"),
                ("num_layers", "num_layers"),
                ("num_hidden_layers", "num_layers"),
                ("hidden_size", "hidden_size"),
                ("hidden_width", "hidden_size"),
                ("num_heads", "attention_heads"),
                ("num_attention_heads", "attention_heads"),
            )
        ),
        Key("trainer.max_steps", "train_steps", as_count),
        Key("training_config.max_length", "sequence_length", as_count),
        Key("training_config.training_args.learning_rate", "learning_rate", as_float),
        Key("training_config.model.optim.lr", "learning_rate", as_float),
        Key("model.optim.lr", "learning_rate", as_float),
        Key("run.model_name_or_path", "model_name", as_text),
    ),
)

#: A test of Megatron-LM: the options of its programs, and the variables of their ranks.
MEGATRON_CASE = Framework(
    name="megatron",
    suffixes=_YAML,
    signs=(
        re.compile(r"^MODEL_ARGS:", re.MULTILINE),
        re.compile(r"^[ \t]+--[\w-]+:", re.MULTILINE),
    ),
    keys=tuple(
        Key(f"MODEL_ARGS.--{option}", quantity, reader)
        for option, quantity, reader in (
            ("tensor-model-parallel-size", "tensor_parallel_size", as_count),
            ("pipeline-model-parallel-size", "pipeline_parallel_size", as_count),
            ("context-parallel-size", "context_parallel_size", as_count),
            ("expert-model-parallel-size", "expert_parallel_size", as_count),
            ("micro-batch-size", "micro_batch_size_per_gpu", as_count),
            ("global-batch-size", "train_batch_size", as_count),
            ("train-iters", "train_steps", as_count),
            ("lr", "learning_rate", as_float),
            ("num-layers", "num_layers", as_count),
            ("hidden-size", "hidden_size", as_count),
            ("ffn-hidden-size", "ffn_hidden_size", as_count),
            ("num-attention-heads", "attention_heads", as_count),
            ("num-query-groups", "query_groups", as_count),
            ("seq-length", "sequence_length", as_count),
            ("num-experts", "num_experts", as_count),
            ("save-interval", "save_interval", as_count),
            ("num-workers", "dataloader_workers", map_alternatives(lambda item: int(str(item)))),
            ("distributed-backend", "backend", as_text),
        )
    ),
    also=_variables,
)

GRAPHSTORM = Framework(
    name="graphstorm",
    suffixes=_YAML,
    signs=(
        re.compile(r"^gsf:", re.MULTILINE),
        re.compile(r"^[ \t]+(?:basic|gnn|hyperparam):", re.MULTILINE),
    ),
    keys=(
        Key("gsf.basic.backend", "backend", as_text),
        Key("gsf.hyperparam.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("gsf.hyperparam.lr", "learning_rate", as_float),
        Key("gsf.gnn.num_layers", "num_layers", as_count),
        Key("gsf.gnn.hidden_size", "hidden_size", as_count),
        Key("gsf.output.save_model_path", "checkpoint_path", as_path),
        Key("gsf.output.save_model_frequency", "save_interval", as_count),
        Key("gsf.input.restore_model_path", "resume_path", as_path),
        Key("gsf.basic.part_config", "data_path", as_path),
    ),
)

MINDFORMERS = Framework(
    name="mindformers",
    suffixes=_YAML,
    signs=(
        re.compile(r"^(?:parallel_config|runner_config|use_parallel|parallel):", re.MULTILINE),
        re.compile(r"^(?:run_mode|trainer|train_dataset|load_checkpoint|context):", re.MULTILINE),
        re.compile(
            r"^[ \t]+(?:model_parallel|pipeline_stage|sink_mode|parallel_mode|data_parallel|device_target):",
            re.MULTILINE,
        ),
    ),
    others=(re.compile(r"^(?:apiVersion|hydra|defaults):", re.MULTILINE),),
    keys=(
        Key("parallel_config.data_parallel", "data_parallel_size", as_count),
        Key("parallel_config.model_parallel", "tensor_parallel_size", as_count),
        Key("parallel_config.pipeline_stage", "pipeline_parallel_size", as_count),
        Key("parallel_config.context_parallel", "context_parallel_size", as_count),
        Key("parallel_config.expert_parallel", "expert_parallel_size", as_count),
        Key("runner_config.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("runner_config.gradient_accumulation_steps", "gradient_accumulation_steps", as_count),
        Key("training_args.global_batch_size", "train_batch_size", as_count),
        Key("training_args.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("training_args.training_iters", "train_steps", as_count),
        Key("lr_schedule.learning_rate", "learning_rate", as_float),
        Key("optimizer.weight_decay", "weight_decay", as_float),
        Key("model.model_config.num_layers", "num_layers", as_count),
        Key("model.model_config.num_hidden_layers", "num_layers", as_count),
        Key("model.model_config.hidden_size", "hidden_size", as_count),
        Key("model.model_config.num_heads", "attention_heads", as_count),
        Key("model.model_config.num_attention_heads", "attention_heads", as_count),
        Key("model.model_config.n_kv_heads", "query_groups", as_count),
        Key("model.model_config.num_key_value_heads", "query_groups", as_count),
        Key("model.model_config.vocab_size", "vocabulary_size", as_count),
        Key("model.model_config.seq_length", "sequence_length", as_count),
        Key("moe_config.expert_num", "num_experts", as_count),
        Key("train_dataset.data_loader.dataset_dir", "data_path", as_path),
        Key("output_dir", "checkpoint_path", as_path),
        Key("load_checkpoint", "resume_path", as_path),
    ),
)


def _count_listed_gpus(value: Value) -> Value:
    """The GPUs of one node; those of several nodes are a list of lists, which has no single number."""
    return lift(lambda item: len(item) if isinstance(item, tuple) and item else 1, value)


HUGECTR = Framework(
    name="hugectr",
    suffixes=(".json",),
    signs=(
        re.compile(r"\"solver\"[ \t]*:"),
        re.compile(r"\"(?:batchsize|gpu|max_iter)\"[ \t]*:"),
        re.compile(r"\"(?:layers|optimizer)\"[ \t]*:"),
    ),
    keys=(
        Key("solver.batchsize", "train_batch_size", as_count),
        Key("solver.max_iter", "train_steps", as_count),
        Key("solver.gpu", "gpus_per_node", _count_listed_gpus, Relation.AT_LEAST),
        Key("solver.snapshot", "save_interval", as_count),
    ),
)
