"""Programs that start ranks themselves."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Unresolved, Value
from preflight.model.job.value import Symbol, without_place
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python.python_source import PythonSource

ALL = Unresolved(Symbol.GPU_COUNT.value)
MAIN = '\nif __name__ == "__main__":\n    main()\n'
SPAWN = "import torch\nimport torch.multiprocessing as mp\ndef work(rank): ...\ndef main():\n    {call}\n" + MAIN
LIGHTNING = "import lightning.pytorch as pl\ndef main():\n    pl.Trainer({arguments}).fit(None)\n" + MAIN


def _read(text: str, role: str = "script") -> Reading:
    file = SourceFile("train.py", text, "", len(text))
    return PythonSource().read(file, MemoryTree({"train.py": text}), role=role)


def _sizes(text: str) -> dict[str, Value]:
    reading = _read(text)
    scopes = {launch.scope for launch in reading.launches}
    return {claim.quantity: claim.value for claim in reading.claims if claim.scope in scopes}


def _count(text: str, quantity: str) -> Value:
    return next(claim.value for claim in _read(text).claims if claim.quantity == quantity)


def test_spawned_processes_are_ranks() -> None:
    text = SPAWN.format(call="mp.spawn(work, nprocs=4)")
    (launch,) = _read(text).launches
    assert (launch.launcher, launch.program, launch.span.line, launch.condition) == ("python", "train.py", 5, "")
    assert (_sizes(text), _count(text, "spawned_processes")) == ({}, Known(4))


@pytest.mark.parametrize(
    ("call", "quantity", "expected"),
    [
        ("mp.spawn(work, (1,), 2)", "spawned_processes", Known(2)),
        ("mp.spawn(work, nprocs=torch.cuda.device_count())", "spawned_processes", ALL),
        ("mp.spawn(work, nprocs=8); os.environ['WORLD_SIZE']", "processes_per_node", Known(8)),
        (
            'p.add_argument("--gpus"); p.add_argument("--local_rank"); args = p.parse_args(); '
            "mp.spawn(work, nprocs=args.gpus)",
            "processes_per_node",
            Unresolved("the value of `--gpus`"),
        ),
    ],
)
def test_number_of_spawned_processes(call: str, quantity: str, expected: Value) -> None:
    assert without_place(_count(SPAWN.format(call=call), quantity)) == expected
    assert "world_size" not in _sizes(SPAWN.format(call=call))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("devices=8, num_nodes=2", {"processes_per_node": Known(8), "nodes": Known(2)}),
        ("devices=4", {"processes_per_node": Known(4), "nodes": Known(1)}),
        (
            'devices="auto", strategy="ddp"',
            {"processes_per_node": ALL, "nodes": Known(1)},
        ),
    ],
)
def test_trainer_of_lightning(arguments: str, expected: dict[str, Value]) -> None:
    assert _sizes(LIGHTNING.format(arguments=arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('gpus=4, accelerator="ddp"', {"processes_per_node": Known(4), "nodes": Known(1)}),
        ('gpus=[0, 1], accelerator="ddp_spawn"', {"processes_per_node": Known(2), "nodes": Known(1)}),
        ('gpus=8, num_nodes=2, distributed_backend="ddp"', {"processes_per_node": Known(8), "nodes": Known(2)}),
        ('gpus=8, accelerator="gpu", strategy="ddp_sharded"', {"processes_per_node": Known(8), "nodes": Known(1)}),
        ('gpus=-1, strategy="ddp"', {"processes_per_node": ALL, "nodes": Known(1)}),
        ('num_processes=2, accelerator="ddp_cpu"', {"processes_per_node": Known(2), "nodes": Known(1)}),
        ("gpus=2", {"processes_per_node": Known(2), "nodes": Known(1)}),
    ],
)
def test_trainer_of_lightning_before_its_second_release(arguments: str, expected: dict[str, Value]) -> None:
    assert _sizes(LIGHTNING.format(arguments=arguments)) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        *("max_epochs=3", "devices=1", 'devices=4, strategy="dp"'),
        *("gpus=1", "gpus=g", 'gpus=4, accelerator="dp"', 'gpus=1, accelerator="ddp"', "gpus=4, accelerator=a"),
        'gpus=4, accelerator="horovod"',
    ],
)
def test_a_trainer_in_one_process_is_no_launch(arguments: str) -> None:
    assert not _read(LIGHTNING.format(arguments=arguments)).launches


def test_workers_of_ray_are_ranks_and_lightning_inside_starts_none() -> None:
    text = (
        "import lightning.pytorch as pl\nfrom ray.train import ScalingConfig\n"
        "from ray.train.torch import TorchTrainer\n"
        "def loop():\n    pl.Trainer(devices='auto', strategy=s)\ndef main():\n"
        "    scaling = ScalingConfig(num_workers=16, use_gpu=True)\n"
        "    TorchTrainer(loop, scaling_config=scaling).fit()\n"
    )
    assert len(_read(text + MAIN).launches) == 1
    assert _sizes(text + MAIN)["world_size"] == Known(16)


def test_every_task_of_submitit_calls_the_function() -> None:
    text = (
        "import submitit\ndef main():\n    executor = submitit.AutoExecutor(folder='log')\n"
        "    executor.update_parameters(nodes=2, tasks_per_node=8, gpus_per_node=8)\n"
        "    executor.update_parameters(name='a')\n    executor.submit(work)\n"
    )
    assert [launch.launcher for launch in _read(text + MAIN).launches] == ["submitit"]
    sizes = _sizes(text + MAIN)
    assert (sizes["nodes"], sizes["processes_per_node"], sizes["gpus_per_node"]) == (Known(2), Known(8), Known(8))


@pytest.mark.parametrize("role", ["module", "submodule"])
def test_an_imported_module_starts_nothing(role: str) -> None:
    assert not _read(SPAWN.format(call="mp.spawn(work, nprocs=4)"), role).launches


def test_a_module_that_only_defines_things_starts_nothing() -> None:
    assert not _read("import torch.multiprocessing as mp\ndef start(f):\n    mp.spawn(f, nprocs=4)\n").launches


def test_spawn_of_paddle_without_a_number_takes_all_gpus() -> None:
    text = SPAWN.replace("import torch\nimport torch.multiprocessing as mp", "import paddle.distributed as dist")
    assert _sizes(text.format(call="dist.spawn(work, args=(1,))")) == {"processes_per_node": ALL}


def test_spawn_of_torch_without_a_number_is_one_process() -> None:
    assert _sizes(SPAWN.format(call="mp.spawn(work, args=(1,))")) == {"processes_per_node": Known(1)}
