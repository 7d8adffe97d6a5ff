"""Jobs that scripts and notebooks submit to SageMaker and Azure ML."""

from __future__ import annotations

import json

import pytest

from preflight.model.job import Known, Plain
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.recipes import RecipesSource
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python import python_source
from preflight.sources.python.python_source import PythonSource

SAGEMAKER = """\
from sagemaker.pytorch import PyTorch
parameters = {"lr": 0.1, "epochs": 3}
estimator = PyTorch(
    entry_point="train.py",
    source_dir="src",
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    hyperparameters=parameters,
    distribution=DISTRIBUTION,
)
estimator.fit()
"""
TORCH = '{"torch_distributed": {"enabled": True}}'
AZURE = """\
from azure.ai.ml import command, PyTorchDistribution
job = command(
    code="./src",
    command="python train.py --epochs ${{inputs.epochs}} --data ${{inputs.cifar}}",
    inputs={"epochs": 3, "cifar": Input(type="uri_folder")},
    instance_count=4,
    distribution=DISTRIBUTION,
)
"""


def _read(code: str) -> Reading:
    tree = MemoryTree({"jobs/submit.py": code, "jobs/src/train.py": "import torch\n"})
    file = tree.read("jobs/submit.py")
    assert isinstance(file, SourceFile)
    return PythonSource().read(file, tree, role="script")


def _values(reading: Reading, *names: str) -> dict[str, Plain]:
    return {c.quantity: c.value.value for c in reading.claims if c.quantity in names and isinstance(c.value, Known)}


def test_an_estimator_starts_a_rank_for_each_gpu() -> None:
    reading = _read(SAGEMAKER.replace("DISTRIBUTION", TORCH))
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.span.line) == ("python", "jobs/src/train.py", 3)
    assert launch.arguments[:4] == ("--lr", "0.1", "--epochs", "3")
    assert _values(reading, "nodes", "processes_per_node", "gpus_per_node", "world_size") == {
        "nodes": 2,
        "processes_per_node": 8,
        "gpus_per_node": 8,
        "world_size": 16,
    }


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        ('{"mpi": {"enabled": True, "processes_per_host": 4}}', {"processes_per_node": 4}),
        ('{"mpi": {"enabled": True}}', {"processes_per_node": 1}),
        ('{"smdistributed": {"dataparallel": {"enabled": True}}}', {"processes_per_node": 8}),
        ('{"parameter_server": {"enabled": True}}', {}),
    ],
)
def test_kinds_of_distribution(distribution: str, expected: dict[str, Plain]) -> None:
    reading = _read(SAGEMAKER.replace("DISTRIBUTION", distribution))
    assert len(reading.launches) == 1
    assert _values(reading, "processes_per_node") == expected


@pytest.mark.parametrize("distribution", ["None", "{}", '{"torch_distributed": {"enabled": False}}', "chosen()"])
def test_an_estimator_without_a_distribution_is_no_launch(distribution: str) -> None:
    assert not _read(SAGEMAKER.replace("DISTRIBUTION", distribution)).launches


def test_gpus_of_an_unknown_instance_are_unknown() -> None:
    reading = _read(SAGEMAKER.replace("DISTRIBUTION", TORCH).replace("p4d.24xlarge", "trn1.32xlarge"))
    assert _values(reading, "nodes", "processes_per_node", "world_size") == {"nodes": 2}


@pytest.mark.parametrize(
    "distribution",
    ['{"type": "PyTorch", "process_count_per_instance": 8}', "PyTorchDistribution(process_count_per_instance=8)"],
)
def test_a_command_of_azure_gets_its_inputs(distribution: str) -> None:
    reading = _read(AZURE.replace("DISTRIBUTION", distribution))
    (launch,) = reading.launches
    assert (launch.program, launch.arguments) == ("jobs/src/train.py", ("--epochs", "3", "--data", None))
    assert _values(reading, "nodes", "processes_per_node") == {"nodes": 4, "processes_per_node": 8}


def _notebook(*cells: str) -> SourceFile:
    listed = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    text = json.dumps({"cells": listed}, indent=1)
    return SourceFile("jobs/train.ipynb", text, "", len(text))


def test_a_notebook_submits_as_a_script_does() -> None:
    file = _notebook("%pip install sagemaker\nimport os\n\nx = 'ü'\n", SAGEMAKER.replace("DISTRIBUTION", TORCH))
    assert RecipesSource().recognises(file)
    reading = RecipesSource().read(file, MemoryTree({"jobs/src/train.py": "import torch\n"}))
    (launch,) = reading.launches
    assert launch.program == "jobs/src/train.py"
    assert "estimator = PyTorch(" in file.text.splitlines()[launch.span.line - 1]


def test_cells_of_other_languages_and_broken_cells_are_left_out() -> None:
    file = _notebook("%%bash\necho hello\n", "def f(:\n", "value = 1\n")
    code = python_source.python_of(file)
    assert code is not None
    assert code.text.split() == ["value", "=", "1"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [{"cell_type": "code", "source": 3}]}'])
def test_other_documents_hold_no_code(text: str) -> None:
    assert python_source.python_of(SourceFile("a.ipynb", text, "", len(text))) is None
