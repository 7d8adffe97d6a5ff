"""Command lines of notebooks and task files."""

from __future__ import annotations

import json

import pytest

from preflight.model.job import Known, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.recipes import MakefileSource, RecipesSource
from preflight.sources.formats.tree import MemoryTree


def notebook(*cells: str, kind: str = "code") -> str:
    written = [{"cell_type": kind, "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": written, "nbformat": 4}, indent=1)


def launches(path: str, text: str) -> list[tuple[str, str, int]]:
    file = SourceFile(path, text, "", len(text))
    source = MakefileSource() if path == "Makefile" else RecipesSource()
    assert source.recognises(file)
    found = source.read(file, MemoryTree({path: text}))
    return [(launch.launcher, launch.program, launch.span.line) for launch in found.launches]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("a.ipynb", notebook("x = 1\n", "!torchrun --nproc_per_node={n} train.py\n"), 12),
        ("a.ipynb", notebook("%%bash\nset -e\ntorchrun --nproc_per_node=4 \\\n  train.py\n"), 8),
        ("a.ipynb", notebook("%%sh\ntorchrun train.py"), 7),
        ("a.ipynb", notebook("%%writefile run.sh\ntorchrun train.py\n"), 7),
        ("justfile", "gpus := '4'\n\ntrain lr='1':\n    @torchrun --nproc_per_node={{gpus}} train.py\n", 4),
        ("tox.ini", "[testenv]\ncommands =\n    torchrun --nproc_per_node=4 train.py {posargs}\n", 3),
        ("Taskfile.yml", "tasks:\n  train:\n    cmds:\n      - torchrun train.py\n", 4),
        ("Taskfile.yml", 'tasks:\n  train:\n    cmds:\n      - cmd: "torchrun train.py"\n', 4),
        ("Makefile", "N ?= 4\nL = torchrun --nproc_per_node=$(N)\ntrain:\n\t@$(L) train.py\n", 2),
    ],
)
def test_launches(path: str, text: str, line: int) -> None:
    assert launches(path, text) == [("torchrun", "train.py", line)]


@pytest.mark.parametrize(
    "text", [notebook("torchrun train.py", kind="markdown"), "{", "[]", '{"cells": 3, "torchrun": 1}', "null torchrun"]
)
def test_text_cells_and_damaged_notebooks_launch_nothing(text: str) -> None:
    file = SourceFile("a.ipynb", text, "", len(text))
    assert RecipesSource().read(file, MemoryTree({})).launches == ()


def test_other_files_are_not_read() -> None:
    assert not RecipesSource().recognises(SourceFile("a.ipynb", notebook("print(1)"), "", 0))
    assert not RecipesSource().recognises(SourceFile("a.yml", "cmds:\n - torchrun\n", "", 0))


def read_cells(*cells: str) -> Reading:
    text = notebook(*cells)
    return RecipesSource().read(SourceFile("a.ipynb", text, "", len(text)), MemoryTree({"a.ipynb": text}))


@pytest.mark.parametrize("line", ["%env NODES=2", "%env NODES 2", "%set_env NODES=2", "%env NODES = 2"])
def test_a_variable_of_a_magic_reaches_the_launches_behind_it(line: str) -> None:
    reading = read_cells(line, "!torchrun --nnodes=$NODES train.py\n")
    (claim,) = [claim for claim in reading.claims if claim.quantity == "env.NODES" and not claim.scope.launch]
    assert (claim.value, claim.span.line) == (Known("2"), 6)
    assert Known(2) in [claim.value for claim in reading.claims if claim.quantity == "nodes"]


def test_a_variable_that_is_filled_in_or_set_twice_is_not_known() -> None:
    reading = read_cells("n = 2\n", "%env NODES={n}\n", "!torchrun --nnodes=$NODES train.py\n")
    (claim,) = [claim for claim in reading.claims if claim.quantity == "nodes"]
    assert isinstance(claim.value, Unresolved)
    reading = read_cells("%env A=1\n", "!torchrun train.py\n", "%env A=2\n")
    assert not [claim for claim in reading.claims if claim.quantity == "env.A" and not claim.scope.launch]


def test_a_secret_of_a_magic_is_hidden() -> None:
    reading = read_cells("%env WANDB_API_KEY=0123456789abcdef\n", "!torchrun train.py\n")
    assert "0123456789abcdef" not in repr(reading.claims)


def test_a_written_file_is_the_launched_script_at_its_lines() -> None:
    reading = read_cells("%%writefile train.py\nimport torch\nprint(1)\n", "!torchrun train.py\n")
    (written,) = reading.written
    assert (written.path, written.text, written.span.line) == ("train.py", "import torch\nprint(1)\n", 7)


@pytest.mark.parametrize("first", ["%%writefile -a train.py\nx = 1\n", "%%writefile ../../train.py\nx = 1\n"])
def test_a_file_of_several_cells_or_outside_of_the_root_is_not_read(first: str) -> None:
    assert read_cells(first, "!torchrun train.py\n").written == ()


def test_cells_that_start_ranks_are_judged_as_a_training_script() -> None:
    train = "def train():\n    loader = DataLoader(data, sampler=DistributedSampler(data), shuffle=True)\n"
    imports = "from accelerate import notebook_launcher\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
    quantities = {claim.quantity for claim in read_cells(imports, train, "notebook_launcher(train)\n").claims}
    assert any("sampler" in name or "shuffle" in name for name in quantities), quantities
    alone = {claim.quantity for claim in read_cells(imports, train, "!torchrun other.py\n").claims}
    assert not any("sampler" in name or "shuffle" in name for name in alone), alone


@pytest.mark.parametrize(
    "line",
    ['os.environ["NODES"] = "4"', 'os.environ.update(NODES="4")', "load_dotenv('x.env')", "os.putenv(name, '4')"],
)
def test_a_variable_that_python_changes_is_not_known(line: str) -> None:
    reading = read_cells("%env NODES=2", line + "\n", "!torchrun --nnodes=$NODES train.py\n")
    (claim,) = [claim for claim in reading.claims if claim.quantity == "nodes"]
    assert isinstance(claim.value, Unresolved)
    assert not [claim for claim in reading.claims if claim.quantity == "env.NODES" and not claim.scope.launch]


def test_python_that_reads_or_changes_another_variable_leaves_it_known() -> None:
    for line in ('print(os.environ["NODES"])', 'os.environ["OTHER"] = "4"'):
        reading = read_cells("%env NODES=2", line + "\n", "!torchrun --nnodes=$NODES train.py\n")
        assert Known(2) in [claim.value for claim in reading.claims if claim.quantity == "nodes"]
