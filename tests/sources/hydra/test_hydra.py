"""None"""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight._util.budget import Budget, BudgetExceeded, Limits
from preflight.model.job import Job, Known, OneOf, Plain, Relation, Strength, Unresolved
from preflight.plugins import registry
from preflight.sources.base import defaults_assumed
from preflight.sources.discovery.assemble import assemble
from preflight.sources.formats.tree import DirectoryTree
from preflight.sources.hydra.composition import compose_config
from preflight.sources.hydra.configuration import ConfigFolders, Leaf
from preflight.sources.hydra.overrides import (
    Action,
    Opaque,
    OverrideError,
    Sweep,
    as_value,
    parse,
    parse_value,
)
from tests.sources.hydra.composing import compose, kinds, plain
from tests.sources.launchers.reading_lines import only, read

FILES = {
    "config.yaml": "defaults:\n  - model: small\n  - _self_\ntrainer:\n  nodes: 2\n  gpus: 8\n",
    "model/small.yaml": "layers: 12\nname: small\n",
    "model/large.yaml": "layers: 96\nname: large\n",
}


def test_a_group_goes_below_its_name() -> None:
    assert plain(compose(FILES)) == {
        "model": {"layers": 12, "name": "small"},
        "trainer": {"nodes": 2, "gpus": 8},
    }


def test_an_override_selects_from_a_group_or_changes_a_value() -> None:
    found = compose(FILES, "model=large", "trainer.nodes=4", "+trainer.steps=10", "~trainer.gpus", "++seed=1")
    assert plain(found) == {
        "model": {"layers": 96, "name": "large"},
        "trainer": {"nodes": 4, "steps": 10},
        "seed": 1,
    }
    assert kinds(found) == []


def test_a_value_has_its_location_and_the_value_it_replaced() -> None:
    leaf = compose(FILES, "trainer.nodes=4").leaf("trainer.nodes")
    assert isinstance(leaf, Leaf) and isinstance(leaf.before, Leaf)
    assert (leaf.value, leaf.place.strength, leaf.place.spelling) == (Known(4), Strength.FLAG, "trainer.nodes=4")
    assert (leaf.before.value, leaf.before.place.span.path, leaf.before.place.span.line) == (
        Known(2),
        "conf/config.yaml",
        5,
    )


@pytest.mark.parametrize(
    ("files", "overrides", "kind"),
    [
        ({}, ["trainer.node=4"], "unknown-key"),
        ({}, ["train.nodes=4"], "unknown-key"),
        ({}, ["model=huge"], "missing-config"),
        ({}, ["~trainer.steps"], "nothing-to-delete"),
        ({}, ["+trainer.nodes=4"], "already-there"),
        ({}, ["trainer=[1]"], "other-kind"),
        ({"config.yaml": "defaults:\n  - model: ???\n"}, [], "not-chosen"),
        ({"config.yaml": "defaults:\n  - override model: small\n"}, [], "unused-choice"),
        ({"config.yaml": "defaults:\n  - model: small\n  - model: large\n"}, [], "chosen-twice"),
        ({"config.yaml": "defaults: {model: small}\n"}, [], "malformed-defaults"),
        ({"config.yaml": "defaults:\n  - other\n", "other.yaml": "defaults:\n  - config\n"}, [], "endless"),
    ],
)
def test_refusals_are_those_of_hydra(files: dict[str, str], overrides: list[str], kind: str) -> None:
    assert kinds(compose({**FILES, **files}, *overrides)) == [kind]


def test_missing_files_cause_no_refusal() -> None:
    found = compose(FILES, "trainer.node=4", "other=x", incomplete="a package that is installed")
    assert kinds(found) == []


def test_packages() -> None:
    files = {
        "config.yaml": "defaults:\n  - model@actor: small\n  - model@critic.net: large\n  - /top\n"
        "  - optional gone: x\n",
        "model/small.yaml": FILES["model/small.yaml"],
        "model/large.yaml": FILES["model/large.yaml"],
        "top.yaml": "# @package _global_\nseed: 1\n",
    }
    assert plain(compose(files, "model@actor=large")) == {
        "actor": {"layers": 96, "name": "large"},
        "critic": {"net": {"layers": 96, "name": "large"}},
        "seed": 1,
    }


def test_the_place_of_self_decides() -> None:
    files = {"config.yaml": "defaults:\n  - _self_\n  - base\nx: 1\n", "base.yaml": "x: 2\n"}
    assert plain(compose(files)) == {"x": 2}
    files["config.yaml"] = "defaults:\n  - base\n  - _self_\nx: 1\n"
    assert plain(compose(files)) == {"x": 1}


def test_a_choice_in_a_name() -> None:
    files = {
        **FILES,
        "config.yaml": "defaults:\n  - model: small\n  - opt: ${model}\n",
        "opt/small.yaml": "lr: 1e-3\n",
        "opt/large.yaml": "lr: 1e-4\n",
    }
    assert plain(compose(files))["opt"] == {"lr": 1e-3}  # type: ignore[index]
    assert plain(compose(files, "model=large"))["opt"] == {"lr": 1e-4}  # type: ignore[index]


def test_interpolations() -> None:
    text = (
        "n: 2\nsub:\n  g: 8\n  same: ${.g}\n  up: ${..n}\n  text: n${n}-g${sub.g}\n  all: ${oc.select:gone,7}\n"
        "  deep: ${sub.${name}}\n  time: ${now:%Y}\n  own: ${eval:'2*3'}\nname: g\nlist: [1, 4]\nsecond: ${list.1}\n"
        "part: ${sub}\ninner: ${part.g}\n"
    )
    found = compose({"config.yaml": text})
    assert {key: found.value(key) for key in ("sub.same", "sub.up", "sub.text", "sub.all", "sub.deep", "second")} == {
        "sub.same": Known(8),
        "sub.up": Known(2),
        "sub.text": Known("n2-g8"),
        "sub.all": Known(7),
        "sub.deep": Known(8),
        "second": Known(4),
    }
    assert found.value("inner") == Known(8) and found.value("part.g") == Known(8)
    shown = plain(found)
    assert isinstance(shown, dict)
    assert shown["sub"]["own"].startswith("<${eval:...}") and shown["sub"]["time"].startswith("<${now:...}")


def test_variables_of_the_launch_and_their_defaults() -> None:
    files = {"config.yaml": "n: ${oc.env:NNODES,2}\nm: ${oc.env:NODES}\np: ${TEAM:amd}\n"}
    found = compose(files, environment={"NNODES": OneOf(("2", "4"))})
    assert found.value("n") == OneOf(("2", "4"))
    assert plain(compose(files)) == {
        "n": "<$NNODES, set by the caller, default 2>",
        "m": "<$NODES, which the caller sets>",
        "p": "<$TEAM, set by the caller, default amd>",
    }
    with defaults_assumed() as assumed:
        assert compose(files).value("n") == Known("2")
    assert assumed["NNODES"] == "2"


@pytest.mark.parametrize(
    "text",
    [
        "a: ${b}\nb: ${a}\n",
        "a: ${a}\n",
        "a: ${gone}\n",
        "a: '${b'\n",
        "a:\n  b: ${a}\n",
        "a: ${b}\nb: ???\n",
        "a: ${..b}\nb: 1\n",
    ],
)
def test_unresolvable_interpolations_have_no_value(text: str) -> None:
    found = compose({"config.yaml": text})
    assert found.value("a") is None or found.value("a.b") is None


def test_a_chain_of_references_ends() -> None:
    lines = [f"k{index}: ${{k{index + 1}}}" for index in range(300)]
    assert compose({"config.yaml": "\n".join(lines)}).value("k0") is None


def test_damaged_files() -> None:
    assert plain(compose({"config.yaml": "a: 1\nb: [1,\nc: 2\n"})) in ({"a": 1}, {})
    assert plain(compose({"config.yaml": "- 1\n"})) == {}
    assert plain(compose({"config.yaml": ""})) == {}


def test_a_hostile_tree_stays_within_the_budget() -> None:
    """Each configuration includes two others, twenty deep: a million without a limit."""
    files = {f"c{i}.yaml": f"defaults:\n  - c{i + 1}@a{i}\n  - c{i + 1}@b{i}\nx: 1\n" for i in range(20)}
    files["c20.yaml"] = "x: 1\n"
    budget = Budget(Limits())
    try:
        with budget.watched():
            found = budget.attempt(lambda: compose(files, name="c0"))
    except BudgetExceeded:
        return
    assert kinds(found) == ["endless"]


def test_a_link_into_a_submodule_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults:\n  - base\nseed: 1\n")
    (tmp_path / "conf" / "base.yaml").symlink_to("../submodule/base.yaml")
    found = compose_config(ConfigFolders(DirectoryTree(tmp_path), ("conf",), ""), "config", [], {})
    assert kinds(found) == []
    assert "may be in a submodule" in found.resolver.incomplete


# Claims of launches of the frameworks, each in the form that its users write.


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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-20", -20),
        ("1_000", 1000),
        ("010", "010"),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("True", True),
        ("NULL", None),
        ("", ""),
        ("foo-bar_10", "foo-bar_10"),
        ("a/b.c", "a/b.c"),
        ("x:y", "x:y"),
        ("'hello, world'", "hello, world"),
        ('"it\\"s"', 'it"s'),
        ("a\\,b", "a,b"),
        ("[1, 2,[a]]", [1, 2, ["a"]]),
        ("[]", []),
        ("{a:1,b:{c:x}}", {"a": 1, "b": {"c": "x"}}),
        ("${a.b}", "${a.b}"),
        ("${oc.env:X,${y}}", "${oc.env:X,${y}}"),
        ("1,2,x", Sweep((1, 2, "x"))),
        ("choice(1,2)", Sweep((1, 2))),
        ("range(1,4)", Sweep((1, 2, 3))),
        ("range(3)", Sweep((0, 1, 2))),
        ("int('4')", 4),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "action", "key", "package", "given"),
    [
        ("trainer.nnodes=2", Action.CHANGE, "trainer.nnodes", None, True),
        ("+a=1", Action.ADD, "a", None, True),
        ("++a.b=1", Action.FORCE, "a.b", None, True),
        ("~a.b", Action.DELETE, "a.b", None, False),
        ("db@src=mysql", Action.CHANGE, "db", "src", True),
        ("model/part=p", Action.CHANGE, "model/part", None, True),
        ("a[0]=1", Action.CHANGE, "a[0]", None, True),
    ],
)
def test_heads(text: str, action: Action, key: str, package: str | None, given: bool) -> None:
    found = parse(text)
    assert (found.action, found.key, found.package, found.given) == (action, key, package, given)


@pytest.mark.parametrize(
    "text", ["a=[1,2", "a={b", "a='x", "a=${b", "a=[1]2", "--flag", "train.py", "a=" + "[" * 50 + "]" * 50]
)
def test_other_texts_are_not_overrides(text: str) -> None:
    with pytest.raises(OverrideError):
        parse(text)


def test_elements_as_values_of_claims() -> None:
    assert as_value(Sweep((4, 8))) == OneOf((4, 8))
    assert as_value([1, 2]) == Known((1, 2))
    assert isinstance(as_value(Opaque("glob(*)")), Unresolved)
    assert isinstance(as_value([[1]]), Unresolved)
    assert isinstance(parse_value("range(0,1000000)"), Opaque)
