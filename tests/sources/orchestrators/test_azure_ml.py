"""Command jobs, components and pipelines of Azure Machine Learning."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, NoteKind, Plain
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.orchestrators import SOURCES

JOB = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: src
command: >-
  python train.py
  --epochs ${{inputs.epochs}}
  --data ${{inputs.cifar}}
inputs:
  epochs: 3
  cifar:
    type: uri_folder
    path: azureml:cifar-10@latest
environment: azureml:pytorch@latest
environment_variables:
  NCCL_DEBUG: INFO
compute: azureml:gpus
distribution:
  type: pytorch
  process_count_per_instance: 8
resources:
  instance_count: 2
"""
FILES = {"jobs/src/train.py": "import torch\n"}


def _read(text: str) -> Reading:
    file = SourceFile("jobs/job.yml", text, "", len(text))
    assert SOURCES[2].recognises(file)
    reading = SOURCES[2].read(file, MemoryTree({"jobs/job.yml": text, **FILES}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _values(reading: Reading, *names: str) -> dict[str, Plain]:
    return {c.quantity: c.value.value for c in reading.claims if c.quantity in names and isinstance(c.value, Known)}


def test_every_instance_starts_its_processes() -> None:
    reading = _read(JOB)
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.span.line) == ("python", "jobs/src/train.py", 4)
    assert launch.arguments[:2] == ("--epochs", "3")
    assert launch.arguments[3] is None
    assert _values(reading, "nodes", "processes_per_node", "env.NCCL_DEBUG", "world_size") == {
        "nodes": 2,
        "processes_per_node": 8,
        "env.NCCL_DEBUG": "INFO",
        "world_size": 16,
    }


def test_a_launcher_is_one_task_on_each_instance() -> None:
    text = JOB.replace("python train.py", "torchrun --nnodes 2 --nproc_per_node 8 train.py").replace(
        "process_count_per_instance: 8", "process_count_per_instance: 1"
    )
    reading = _read(text)
    assert [launch.launcher for launch in reading.launches] == ["torchrun"]
    assert _values(reading, "processes_per_node", "tasks_per_node") == {"processes_per_node": 8, "tasks_per_node": 1}


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ("{type: mpi, process_count_per_instance: 4}", {"processes_per_node": 4}),
        ("{type: tensorflow, worker_count: 2}", {"world_size": 2}),
        ("{type: pytorch}", {}),
        ("{type: tensorflow, worker_count: 2, parameter_server_count: 1}", {}),
        ("{type: pytorch, process_count_per_instance: many}", {}),
    ],
)
def test_kinds_of_distribution(distribution: str, expected: dict[str, Plain]) -> None:
    reading = _read(f"code: src\ncommand: python train.py\nenvironment: azureml:a\ndistribution: {distribution}\n")
    assert [launch.launcher for launch in reading.launches] == ["python"]
    assert _values(reading, "processes_per_node", "world_size") == expected


def test_each_job_of_a_pipeline_has_its_own_size() -> None:
    task = (
        "  {name}:\n    code: src\n    command: python train.py\n    resources: {{instance_count: {nodes}}}\n"
        "    distribution: {{type: pytorch, process_count_per_instance: 1}}\n"
    )
    reading = _read(
        "type: pipeline\nsettings: {default_compute: azureml:gpus}\njobs:\n"
        + task.format(name="train", nodes=2)
        + task.format(name="evaluate", nodes=4)
        + "  wait:\n    command: sleep 1\n"
    )
    nodes = {claim.scope.launch: claim.value for claim in reading.claims if claim.quantity == "nodes"}
    assert [nodes[launch.id] for launch in reading.launches] == [Known(2), Known(4)]


def test_defaults_of_a_component_reach_the_command() -> None:
    reading = _read(
        "type: command\nenvironment: azureml:a\ninputs:\n  lr: {type: number, default: 0.1}\ncode: src\n"
        "command: python train.py --lr ${{inputs.lr}} --name ${{inputs.name}}\n"
        "distribution: {type: pytorch, process_count_per_instance: 2}\nresources: {instance_count: 1}\n"
    )
    assert [launch.arguments for launch in reading.launches] == [("--lr", "0.1", "--name", None)]


@pytest.mark.parametrize(
    "text",
    [
        "command: python train.py\nresources: {cpus: 4}\n",
        "apiVersion: v1\ncommand: python train.py\nresources: {}\nenvironment: azureml:a\n",
    ],
)
def test_other_files_are_not_recognised(text: str) -> None:
    assert not SOURCES[2].recognises(SourceFile("a.yml", text, "", len(text)))


@pytest.mark.parametrize("end", range(40, len(JOB), 37))
def test_a_damaged_file_is_still_read(end: int) -> None:
    file = SourceFile("jobs/job.yml", JOB[:end], "", end)
    notes = SOURCES[2].read(file, MemoryTree({})).notes
    assert NoteKind.CRASHED not in {note.kind for note in notes}
