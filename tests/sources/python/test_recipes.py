"""Configurations that are built in Python, and their launches: torchtitan, Megatron-Bridge, NeMo, HugeCTR."""

from __future__ import annotations

import pytest

from preflight.model.job import WHOLE_JOB, Known, Plain, Relation, Scope, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python.python_source import PythonSource

REGISTRY = """from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer


def small() -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(max_context_length=2048, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )


def large() -> Trainer.Config:
    config = small()
    config.parallelism.tensor_parallel_degree = 4 * 2
    if fast():
        config.training.steps = 5
    return config
"""
BRIDGE = """from megatron.bridge.recipes.common import base


def recipe():
    cfg = base()
    cfg.model.tensor_model_parallel_size = 4
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = batch()
    return cfg
"""
NEMO = """import nemo_run as run
from nemo.collections import llm


def main(nodes):
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    executor = run.SlurmExecutor(account="a", partition="gpu", nodes=NODES, ntasks_per_node=8, gpus_per_node=8)
    run.run(recipe, executor=executor)
"""


def read(text: str, role: str = "script", scope: Scope = WHOLE_JOB) -> Reading:
    """The reading of a script."""
    tree = MemoryTree({"a.py": text})
    file = tree.read("a.py")
    assert isinstance(file, SourceFile)
    return PythonSource().read(file, tree, role=role, scope=scope)


def claimed_values(reading: Reading, source: str, role: str = "") -> dict[str, Plain]:
    """The values of the claims of one source and role by quantity; None if unknown."""
    return {
        claim.quantity: claim.value.value if isinstance(claim.value, Known) else None
        for claim in reading.claims
        if claim.source == source and claim.scope.role == role
    }


def test_several_recipes_of_a_module_are_kept_apart() -> None:
    reading = read(REGISTRY)
    small = {"tensor_parallel_size": 2, "sequence_length": 2048, "train_steps": 10}
    assert claimed_values(reading, "torchtitan", "small") == small
    # A value set by a branch is unknown.
    assert claimed_values(reading, "torchtitan", "large") == {**small, "tensor_parallel_size": 8, "train_steps": None}


def test_a_launch_has_the_claims_of_its_recipe() -> None:
    reading = read(REGISTRY, "recipe large", Scope())
    claims = {claim.quantity: claim for claim in reading.claims}
    assert claims["tensor_parallel_size"].value == Known(8)
    assert claims["tensor_parallel_size"].span.line == 14
    assert not read(REGISTRY, "recipe none").claims


def test_a_recipe_on_top_of_another_module() -> None:
    values = claimed_values(read(BRIDGE), "megatron-bridge")
    assert {name: value for name, value in values.items() if not name.startswith("setting.")} == {
        "tensor_parallel_size": 4,
        "train_batch_size": 512,
        "micro_batch_size_per_gpu": None,
    }


def test_arguments_of_a_call_replace_the_defaults_of_parameters() -> None:
    text = (
        "import nemo_run as run\nfrom nemo import lightning as nl\n\n\n"
        "def trainer(nodes: int = 1, devices: int = 8, tensor: int = 2):\n"
        "    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tensor)\n"
        "    return run.Config(nl.Trainer, num_nodes=nodes, devices=devices, strategy=strategy)\n\n\n"
        "def recipe(name):\n    return run.Partial(pretrain, trainer=trainer(4, tensor=size(name)))\n"
    )
    reading = read(text)
    assert claimed_values(reading, "nemo", "trainer") == {
        "nodes": 1,
        "processes_per_node": 8,
        "tensor_parallel_size": 2,
    }
    assert claimed_values(reading, "nemo", "recipe") == {
        "nodes": 4,
        "processes_per_node": 8,
        "tensor_parallel_size": None,
    }


def test_functions_that_call_each_other_terminate() -> None:
    text = BRIDGE + "\n\ndef one():\n    cfg = two()\n    return cfg\n\n\ndef two():\n    cfg = one()\n    return cfg\n"
    assert claimed_values(read(text), "megatron-bridge")["tensor_parallel_size"] == 4


@pytest.mark.parametrize("text", ["import megatron.bridge\n", "from nemo.lightning import x\ncfg.a.b.c = 1\n"])
def test_modules_without_a_configuration_state_no_claims(text: str) -> None:
    assert {claim.quantity for claim in read(text).claims} - {"imported_framework"} == {"script"}


def test_a_nemo_run_executor_determines_the_ranks() -> None:
    reading = read(NEMO.replace("NODES", "4"))
    (launch,) = reading.launches
    assert (launch.launcher, launch.span.line) == ("nemo-run", 8)
    assert claimed_values(reading, "nemo-run") == {
        "nodes": 4,
        "processes_per_node": 8,
        "gpus_per_node": 8,
        "partition": "gpu",
    }
    wanted = {c.quantity: c for c in reading.claims if c.source == "nemo"}
    assert wanted["nodes"].value == Known(2) and wanted["nodes"].relation is Relation.REQUIRES
    assert wanted["tensor_parallel_size"].value == Known(4)


def test_an_external_number_is_symbolic() -> None:
    reading = read(NEMO.replace("NODES", "nodes"))
    (claim,) = (c for c in reading.claims if c.quantity == "nodes" and c.source == "nemo-run")
    assert isinstance(claim.value, Unresolved) and "nodes" in claim.value.why


def test_several_executors_require_no_sizes() -> None:
    text = NEMO.replace("NODES", "4") + "\n\ndef local():\n    return run.LocalExecutor(ntasks_per_node=2)\n"
    reading = read(text)
    assert len(reading.launches) == 2
    assert "nodes" not in claimed_values(reading, "nemo")


def test_a_program_started_by_another_launch_is_not_a_launch() -> None:
    reading = read(NEMO.replace("NODES", "4"), scope=Scope(launch="run.sh:2"))
    assert not reading.launches and not claimed_values(reading, "nemo-run")


def test_hugectr_requires_one_process_per_list_of_gpus() -> None:
    text = "import hugectr\nsolver = hugectr.CreateSolver(vvgpu=[[0, 1, 2, 3], [0, 1, 2, 3]], batchsize=16384)\n"
    claims = {claim.quantity: claim for claim in read(text).claims if claim.source == "hugectr"}
    assert claims["world_size"].value == Known(2) and claims["world_size"].relation is Relation.REQUIRES
    assert claims["gpus_per_node"].value == Known(4)
    assert claims["train_batch_size"].value == Known(16384)


@pytest.mark.parametrize("given", ["vvgpu=gpus", "vvgpu=[[]]", "vvgpu=[0]", ""])
def test_hugectr_with_unknown_gpus(given: str) -> None:
    text = f"import hugectr\nsolver = hugectr.CreateSolver({given})\n"
    assert not claimed_values(read(text), "hugectr")
