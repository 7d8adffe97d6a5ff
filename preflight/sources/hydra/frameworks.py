"""Tables of frameworks' configuration keys and the quantities that they state; to add a framework, add a row.

Sources: verl 0.7 (verl/trainer/config, verl/utils/config.py), EasyR1 0.3 (verl/trainer/config.py), SkyRL 0.4
(skyrl/train/config), NeMo-RL 0.5 (examples/configs, nemo_rl/models/policy/lm_policy.py), AReaL 1.0
(areal/api/cli_args.py), Primus 0.3 (examples/megatron/configs), Lightning 2.5 (parameters of Trainer). A default
applies if no file in the tree sets the key, because the framework itself is installed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from preflight.model.job import Plain


class Style(enum.Enum):
    """How a program builds its configuration."""

    #: `@hydra.main`, or Hydra's `compose`.
    HYDRA = "hydra"
    #: A file named on the line, merged with overrides; files may inherit from others.
    FILE = "file"


class Reading(enum.Enum):
    """How a value is read."""

    NUMBER = "number"
    SWITCH = "switch"
    TEXT = "text"
    #: `8`, `[0, 1]`, `auto` of Lightning.
    DEVICES = "devices"
    #: Sizes of AReaL's `fsdp:d4p1t2`.
    DATA, TENSOR, PIPELINE, CONTEXT, EXPERT = "d", "t", "p", "c", "e"


@dataclass(frozen=True, slots=True)
class Key:
    """One quantity, and the keys that give it; the first one that is set counts.

    Args:
        default: the value that the framework uses if no key is set; None if it has none.
        when: a key whose value must be true for this one to count.
        role: the part of the job that it describes; empty for the trained ranks.
    """

    quantity: str
    keys: tuple[str, ...]
    default: Plain = None
    reading: Reading = Reading.NUMBER
    when: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    Args:
        modules: regular expression for the modules and scripts that start it; empty if it has none.
        recognised_by: sets of keys; its configuration has all keys of at least one set.
        starts_ranks: whether one process starts all ranks, over Ray; otherwise something else starts them.
        option: the word before the configuration file on a line.
        parents: key whose values are further files to be merged first; empty if there is none.
        below: sections that hold the settings, as `modules.pre_trainer.overrides`; empty for the top.
        own: regular expression of the programs that run its own validator; empty if none has one.
        files_only: whether keys on the command line are read elsewhere.
        packages: prefixes of its modules' names that identify it by themselves.
        has_settings: whether rules judge its keys, so that each is stated as `setting.NAME.KEY`.
    """

    name: str
    keys: tuple[Key, ...]
    recognised_by: tuple[tuple[str, ...], ...]
    modules: str = ""
    style: Style = Style.HYDRA
    starts_ranks: bool = True
    option: str = ""
    parents: str = ""
    below: tuple[str, ...] = ("",)
    own: str = ""
    files_only: bool = False
    packages: tuple[str, ...] = ("verl.", "skyrl", "areal.", "primus.", "nemo_rl.")
    has_settings: bool = False


_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MEGATRON = f"{_ACTOR}.megatron"

VERL = Framework(
    "verl",
    (
        Key("nodes", ("trainer.nnodes",), 1),
        Key("processes_per_node", ("trainer.n_gpus_per_node",), 8),
        Key("prompts_per_step", ("data.train_batch_size",), 1024),
        Key("responses_per_prompt", (f"{_ROLLOUT}.n",), 1),
        Key("update_batch_size", (f"{_ACTOR}.ppo_mini_batch_size",), 256),
        Key("update_micro_batch_size_per_gpu", (f"{_ACTOR}.ppo_micro_batch_size_per_gpu",)),
        Key("update_micro_batch_size", (f"{_ACTOR}.ppo_micro_batch_size",)),
        Key("dynamic_batch", (f"{_ACTOR}.use_dynamic_bsz",), False, Reading.SWITCH),
        Key("rl_strategy", (f"{_ACTOR}.strategy",), "fsdp", Reading.TEXT),
        Key("context_parallel_size", (f"{_ACTOR}.ulysses_sequence_parallel_size",)),
        Key("remove_padding", ("actor_rollout_ref.model.use_remove_padding",), None, Reading.SWITCH),
        Key("tensor_parallel_size", (f"{_MEGATRON}.tensor_model_parallel_size",)),
        Key("pipeline_parallel_size", (f"{_MEGATRON}.pipeline_model_parallel_size",)),
        Key("context_parallel_size", (f"{_MEGATRON}.context_parallel_size",)),
        Key("expert_parallel_size", (f"{_MEGATRON}.expert_model_parallel_size",)),
        Key("rollout_tensor_parallel_size", (f"{_ROLLOUT}.tensor_model_parallel_size",), 2),
        Key("rollout_data_parallel_size", (f"{_ROLLOUT}.data_parallel_size",)),
        Key("rollout_pipeline_parallel_size", (f"{_ROLLOUT}.pipeline_model_parallel_size",)),
        Key("rollout_engine", (f"{_ROLLOUT}.name",), None, Reading.TEXT),
        Key("model_name", ("actor_rollout_ref.model.path",), None, Reading.TEXT),
        Key("nodes", ("rollout.nnodes",), role="rollout"),
        Key("processes_per_node", ("rollout.n_gpus_per_node",), role="rollout"),
    ),
    (("actor_rollout_ref", "trainer"),),
    r"(?:.*\.)?verl\.(?:trainer|experimental)\.(?:.*\.)?main_ppo|recipe\.\w+\.main_\w+|(?:.*\.)?main_(?:ppo|dapo)\w*",
    own=r"verl\.trainer\.main_ppo|verl\.experimental\.(?:transfer_queue|one_step_off_policy)\.main_ppo",
    has_settings=True,
)
EASY_R1 = Framework(
    "easyr1",
    (
        Key("nodes", ("trainer.nnodes",), 1),
        Key("processes_per_node", ("trainer.n_gpus_per_node",), 8),
        Key("prompts_per_step", ("data.rollout_batch_size",), 512),
        Key("responses_per_prompt", ("worker.rollout.n",), 1),
        Key("update_batch_size", ("worker.actor.global_batch_size",), 256),
        Key("update_micro_batch_size_per_gpu", ("worker.actor.micro_batch_size_per_device_for_update",), 4),
        Key("score_micro_batch_size_per_gpu", ("worker.actor.micro_batch_size_per_device_for_experience",), 16),
        Key("context_parallel_size", ("worker.actor.ulysses_size",), 1),
        Key("rollout_tensor_parallel_size", ("worker.rollout.tensor_parallel_size",), 2),
        Key("model_name", ("worker.actor.model.model_path",), None, Reading.TEXT),
    ),
    (("worker.actor", "trainer"),),
    r"verl\.trainer\.main",
    Style.FILE,
    option="config=",
    own=r"verl\.trainer\.main",
)
SKY_RL = Framework(
    "skyrl",
    (
        Key("nodes", ("trainer.placement.policy_num_nodes",), 1),
        Key("processes_per_node", ("trainer.placement.policy_num_gpus_per_node",), 4),
        Key("prompts_per_step", ("trainer.train_batch_size",), 1024),
        Key("responses_per_prompt", ("generator.n_samples_per_prompt",), 5),
        Key("update_batch_size", ("trainer.policy_mini_batch_size",), 256),
        Key("update_micro_batch_size_per_gpu", ("trainer.micro_train_batch_size_per_gpu",), 1),
        Key("context_parallel_size", ("trainer.policy.sequence_parallel_size",)),
        Key("tensor_parallel_size", ("trainer.policy.megatron_config.tensor_model_parallel_size",)),
        Key("pipeline_parallel_size", ("trainer.policy.megatron_config.pipeline_model_parallel_size",)),
        Key("context_parallel_size", ("trainer.policy.megatron_config.context_parallel_size",)),
        Key(
            "rollout_tensor_parallel_size",
            ("generator.inference_engine.tensor_parallel_size", "generator.inference_engine_tensor_parallel_size"),
        ),
        Key("rollout_engines", ("generator.inference_engine.num_engines", "generator.num_inference_engines")),
        Key("rl_strategy", ("trainer.strategy",), "fsdp", Reading.TEXT),
        Key("colocated", ("trainer.placement.colocate_all",), True, Reading.SWITCH),
        Key("model_name", ("trainer.policy.model.path",), None, Reading.TEXT),
    ),
    (("trainer.placement", "generator"),),
    r"(?:.*\.)?skyrl(?:_train|\.train)\.entrypoints\.main_\w+",
    own=r"skyrl(?:_train|\.train)\.entrypoints\.main_base",
)
_NEMO_ACTOR = "policy.megatron_cfg.enabled"
NEMO_RL = Framework(
    "nemo-rl",
    (
        Key("nodes", ("cluster.num_nodes",)),
        Key("processes_per_node", ("cluster.gpus_per_node",)),
        Key("prompts_per_step", ("grpo.num_prompts_per_step",)),
        Key("responses_per_prompt", ("grpo.num_generations_per_prompt",)),
        Key("train_batch_size", ("policy.train_global_batch_size",)),
        Key("micro_batch_size_per_gpu", ("policy.train_micro_batch_size",)),
        Key("tensor_parallel_size", ("policy.megatron_cfg.tensor_model_parallel_size",), when=_NEMO_ACTOR),
        Key("pipeline_parallel_size", ("policy.megatron_cfg.pipeline_model_parallel_size",), when=_NEMO_ACTOR),
        Key("context_parallel_size", ("policy.megatron_cfg.context_parallel_size",), when=_NEMO_ACTOR),
        Key("expert_parallel_size", ("policy.megatron_cfg.expert_model_parallel_size",), when=_NEMO_ACTOR),
        Key("tensor_parallel_size", ("policy.dtensor_cfg.tensor_parallel_size",), when="policy.dtensor_cfg.enabled"),
        Key("context_parallel_size", ("policy.dtensor_cfg.context_parallel_size",), when="policy.dtensor_cfg.enabled"),
        Key("rollout_tensor_parallel_size", ("policy.generation.vllm_cfg.tensor_parallel_size",)),
        Key("rollout_pipeline_parallel_size", ("policy.generation.vllm_cfg.pipeline_parallel_size",)),
        Key("rollout_engine", ("policy.generation.backend",), None, Reading.TEXT),
        Key("colocated", ("policy.generation.colocated.enabled",), None, Reading.SWITCH),
        Key("nodes", ("policy.generation.colocated.resources.num_nodes",), role="rollout"),
        Key("processes_per_node", ("policy.generation.colocated.resources.gpus_per_node",), role="rollout"),
        Key("model_name", ("policy.model_name",), None, Reading.TEXT),
    ),
    (("cluster.num_nodes", "cluster.gpus_per_node"), ("policy.train_global_batch_size",), ("policy.generation",)),
    r"(?:.*\.)?run_(?:grpo|sft|dpo|rm|ppo|distillation|vlm_grpo|eval)\w*",
    Style.FILE,
    option="--config",
    parents="defaults",
    own=r"examples\.run_\w+",
)
AREAL = Framework(
    "areal",
    (
        Key("nodes", ("cluster.n_nodes",), 1),
        Key("processes_per_node", ("cluster.n_gpus_per_node",), 8),
        Key("data_parallel_size", ("actor.backend",), None, Reading.DATA),
        Key("tensor_parallel_size", ("actor.backend",), None, Reading.TENSOR),
        Key("pipeline_parallel_size", ("actor.backend",), None, Reading.PIPELINE),
        Key("context_parallel_size", ("actor.backend",), None, Reading.CONTEXT),
        Key("rollout_tensor_parallel_size", ("rollout.backend",), None, Reading.TENSOR),
        Key("rollout_engines", ("rollout.backend",), None, Reading.DATA),
        Key("allocation", ("allocation_mode",), None, Reading.TEXT),
        Key("prompts_per_step", ("train_dataset.batch_size",)),
        Key("responses_per_prompt", ("gconfig.n_samples",)),
        Key("model_name", ("actor.path",), None, Reading.TEXT),
    ),
    (("cluster.n_nodes", "cluster.n_gpus_per_node"), ("allocation_mode", "cluster")),
    r"areal\.(?:infra\.)?launcher\.(?:local|ray|slurm)",
    Style.FILE,
    option="--config",
)
VERL_SFT = Framework(
    "verl-sft",
    (
        Key("train_batch_size", ("data.train_batch_size",), 256),
        Key("micro_batch_size_per_gpu", ("data.micro_batch_size_per_gpu",), 4),
        Key("context_parallel_size", ("ulysses_sequence_parallel_size", "engine.ulysses_sequence_parallel_size"), 1),
        Key("model_name", ("model.partial_pretrain", "model.path"), None, Reading.TEXT),
    ),
    (("model.partial_pretrain", "trainer"), ("engine", "optim", "data", "trainer")),
    r"verl\.trainer\.(?:fsdp_)?sft_trainer\w*",
    starts_ranks=False,
)
PRIMUS = Framework(
    "primus",
    (
        Key("train_batch_size", ("global_batch_size",)),
        Key("micro_batch_size_per_gpu", ("micro_batch_size", "training.local_batch_size")),
        Key("tensor_parallel_size", ("tensor_model_parallel_size", "parallelism.tensor_parallel_degree")),
        Key("pipeline_parallel_size", ("pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree")),
        Key("context_parallel_size", ("context_parallel_size", "parallelism.context_parallel_degree")),
        Key("expert_parallel_size", ("expert_model_parallel_size", "parallelism.expert_parallel_degree")),
        Key("sequence_length", ("seq_length", "training.seq_len")),
        Key("train_steps", ("train_iters", "training.steps")),
        Key("num_layers", ("num_layers",)),
    ),
    (("modules.pre_trainer",), ("modules.post_trainer",), ("modules.sft_trainer",)),
    r"primus\.(?:cli\.main|train|pretrain)",
    style=Style.FILE,
    starts_ranks=False,
    option="--config",
    below=("modules.pre_trainer.overrides", "modules.post_trainer.overrides", "modules.sft_trainer.overrides"),
)
LIGHTNING = Framework(
    "lightning",
    (
        Key("nodes", ("trainer.num_nodes",)),
        Key("processes_per_node", ("trainer.devices",), None, Reading.DEVICES),
        Key("gradient_accumulation_steps", ("trainer.accumulate_grad_batches",)),
    ),
    (("trainer._target_",), ("trainer.devices", "trainer.accelerator")),
    starts_ranks=False,
    files_only=True,
)
#: In the order in which they are tried.
FRAMEWORKS: tuple[Framework, ...] = (
    SKY_RL,
    VERL_SFT,
    EASY_R1,
    VERL,
    NEMO_RL,
    AREAL,
    PRIMUS,
    LIGHTNING,
)
