"""Claims of launches of the frameworks, each in the form that its users write."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.model.job import Job, Known, OneOf, Plain, Relation, Strength, Unresolved
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from tests.sources.launchers.reading_lines import only, read


def job_of(tmp_path: Path, files: dict[str, str], entry: str = "run.sh") -> Job:
    for path, text in files.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (job,) = assemble(tmp_path, [tmp_path / entry], sources=registry.sources())
    return job


def sizes(job: Job, *quantities: str, launch: int = 0) -> list[Plain | str]:
    scope = job.launches[launch].scope
    found: list[Plain | str] = []
    for quantity in quantities:
        value = job.value(quantity, scope)
        found.append(value.value if isinstance(value, Known) else type(value).__name__)
    return found


MAIN_PPO = """
import hydra


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    run_ppo(config)


if __name__ == "__main__":
    main()
"""
VERL = {
    "verl/trainer/main_ppo.py": MAIN_PPO,
    "verl/trainer/config/ppo_trainer.yaml": """
defaults:
  - actor@actor_rollout_ref.actor: dp_actor
  - rollout@actor_rollout_ref.rollout: rollout
  - _self_
trainer:
  nnodes: 1
  n_gpus_per_node: 8
data:
  train_batch_size: 1024
""",
    "verl/trainer/config/actor/dp_actor.yaml": "defaults:\n  - actor\n  - _self_\nstrategy: fsdp\n",
    "verl/trainer/config/actor/actor.yaml": "strategy: ???\nppo_mini_batch_size: 256\nuse_dynamic_bsz: false\n",
    "verl/trainer/config/rollout/rollout.yaml": "tensor_model_parallel_size: 2\nn: ${oc.select:data.n,1}\n",
}
LINE = "python3 -m verl.trainer.main_ppo"


def test_verl_in_the_tree(tmp_path: Path) -> None:
    job = job_of(tmp_path, {**VERL, "run.sh": f"{LINE} trainer.nnodes=4 \\\n  actor_rollout_ref.rollout.n=5\n"})
    assert job.launches[0].launcher == "verl"
    assert sizes(job, "nodes", "processes_per_node", "world_size") == [4, 8, 32]
    assert sizes(job, "prompts_per_step", "responses_per_prompt", "update_batch_size") == [1024, 5, 256]
    assert sizes(job, "rl_strategy", "dynamic_batch", "rollout_tensor_parallel_size") == ["fsdp", False, 2]
    (gpus,) = job.setting("processes_per_node", job.launches[0].scope)
    assert (gpus.span.path, gpus.span.line, gpus.strength) == (
        "verl/trainer/config/ppo_trainer.yaml",
        8,
        Strength.CONFIG,
    )
    nodes = job.about("nodes", job.launches[0].scope)
    assert [(claim.value, claim.strength) for claim in nodes] == [
        (Known(4), Strength.FLAG),
        (Known(1), Strength.CONFIG),
    ]
    assert {file.path for file in job.files} >= {"verl/trainer/config/actor/actor.yaml"}


def test_a_configuration_of_the_user_over_that_of_the_package(tmp_path: Path) -> None:
    own = "hydra:\n  searchpath:\n    - file://verl/trainer/config\ndefaults:\n  - ppo_trainer\n  - _self_\n"
    files = {**VERL, "conf/mine.yaml": own + "trainer:\n  nnodes: 2\n"}
    job = job_of(tmp_path, {**files, "run.sh": f'{LINE} --config-path="$PWD/conf" --config-name=mine\n'})
    assert sizes(job, "world_size", "update_batch_size") == [16, 256]


def test_installed_verl_has_its_defaults(tmp_path: Path) -> None:
    line = "ray job submit --address http://h:8265 -- python3 -m verl.trainer.main_ppo"
    job = job_of(tmp_path, {"run.sh": f"{line} trainer.nnodes=2 data.train_batch_size=256\n"})
    assert job.launches[0].launcher == "ray"
    assert sizes(job, "world_size", "prompts_per_step", "rollout_tensor_parallel_size") == [16, 256, 2]
    (gpus,) = job.setting("processes_per_node", job.launches[0].scope)
    assert gpus.strength is Strength.DEFAULT and "without trainer.n_gpus_per_node" in gpus.spelling


def test_unknown_words_hide_the_defaults_of_the_package(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"run.sh": f"{LINE} trainer.nnodes=2 $EXTRA\n"})
    assert sizes(job, "nodes", "processes_per_node", "world_size") == [2, "Unresolved", "Unresolved"]


def test_variables_and_branches(tmp_path: Path) -> None:
    script = f'if [ "$BIG" ]; then N=4; else N=2; fi\n{LINE} trainer.nnodes=$N trainer.n_gpus_per_node=$GPUS\n'
    job = job_of(tmp_path, {**VERL, "run.sh": script})
    scope = job.launches[0].scope
    assert job.value("nodes", scope) == OneOf((4, 2))
    assert isinstance(job.value("world_size", scope), Unresolved)


def test_one_task_of_a_batch_job_starts_ranks_on_all_nodes(tmp_path: Path) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun -N1 -n1 {LINE} trainer.nnodes=4\n"
    job = job_of(tmp_path, {**VERL, "run.sh": script})
    assert job.launches[0].launcher == "verl"
    assert sizes(job, "nodes", "world_size") == [4, 32]


def test_verl_sft_is_started_by_torchrun(tmp_path: Path) -> None:
    line = "torchrun --standalone --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer"
    job = job_of(tmp_path, {"run.sh": f"{line} data.train_batch_size=128 data.micro_batch_size_per_gpu=4\n"})
    assert job.launches[0].launcher == "torchrun"
    assert sizes(job, "world_size", "train_batch_size", "micro_batch_size_per_gpu") == [4, 128, 4]


NEMO = {
    "examples/configs/base.yaml": (
        "policy:\n  train_global_batch_size: 512\n  train_micro_batch_size: 4\n  dtensor_cfg:\n    enabled: true\n"
        "    tensor_parallel_size: 2\n  generation:\n    vllm_cfg:\n      tensor_parallel_size: 4\n"
        "cluster:\n  gpus_per_node: 8\n  num_nodes: 1\n"
    ),
    "examples/configs/large.yaml": "defaults: base.yaml\ncluster:\n  num_nodes: 4\n",
}


def test_nemo_rl(tmp_path: Path) -> None:
    line = "python examples/run_grpo.py --config examples/configs/large.yaml cluster.gpus_per_node=4"
    job = job_of(tmp_path, {**NEMO, "run.sh": line + "\n"})
    assert job.launches[0].launcher == "nemo-rl"
    assert sizes(job, "world_size", "tensor_parallel_size", "rollout_tensor_parallel_size") == [16, 2, 4]


def test_a_nemo_rl_file_without_a_launch(tmp_path: Path) -> None:
    job = job_of(tmp_path, NEMO, "examples/configs/large.yaml")
    assert {claim.quantity: claim.value for claim in job.claims}["world_size"] == Known(32)


def test_a_missing_or_circular_parent(tmp_path: Path) -> None:
    for text in ("defaults: gone.yaml\n", "defaults: large.yaml\n"):
        job = job_of(tmp_path, {"large.yaml": text + "cluster:\n  num_nodes: 2\n  gpus_per_node: 8\n"}, "large.yaml")
        assert {claim.quantity: claim.value for claim in job.claims}["world_size"] == Known(16)


def test_areal(tmp_path: Path) -> None:
    config = (
        "cluster:\n  n_nodes: 2\n  n_gpus_per_node: 8\nactor:\n  backend: fsdp:d4p1t2\n  path: Qwen/Qwen2.5-1.5B\n"
        "rollout:\n  backend: sglang:d4p1t2\ngconfig:\n  n_samples: 4\n"
    )
    line = "python3 examples/math/gsm8k_rl.py --config conf/grpo.yaml scheduler.type=ray"
    job = job_of(tmp_path, {"conf/grpo.yaml": config, "run.sh": line + "\n"})
    assert job.launches[0].launcher == "areal"
    assert sizes(job, "world_size", "tensor_parallel_size", "rollout_engines") == [16, 2, 4]


def test_easy_r1(tmp_path: Path) -> None:
    config = "data:\n  rollout_batch_size: 512\nworker:\n  actor:\n    global_batch_size: 128\n  rollout:\n    n: 5\n"
    line = "python3 -m verl.trainer.main config=examples/config.yaml trainer.n_gpus_per_node=4"
    job = job_of(tmp_path, {"examples/config.yaml": config + "trainer:\n  nnodes: 1\n", "run.sh": line + "\n"})
    assert sizes(job, "world_size", "prompts_per_step", "update_batch_size") == [4, 512, 128]


def test_sky_rl(tmp_path: Path) -> None:
    line = (
        "python -m skyrl_train.entrypoints.main_base trainer.placement.policy_num_nodes=2"
        " trainer.placement.policy_num_gpus_per_node=8 generator.num_inference_engines=4 trainer.train_batch_size=512"
    )
    job = job_of(tmp_path, {"run.sh": line + "\n"})
    assert sizes(job, "world_size", "rollout_engines", "prompts_per_step") == [16, 4, 512]


PRIMUS = (
    "modules:\n  pre_trainer:\n    framework: megatron\n    overrides:\n      global_batch_size: 256\n"
    "      micro_batch_size: 4\n      tensor_model_parallel_size: 2\n"
)


def test_primus(tmp_path: Path) -> None:
    line = "primus-cli direct --env NNODES=2 --env MASTER_ADDR=n0 -- train pretrain --config exp.yaml"
    job = job_of(tmp_path, {"exp.yaml": PRIMUS, "run.sh": line + "\n"})
    assert sizes(job, "world_size", "tensor_parallel_size", "train_batch_size") == [16, 2, 256]
    reading = read("primus-cli slurm srun -N 4 -- train pretrain --config exp.yaml")
    assert only(reading, "nodes").value == Known(4)
    assert isinstance(only(reading, "master_addr").value, Unresolved)
    assert read("primus-cli direct -- benchmark gemm -M 4096").launches == ()


OPEN_RLHF = "python3 -m openrlhf.cli.train_ppo_ray"


@pytest.mark.parametrize("sign", ["_", "."])
def test_openrlhf_in_both_spellings(tmp_path: Path, sign: str) -> None:
    options = f"--actor{sign}num_nodes 2 --actor{sign}num_gpus_per_node 4 --vllm{sign}num_engines 4"
    options += f" --ref{sign}num_nodes 1 --ref{sign}num_gpus_per_node 8"
    job = job_of(tmp_path, {"run.sh": f"ray job submit -- {OPEN_RLHF} {options}\n"})
    assert sizes(job, "world_size", "rollout_engines") == [8, 4]
    roles = {claim.scope.role: claim.value for claim in job.about("world_size") if claim.source == "arguments"}
    assert roles == {"": Known(8), "ref": Known(8)}


def test_slime(tmp_path: Path) -> None:
    line = "ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --actor-num-nodes 1"
    more = "--actor-num-gpus-per-node 8 --colocate --rollout-num-gpus-per-engine 2 --tensor-model-parallel-size 2"
    job = job_of(tmp_path, {"run.sh": f"{line} {more}\n"})
    assert sizes(job, "world_size", "tensor_parallel_size", "colocated") == [8, 2, True]
    assert read("python train.py --epochs 3").launches == ()


@pytest.mark.parametrize(
    "line",
    [
        "python main_ppo.py --epochs 3",
        "python run_sft.py --config sft.yaml",
        "python train.py --config exp.yaml lr=0.1",
        "python tools/run_eval.py a=1",
    ],
)
def test_other_programs_are_not_launches(tmp_path: Path, line: str) -> None:
    job = job_of(tmp_path, {"run.sh": line + "\ntorchrun x.py\n", "sft.yaml": "lr: 1\n", "exp.yaml": "model: x\n"})
    assert [launch.launcher for launch in job.launches] == ["torchrun"]


def test_a_program_with_lightning_and_hydra(tmp_path: Path) -> None:
    files = {
        "src/train.py": MAIN_PPO.replace('"config"', '"../configs"').replace("ppo_trainer", "train"),
        "configs/train.yaml": "defaults:\n  - trainer: ddp\n",
        "configs/trainer/ddp.yaml": "_target_: lightning.Trainer\ndevices: 4\nnum_nodes: 2\n",
        "run.sh": "srun --nodes=2 --ntasks-per-node=4 python src/train.py trainer.num_nodes=2\n",
    }
    job = job_of(tmp_path, files)
    assert sizes(job, "processes_per_node") == [4]


def test_jsrun() -> None:
    reading = read("jsrun -n 12 -a 2 -g 2 -c 14 -r 6 python train.py")
    assert reading.launches[0].launcher == "jsrun"
    found = {
        claim.quantity: claim.value
        for claim in reading.claims
        if claim.source == "jsrun" and claim.quantity != "script"
    }
    assert found == {
        "tasks": Known(24),
        "tasks_per_node": Known(12),
        "nodes": Known(2),
        "gpus_per_task": Known(1),
        "cpus_per_task": Known(7),
    }
    assert read("jsrun -n 1 python prepare.py").launches == ()


def test_further_commands() -> None:
    nemo = read("nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8")
    assert only(nemo, "nodes").value == Known(2)
    assert only(nemo, "processes_per_node").relation is Relation.SETS
    paddle = read("NNODES=2 CUDA_VISIBLE_DEVICES=0,1,2,3 paddleformers-cli train sft.yaml")
    assert (only(paddle, "nodes").value, only(paddle, "processes_per_node").value) == (Known(2), Known(4))
    swift = read("swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B")
    assert (swift.launches[0].launcher, only(swift, "processes_per_node").value) == ("swift", Known(1))
    serve = read("trl vllm-serve --model Qwen/Qwen2.5-7B --tensor-parallel-size 2 --data-parallel-size 2")
    assert (serve.launches[0].launcher, only(serve, "processes_per_node").value) == ("vllm-serve", Known(4))
