"""Command jobs, components and pipelines of Azure Machine Learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight import api
from preflight.model.job import Known, NoteKind, Plain, Strength, Unresolved
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.orchestrators import SOURCES, TaskFileSource
from tests.sources.launchers.reading_lines import read as read_script

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


# Experiments of Determined.


EXPERIMENT = """\
name: images
environment:
  environment_variables:
    - NCCL_DEBUG=INFO
resources:
  slots_per_trial: 16
searcher:
  name: single
  metric: loss
hyperparameters:
  global_batch_size: 64
  learning_rate: {type: log, base: 10, minval: -5, maxval: -2}
entrypoint: >-
  python3 -m determined.launch.torch_distributed
  python3 train.py
  --epochs 1
"""


def _determined_read(text: str) -> Reading:
    file = SourceFile("const.yaml", text, "", len(text))
    assert SOURCES[4].recognises(file)
    reading = SOURCES[4].read(file, MemoryTree({"const.yaml": text, "train.py": "import torch\n"}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def test_slots_are_ranks() -> None:
    reading = _determined_read(EXPERIMENT)
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.span.line) == ("determined", "train.py", 14)
    assert _values(reading, "world_size", "train_batch_size", "env.NCCL_DEBUG", "nodes") == {
        "world_size": 16,
        "train_batch_size": 64,
        "env.NCCL_DEBUG": "INFO",
    }
    assert "train.py" in {reference.target for reference in reading.references}


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 -m determined.launch.horovod --autohorovod python3 train.py",
        "python3 -m determined.launch.deepspeed -- python3 train.py",
        "[python3, -m, determined.launch.torch_distributed, python3, train.py]",
        "\n  - python3\n  - -m\n  - determined.launch.torch_distributed\n  - train.py",
    ],
)
def test_forms_of_the_entry_point(entrypoint: str) -> None:
    (launch,) = _determined_read(
        f"name: a\nresources: {{slots: 2}}\nmax_restarts: 0\nentrypoint: {entrypoint}\n"
    ).launches
    assert (launch.launcher, launch.program) == ("determined", "train.py")


def test_a_class_of_a_trial_is_started_without_a_program() -> None:
    (launch,) = _determined_read(
        "searcher: {}\nentrypoint: python3 -m determined.launch.horovod --trial m:T\n"
    ).launches
    assert launch.program == ""


def test_a_single_process_is_not_a_launch() -> None:
    assert not _determined_read("name: a\nmax_restarts: 0\nentrypoint: python3 train.py\n").launches


@pytest.mark.parametrize(
    "text",
    ["apiVersion: v1\nentrypoint: a\nresources: {}\n", "entrypoint: a\n", "services: {}\nentrypoint: a\nproject: b\n"],
)
def test_other_files_are_left_alone(text: str) -> None:
    assert not SOURCES[4].recognises(SourceFile("a.yaml", text, "", len(text)))


# Task files of SkyPilot, dstack and mcli: commands, resources and variables.


SKYPILOT_SOURCE, DSTACK_SOURCE, _, MCLI_SOURCE, _ = SOURCES


SKY = """name: train
num_nodes: 2
resources:
  accelerators: H100:8
envs:
  BATCH: 4
  WANDB_API_KEY:
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --node_rank=$SKYPILOT_NODE_RANK --master_addr=$MASTER_ADDR train.py --batch-size $BATCH
"""


DSTACK = """type: task
nodes: 2
env:
  - NCCL_DEBUG=INFO
  - HF_TOKEN
commands:
  - pip install -r requirements.txt
  - |
    torchrun --nnodes=$DSTACK_NODES_NUM --nproc-per-node=$DSTACK_GPUS_PER_NODE \\
      --node-rank=$DSTACK_NODE_RANK --master-addr=$DSTACK_MASTER_NODE_IP train.py
resources:
  gpu: GPU
"""


MCLI = """name: mpt
compute:
  gpus: 16
image: mosaicml/llm-foundry:latest
command: |
  composer train.py /mnt/config/parameters.yaml
parameters:
  global_train_batch_size: 64
"""


def read(source: TaskFileSource, text: str, path: str = "task.yaml") -> Reading:
    """The reading of one recognised file."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile) and source.recognises(file)
    return source.read(file, tree)


def known(reading: Reading, *quantities: str) -> dict[str, Plain]:
    """The known values of the strongest claims by quantity."""
    claims = sorted(reading.claims, key=lambda claim: claim.strength)
    return {c.quantity: c.value.value for c in claims if c.quantity in quantities and isinstance(c.value, Known)}


def test_skypilot() -> None:
    reading = read(SKYPILOT_SOURCE, SKY)
    (launch,) = reading.launches
    assert (launch.launcher, launch.span.line) == ("torchrun", 10)
    assert known(reading, "nodes", "gpus_per_node", "gpu_type", "processes_per_node", "given_batch_size") == {
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_type": "H100",
        "processes_per_node": 8,
        "given_batch_size": 4,
    }
    (master,) = (claim for claim in reading.claims if claim.quantity == "master_addr")
    assert isinstance(master.value, Unresolved) and "first host" in master.value.why


def test_skypilot_without_num_nodes_is_one_node() -> None:
    reading = read(SKYPILOT_SOURCE, SKY.replace("num_nodes: 2\n", ""))
    (nodes,) = (c for c in reading.claims if c.quantity == "nodes" and c.source == "skypilot")
    assert (nodes.value, nodes.strength) == (Known(1), Strength.DEFAULT)


def test_nodes_that_the_script_counts_are_those_of_the_task() -> None:
    text = SKY.replace(
        "torchrun --nnodes=$SKYPILOT_NUM_NODES", 'N=`echo "$SKYPILOT_NODE_IPS" | wc -l`\n  torchrun --nnodes=$N'
    )
    (nodes,) = (c for c in read(SKYPILOT_SOURCE, text).claims if c.quantity == "nodes" and c.source == "torchrun")
    assert (nodes.value, nodes.spelling) == (Known(2), "--nnodes=$N")


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("accelerators: {A100-80GB: 4}", {4}),
        ("accelerators: [A100:8, H100:8]", {8}),
        ("accelerators: [A100:8, H100:4]", {4, 8}),
        ("accelerators: V100", {1}),
        ("accelerators: ${GPUS}", set()),
        ("any_of: [{accelerators: 'A100:8'}, {accelerators: 'H200:8'}]", {8}),
    ],
)
def test_accelerators_of_skypilot(written: str, count: set[int]) -> None:
    reading = read(SKYPILOT_SOURCE, SKY.replace("accelerators: H100:8", written))
    (claim,) = (claim for claim in reading.claims if claim.quantity == "gpus_per_node")
    assert set(claim.alternatives) == count


@pytest.mark.parametrize(
    ("written", "count", "kind"),
    [
        ("8", 8, None),
        ("H100:8", 8, "H100"),
        ("H100:80GB:4", 4, "H100"),
        ("1..8", None, None),
        ("{name: H100, count: 8}", 8, "H100"),
        ("24GB", 1, None),
    ],
)
def test_gpus_of_dstack(written: str, count: int | None, kind: str | None) -> None:
    found = known(read(DSTACK_SOURCE, DSTACK.replace("GPU\n", written + "\n")), "gpus_per_node", "gpu_type")
    assert (found.get("gpus_per_node"), found.get("gpu_type")) == (count, kind)


def test_dstack_runs_its_commands_one_after_another() -> None:
    reading = read(DSTACK_SOURCE, DSTACK.replace("gpu: GPU", "gpu: H100:8"))
    assert len(reading.launches) == 1
    assert known(reading, "nodes", "processes_per_node", "env.NCCL_DEBUG") == {
        "nodes": 2,
        "processes_per_node": 8,
        "env.NCCL_DEBUG": "INFO",
    }
    assert "requirements.txt" in {reference.target for reference in reading.references}
    secret = next(claim for claim in reading.claims if claim.quantity == "env.HF_TOKEN")
    assert isinstance(secret.value, Unresolved)


def test_mcli_gives_all_gpus_and_the_parameters() -> None:
    reading = read(MCLI_SOURCE, MCLI)
    assert known(reading, "world_size", "train_batch_size") == {"world_size": 16, "train_batch_size": 64}


@pytest.mark.parametrize("source", [SKYPILOT_SOURCE, DSTACK_SOURCE, MCLI_SOURCE], ids=lambda source: source.name)
@pytest.mark.parametrize(
    "text", ["", "[", "run: [", "commands: 3\ntype: task\n", "command: {a: b}\n", "run:\n", "- a\n"]
)
def test_damaged_files_start_nothing(source: TaskFileSource, text: str) -> None:
    tree = MemoryTree({"task.yaml": text})
    file = tree.read("task.yaml")
    assert isinstance(file, SourceFile)
    assert not source.read(file, tree).launches


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nresources: {}\nrun: x\n",
        "on: push\njobs:\n  a:\n    run: x\n",
        "type: object\nproperties: {}\n",
        "run: true\nmodel: x\n",
        "command: [a]\nservices: {}\nimage: x\n",
    ],
)
def test_task_other_files_are_not_recognised(text: str) -> None:
    file = SourceFile("task.yaml", text, "", len(text))
    assert not any(source.recognises(file) for source in (SKYPILOT_SOURCE, DSTACK_SOURCE, MCLI_SOURCE))


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("sky launch -c train task.yaml -y", "task.yaml"),
        ("sky jobs launch task.yaml", "task.yaml"),
        ("dstack apply -f task.yaml", "task.yaml"),
        ("mcli run -f task.yaml --follow", "task.yaml"),
        # The line changes the requests of the file.
        ("sky launch --num-nodes 4 task.yaml", ""),
        ("sky status task.yaml", ""),
    ],
)
def test_a_line_that_submits_a_task_refers_to_its_file(line: str, target: str) -> None:
    reading = read_script(f"#!/bin/bash\n{line}\n", task_dot_yaml=SKY)
    assert {reference.target for reference in reading.references} == ({target} if target else set())


def test_the_name_of_a_file_tells_that_it_is_of_dstack() -> None:
    def recognised(path: str, text: str) -> bool:
        return DSTACK_SOURCE.recognises(SourceFile(path, text, "", len(text)))

    assert recognised("train.dstack.yml", "tpe: task\ncommands: [x]\n")
    assert not recognised("train.yml", "tpe: task\ncommands: [x]\n")
    assert not recognised("fleet.dstack.yml", "type: fleet\nnodes: 2\n")


def test_every_key_of_a_task_is_a_setting_and_no_secret_is() -> None:
    text = "type: task\nnodes: 2\ncommands: [x]\nregistry_auth:\n  username: me\n  password: hunter2\n"
    claims = read(DSTACK_SOURCE, text, "a.dstack.yml").claims
    stated = {claim.quantity: claim for claim in claims if claim.quantity.startswith("setting.dstack.")}
    assert stated["setting.dstack.nodes"].value == Known(2)
    assert isinstance(stated["setting.dstack.registry_auth.password"].value, Unresolved)
    assert not any("hunter2" in f"{claim.value}{claim.spelling}" for claim in stated.values())


def test_a_line_that_submits_a_file_tells_whose_it_is() -> None:
    found = read_script("sky launch -c train task.yaml\n", **{"task.yaml": "num_nodes: 2\nrn: python train.py\n"})
    (reference,) = found.references
    assert reference.role in SKYPILOT_SOURCE.roles
    assert [claim.value for claim in found.claims if claim.quantity == "submitted_task"] == [Known("task.yaml")]
    # What stands behind the variable may be an option that changes the task.
    assert not read_script("sky launch task.yaml $MORE\n", **{"task.yaml": SKY}).claims


def test_a_line_that_submits_a_file_counts_more_than_the_look_of_its_keys(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("num_nodes: 2\nresources:\n  gpus: H100:8\ncommand: torchrun train.py\n")
    (tmp_path / "run.sh").write_text("#!/bin/bash\nsky launch task.yaml\n")
    assert "CFG007" in {finding.id for finding in api.lint([tmp_path], root=tmp_path).findings}


@pytest.mark.parametrize(
    ("secrets", "stated"),
    [("[secrets:HF_TOKEN]", True), ("[HF_TOKEN]", True), ("true", True), ("[hf_abc1]", False), ("hf_abc1", False)],
)
def test_names_of_secrets_are_stated_and_secrets_are_not(secrets: str, stated: bool) -> None:
    claims = read(SKYPILOT_SOURCE, f"{SKY}secrets: {secrets}\n").claims
    assert ("setting.skypilot.secrets" in {claim.quantity for claim in claims}) is stated
