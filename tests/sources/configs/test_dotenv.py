"""Files of variables: valid and invalid ones, and how launches refer to them."""

from __future__ import annotations

from pathlib import Path

from preflight.model.job import Known, Scope, Strength, Unresolved
from preflight.sources.base import SourceFile
from preflight.sources.configs.line_files import DotenvSource
from preflight.sources.configs.recipes import MakefileSource
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
