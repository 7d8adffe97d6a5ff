"""Files of variables: valid and invalid ones, and how launches refer to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.hostnames import is_hostname, split_endpoint
from preflight.model.job import Claim, Known, NoteKind, Relation, Scope, Strength, Unresolved, Value
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import PaddleRecSource
from preflight.sources.configs.line_files import DotenvSource, HostfileSource
from preflight.sources.configs.recipes import MakefileSource, RecipesSource
from preflight.sources.discovery.assemble import assemble
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell.shell_source import ShellSource


def source_file(path: str, text: str) -> SourceFile:
    """A file as read."""
    file = MemoryTree({path: text}).read(path)
    assert isinstance(file, SourceFile)
    return file


def claimed_values(text: str) -> dict[str, object]:
    """The value of each variable; None for an unresolved one."""
    file = source_file(".env", text)
    found = DotenvSource().read(file, MemoryTree({}), scope=Scope(launch="x"))
    assert all(claim.scope == Scope(launch="x") for claim in found.claims)
    return {c.quantity: c.value.value if isinstance(c.value, Known) else None for c in found.claims}


def test_lines_of_every_kind() -> None:
    text = "# c\n\nA=1\nexport B=two words # note\nC='x y'\nD=\"q\"\nE=\nNAME_ALONE\nF = 3\r\n"
    assert claimed_values(text) == {
        "env.A": "1",
        "env.B": "two words",
        "env.C": "x y",
        "env.D": "q",
        "env.E": "",
        "env.F": "3",
    }


def test_references_are_unresolved_and_secrets_are_hidden() -> None:
    assert claimed_values("A=$B\nC={{ c }}\nD=<fill in>\nE='$literal'\n") == {
        "env.A": None,
        "env.C": None,
        "env.D": None,
        "env.E": "$literal",
    }
    reading = DotenvSource().read(source_file(".env", "HF_TOKEN=hf_abc\n"), MemoryTree({}))
    assert "hf_abc" not in repr(reading)


def test_the_last_of_two_lines_counts_and_invalid_lines_are_noted() -> None:
    assert claimed_values("A=1\nA=2\n") == {"env.A": "2"}
    reading = DotenvSource().read(source_file(".env", "A=1\nthis is no line\n"), MemoryTree({}))
    assert [note.span.line for note in reading.notes] == [2]


def test_only_files_about_ranks_are_recognised() -> None:
    source = DotenvSource()
    assert source.recognises(source_file("deploy/train.env", "export NCCL_DEBUG=INFO\n"))
    assert source.recognises(source_file(".deepspeed_env", "NCCL_IB_DISABLE=1\n"))
    assert not source.recognises(source_file(".env", "DATABASE_URL=postgres://x\n"))
    assert not source.recognises(source_file("env.py", "MASTER_ADDR=1\n"))
    assert not source.recognises(source_file(".env.example", "MASTER_ADDR=1\n"))


def test_a_launch_has_the_variables_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("docker run --env-file job.env image torchrun --nproc_per_node=2 t.py\n")
    (tmp_path / "job.env").write_text("OMP_NUM_THREADS=4\n")
    (job,) = assemble(tmp_path, [tmp_path], sources=[ShellSource(), DotenvSource()])
    claim = job.setting("env.OMP_NUM_THREADS", job.launches[0].scope)[0]
    assert (claim.value, claim.span.path) == (Known("4"), "job.env")


def test_deepspeed_reads_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("deepspeed t.py\n")
    (tmp_path / ".deepspeed_env").write_text("NCCL_IB_DISABLE=1\n")
    (job,) = assemble(tmp_path, [tmp_path], sources=[ShellSource(), DotenvSource()])
    assert job.setting("env.NCCL_IB_DISABLE", job.launches[0].scope)


def launches(text: str) -> list[tuple[str, str, dict[str, object]]]:
    """The launch lines of a Makefile: location, launcher and the known values of its own options."""
    reading = MakefileSource().read(source_file("Makefile", text), MemoryTree({}))
    return [
        (
            launch.id,
            launch.launcher,
            {
                claim.quantity: claim.value.value if isinstance(claim.value, Known) else None
                for claim in reading.claims
                if claim.scope == launch.scope
                and claim.strength is Strength.FLAG
                and claim.quantity in ("processes_per_node", "nodes", "node_rank")
            },
        )
        for launch in reading.launches
    ]


def test_launching_recipe_lines_are_read_with_make_variables() -> None:
    recipe = "\t@echo torchrun is next\n\t-torchrun --nproc_per_node=$(N) \\\n\t  --nnodes=2 t.py\n"
    text = f"N := 8\nall: train\ntrain:\n{recipe}"
    assert launches(text) == [("Makefile:5", "torchrun", {"processes_per_node": 8, "nodes": 2})]


def test_make_functions_and_unset_variables_are_unresolved() -> None:
    text = "N ?= 4\nN += 1\nt:\n\ttorchrun --nproc_per_node=$(N) --nnodes=$(shell cat n) --node_rank=$(RANK) t.py\n"
    ((_, _, found),) = launches(text)
    assert set(found.values()) == {None}


def test_variables_of_the_shell_in_a_recipe() -> None:
    text = "t:\n\tfor i in 0 1; do ssh h$$i torchrun --nnodes=2 --node_rank=$$i --master_addr=h0 t.py & done\n"
    assert [found["node_rank"] for _, _, found in launches(text)] == [0, 1]


def test_makefiles_without_launches_are_not_recognised() -> None:
    assert not MakefileSource().recognises(source_file("Makefile", "all:\n\tgcc x.c\n"))
    assert MakefileSource().recognises(source_file("tools/train.mk", "t:\n\ttorchrun t.py\n"))
    assert launches("# torchrun\nt:\n\t# torchrun t.py\n\techo \\") == []


def test_an_exported_variable_reaches_the_ranks() -> None:
    reading = MakefileSource().read(
        source_file("Makefile", "export NCCL_DEBUG = INFO\nt:\n\ttorchrun t.py\n"), MemoryTree({})
    )
    assert [c.value for c in reading.claims if c.quantity == "env.NCCL_DEBUG"] == [Known("INFO")]
    assert not [c for c in reading.claims if isinstance(c.value, Unresolved) and c.quantity == "nodes"]


# Hostfiles: hosts, their slots, and invalid lines.


def _file(text: str, path: str = "hostfile") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str, scope: Scope = Scope()) -> Reading:  # noqa: B008
    return HostfileSource().read(_file(text), MemoryTree({}), scope=scope, role="hostfile")


def _value(reading: Reading, quantity: str, relation: Relation = Relation.SETS) -> object:
    (claim,) = [c for c in reading.claims if c.quantity == quantity and c.relation is relation]
    assert isinstance(claim.value, Known)
    return claim.value.value


def _of(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def test_two_hosts_with_slots() -> None:
    reading = _read("# nodes\nworker-1 slots=8\n\n  worker-2   slots=8 # spare\n", Scope(launch="run.sh:3"))
    assert _value(reading, "hosts") == ("worker-1", "worker-2")
    assert _value(reading, "nodes") == 2
    assert _value(reading, "nodes", Relation.AT_MOST) == 2
    assert _value(reading, "world_size") == 16
    assert _value(reading, "processes_per_node") == 8
    first, second = _of(reading, "host_slots")
    assert first.scope == Scope(launch="run.sh:3", node="worker-1")
    assert (second.span.line, second.span.column, second.span.end_column) == (4, 3, 29)
    assert second.spelling == "worker-2   slots=8 # spare"
    assert all(claim.strength is Strength.CONFIG and claim.source == "hostfile" for claim in reading.claims)
    assert all(is_known(claim.quantity) for claim in reading.claims)
    (hosts,) = _of(reading, "hosts")
    assert (hosts.span.line, hosts.span.end_line) == (2, 4)
    assert reading.notes == ()


def test_unequal_slots_have_no_processes_per_node() -> None:
    reading = _read("a slots=8\nb slots=4\n")
    assert _value(reading, "world_size") == 12
    assert not _of(reading, "processes_per_node")


def test_a_repeated_host_keeps_both_claims() -> None:
    reading = _read("a slots=8\na slots=8\n")
    assert len(_of(reading, "host_slots")) == 2
    assert _value(reading, "hosts") == ("a", "a")
    assert _value(reading, "nodes") == 1
    assert not _of(reading, "processes_per_node")


def test_other_dialects() -> None:
    mpich = _read("node1:4\nnode2:4\n")
    assert _value(mpich, "world_size") == 8 and not mpich.notes
    bare = _read("10.0.0.1\n10.0.0.2 # second\n")
    assert _value(bare, "nodes") == 2 and not _of(bare, "world_size") and not bare.notes
    assert _value(_read("a slots=0\n"), "world_size") == 0
    assert _value(_read("a slots=4 max_slots=8\n"), "world_size") == 4


@pytest.mark.parametrize(
    "line",
    [
        "a slots=-1",
        "a slots = 8",
        "a slot=8",
        "a 8",
        "-oProxyCommand=x slots=8",
        "$(reboot) slots=8",
        "a;b slots=8",
        "user@a slots=8",
        "node[1-4] slots=8",
        "a slots=12345678901",
        "{{ host }}",
    ],
)
def test_a_bad_line_gives_a_note_and_no_claim(line: str) -> None:
    reading = _read(f"good slots=8\n  {line}\n")
    assert _value(reading, "hosts") == ("good",)
    (note,) = reading.notes
    assert note.kind is NoteKind.MALFORMED
    assert (note.span.line, note.span.column, note.span.end_column) == (2, 3, 3 + len(line))


def test_bare_lines_among_slots_are_noted() -> None:
    (note,) = _read("a slots=8\nb\n").notes
    assert note.span.line == 2 and "bad entry" in note.message


def test_an_empty_file() -> None:
    (note,) = _read("# nobody\n").notes
    assert note.kind is NoteKind.MALFORMED and "names no host" in note.message


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("hostfile", "a slots=8", True),
        ("conf/hostfile.txt", "a1\na2\n", True),
        ("my_hostfile", "a slots=1", True),
        ("hosts", "10.0.0.1\n", True),
        ("hosts.py", "a slots=8", False),
        ("hostfile", "this is prose and\nnothing like it\n", False),
        ("README", "a slots=8", False),
        ("hostfile", "", False),
    ],
)
def test_recognition(path: str, text: str, expected: bool) -> None:
    assert HostfileSource().recognises(_file(text, path)) is expected


@given(st.text(max_size=200))
def test_any_text_gives_claims_or_located_notes(text: str) -> None:
    reading = _read(text)
    assert reading.claims or reading.notes
    for claim in reading.claims:
        if claim.scope.node:
            assert is_hostname(claim.scope.node)


@pytest.mark.parametrize("name", ["a", "node-1", "n_1.cluster.local", "10.0.0.1", "::1", "fe80::1", "A.b."])
def test_host_names(name: str) -> None:
    assert is_hostname(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a-",
        "a b",
        "a;b",
        "$a",
        "a/b",
        "u@a",
        "a..b",
        "300.1.1.1",
        "1234",
        "é",
        "a" * 64,
        "::1%lo",
        "a\n",
    ],
)
def test_invalid_host_names(name: str) -> None:
    assert not is_hostname(name)


def test_endpoints() -> None:
    assert split_endpoint("a:1") == ("a", 1)
    assert split_endpoint("a") == ("a", None)
    assert split_endpoint("[::1]:29500") == ("::1", 29500)
    assert split_endpoint("::1") == ("::1", None)
    assert split_endpoint("a:b") is None
    assert split_endpoint("-a:1") is None


# Configurations of PaddleRec: both generations, placeholders, and other files.


NEW = """\
runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "criteo_reader"
  use_gpu: False
  sync_mode: "async"
  split_file_list: False
  num_workers: 2

hyper_parameters:
  optimizer:
    class: Adam
    strategy: sync
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
"""
OLD = """\
mode: [cluster_runner]
runner:
- name: train_runner
  class: train
- name: cluster_runner
  class: cluster_train
  fleet_mode: ps
  distribute_strategy: half_async
  phases: phase1
"""


def _rec_file(text: str, path: str = "config.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _rec_read(text: str) -> Reading:
    reading = PaddleRecSource().read(_rec_file(text), MemoryTree({}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _rec_of(text: str, quantity: str) -> list[Claim]:
    return [claim for claim in _rec_read(text).claims if claim.quantity == quantity]


def _values(text: str, quantity: str) -> list[Value]:
    return [claim.value for claim in _rec_of(text, quantity)]


def test_the_newer_generation() -> None:
    assert _values(NEW, "ps_update_mode") == [Known("async"), Known("sync")]
    assert [claim.span.line for claim in _rec_of(NEW, "ps_update_mode")] == [5, 12]
    assert _values(NEW, "embedding_shape") == [Known((1000001, 9))]
    assert _values(NEW, "optimizer") == [Known("Adam")]
    assert _values(NEW, "dataset_files_shared") == [Known(False)]
    assert _values(NEW, "dataloader_workers") == [Known(2)]
    assert _rec_of(NEW, "data_path")[0].spelling == 'train_data_dir: "data/sample_data/train"'


def test_the_older_generation_counts_the_runners_that_run() -> None:
    assert _values(OLD, "runner_names") == [Known(("train_runner", "cluster_runner"))]
    assert _values(OLD, "runner_mode") == [Known(("cluster_runner",))]
    assert _values(OLD, "ps_update_mode") == [Known("half-async")]
    assert _values(OLD, "ps_mode") == [Known(True)]
    local = OLD.replace("[cluster_runner]", "train_runner")
    assert _values(local, "runner_class") == [Known("train")]
    assert not _rec_of(local, "ps_mode")


def test_placeholders_are_unresolved() -> None:
    (mode, _) = _values(NEW.replace('"async"', "{{ mode }}"), "ps_update_mode")
    assert isinstance(mode, Unresolved)
    assert isinstance(_values(NEW.replace("1000001", "${ROWS}"), "embedding_shape")[0], Unresolved)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (NEW, True),
        (OLD, True),
        ("runner:\n  type: epoch\n", False),
        ("model: x\nsync_mode: async\n", False),
        ("", False),
    ],
)
def test_files_are_recognised_by_their_keys(text: str, ours: bool) -> None:
    assert PaddleRecSource().recognises(_rec_file(text)) is ours
    assert not PaddleRecSource().recognises(_rec_file(text, "config.json"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "runner: []\n",
        "runner: {a: b\n",
        "runner:\n- 1\n- [2]\nmode: {a: 1}\n",
        NEW.replace("  class: Adam", "\tclass: Adam"),
        "runner:\n  sync_mode: [async, sync]\nhyper_parameters: 3\n",
        OLD.replace("\n", "\r\n"),
    ],
)
def test_invalid_files_do_not_raise(text: str) -> None:
    assert _rec_read(text) is not None


def test_a_broken_file_gives_a_note_and_the_rest_is_read() -> None:
    reading = _rec_read(NEW + "broken: [1, 2\n")
    assert reading.notes and reading.notes[0].span.path == "config.yaml"
    assert any(claim.quantity == "ps_update_mode" for claim in reading.claims)


# Command lines of notebooks and task files.


def notebook(*cells: str, kind: str = "code") -> str:
    written = [{"cell_type": kind, "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": written, "nbformat": 4}, indent=1)


def recipe_launches(path: str, text: str) -> list[tuple[str, str, int]]:
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
    assert recipe_launches(path, text) == [("torchrun", "train.py", line)]


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
