"""Short forms of jobs with tools for reinforcement learning and fine-tuning: for each tool what starts it, and the
words that every job of it has.

After the first part of a text, a line `@ NAME` begins another file of the job.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable

from tests.constraints.huggingface_forms import Files, parts, sections

_VERL = (
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.model.use_remove_padding=True"
    " actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 critic.ppo_micro_batch_size_per_gpu=1"
)
_LLAMAFACTORY = (
    "model_name_or_path=m stage=sft do_train=true finetuning_type=full dataset=d template=qwen cutoff_len=2048"
    " output_dir=out per_device_train_batch_size=1 learning_rate=1.0e-5 bf16=true"
)
_AXOLOTL = (
    """base_model=m learning_rate=1.0e-5 micro_batch_size=1 gradient_accumulation_steps=4 sequence_len=2048"""
    """ datasets='[{"path":"d","type":"alpaca"}]' output_dir=out bf16=true"""
)
_TORCHTUNE = (
    "tokenizer._component_=torchtune.models.llama3.llama3_tokenizer tokenizer.path=t"
    " dataset._component_=torchtune.datasets.alpaca_dataset model._component_=torchtune.models.llama3_1.llama3_1_8b"
    " batch_size=2 gradient_accumulation_steps=1 output_dir=out dtype=bf16"
)
#: By form: the line that starts the tool, and the usual words; `{}` on the line stands for all words, which are keys of
#: `c.yaml` without it.
_TOOLS = {
    "verl": ("python3 -m verl.trainer.main_ppo {}", _VERL),
    "openrlhf": (
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --reward.model_name_or_path r {}",
        "",
    ),
    "llamafactory": ("llamafactory-cli train c.yaml", _LLAMAFACTORY),
    "axolotl": ("axolotl train c.yaml --launcher torchrun -- --nproc_per_node=8", _AXOLOTL),
    "torchtune": ("tune run --nproc_per_node 8 full_finetune_distributed --config c.yaml", _TORCHTUNE),
    "swift": ("NPROC_PER_NODE=8 swift sft {}", "--model m --dataset d"),
    "swift_grpo": (
        "NPROC_PER_NODE=8 swift rlhf {}",
        "--model m --dataset d --rlhf_type grpo --gradient_accumulation_steps 8 --use_vllm true --vllm_mode colocate",
    ),
    "megatron_swift": ("NPROC_PER_NODE=8 megatron sft {}", "--model m --dataset d"),
    "megatron_grpo": (
        "NPROC_PER_NODE=8 megatron rlhf {}",
        "--model m --dataset d --rlhf_type grpo --global_batch_size 64 --use_vllm true --vllm_mode colocate",
    ),
    "nemo_rl": (
        "python examples/run_grpo.py --config c.yaml",
        "cluster.num_nodes=1 cluster.gpus_per_node=8 grpo.num_prompts_per_step=32 grpo.num_generations_per_prompt=16"
        " policy.train_global_batch_size=512 policy.model_name=m policy.dtensor_cfg.enabled=true"
        " policy.generation.backend=vllm policy.generation.colocated.enabled=true",
    ),
    "slime": (
        "python3 train.py {}",
        "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-rollout 100 --rollout-batch-size 32 --colocate",
    ),
    "areal": (
        "python3 -m areal.infra.launcher.ray train.py --config c.yaml",
        "experiment_name=math trial_name=run cluster.n_nodes=1 cluster.n_gpus_per_node=8 actor.backend=fsdp:d8"
        " rollout.backend=sglang:d8 actor.path=m",
    ),
    "veomni": (
        "torchrun --nproc-per-node 8 tasks/train_text.py c.yaml",
        "model.model_path=m data.train_path=d train.accelerator.ulysses_size=1 train.micro_batch_size=1"
        " train.init_device=meta",
    ),
    "primus": (
        "primus-cli direct -- train pretrain --config c.yaml",
        "work_group=amd exp_name=e modules.pre_trainer.framework=megatron modules.pre_trainer.config=pre_trainer.yaml"
        " modules.pre_trainer.overrides.global_batch_size=64",
    ),
    "nanotron": (
        "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 8 run_train.py --config-file c.yaml",
        "general.run=r parallelism.dp=4 parallelism.tp=2 parallelism.pp=1 tokens.train_steps=100"
        " tokens.sequence_length=4096 tokens.micro_batch_size=1 tokens.batch_accumulation_per_replica=1",
    ),
    "open_instruct": ("python open_instruct/grpo_fast.py {}", "--model_name_or_path m"),
    "oumi": (
        "torchrun --nproc-per-node 8 -m oumi train -c c.yaml",
        'model.model_name=m data.train.datasets=\'[{"dataset_name":"d"}]\' training.trainer_type=TRL_SFT',
    ),
    "roll": (
        "python examples/start_rlvr_pipeline.py --config_path . --config_name c",
        "exp_name=e pretrain=m rollout_batch_size=64 prompt_length=512 response_length=8192 num_gpus_per_node=8"
        " actor_train.strategy_args.strategy_name=megatron_train actor_train.device_mapping='list(range(0,16))'"
        " actor_infer.strategy_args.strategy_name=vllm actor_infer.device_mapping='list(range(16,32))'",
    ),
    "skyrl": (
        "python3 -m skyrl.train.entrypoints.main_base {}",
        "trainer.placement.policy_num_gpus_per_node=8 generator.inference_engine.num_engines=8",
    ),
}


def recipe(tool: str, text: str, run: str) -> Files:
    """Variables, and words that take the place of the usual ones; `NAME=-` leaves one out."""
    first, others = parts(text)
    line, usual = _TOOLS[tool]
    line = run or line
    words = re.findall(r"""(?:--[\w.-]+ (?!--))?(?:"[^"]*"|'[^']*'|[^\s"'])+""", first)
    variables = [word for word in words if re.match(r"[A-Z][A-Z0-9_]*=", word)]
    words = [word for word in words if word not in variables]
    named = {word.partition("=")[0].partition(" ")[0] for word in words}
    options = re.findall(r"(?:--[\w.-]+ )?\S+", usual)
    given = [word for word in options if word.partition("=")[0].partition(" ")[0] not in named]
    given += [word for word in words if not word.endswith("=-")]
    if "{}" not in line:
        others = {"c.yaml": sections([shlex.split(word)[0] for word in given]), **others}
    return {"run.sh": "#!/bin/bash\n" + " ".join([*variables, line.format(" ".join(given))]) + "\n", **others}


FORMS: dict[str, Callable[[str, str], Files]] = {tool: functools.partial(recipe, tool) for tool in _TOOLS}
