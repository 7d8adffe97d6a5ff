"""Imports of each command: nothing heavy before it is needed, and some modules never."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Prints the imported modules of a fresh interpreter after one call of the command.
_SCRIPT = """
import json, sys
from preflight.cli import main as cli
code = cli.run(json.loads(sys.argv[1]))
sys.stderr.write(json.dumps([code, sorted({".".join(name.split(".")[:n]) for name in sys.modules for n in (1, 2, 3)})]))
"""
NEVER = {"torch", "pynvml", "ray", "kubernetes", "paddle", "deepspeed", "numpy", "sqlalchemy", "pygls"}
HEAVY = {"pydantic", "rich", "anyio", "tree_sitter", "jinja2", "yaml", "ClusterShell", "psutil", "pathspec", "alembic"}


def imported(*arguments: str, cwd: Path) -> tuple[int, set[str]]:
    """The exit code and the imported modules of a call: top-level modules, and those one level below."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a job that reaches a script, a configuration and a hostfile."""
    (tmp_path / "run.sh").write_text("#!/bin/bash\ndeepspeed --hostfile=hosts train.py --deepspeed_config ds.json\n")
    (tmp_path / "hosts").write_text("a slots=4\nb slots=4\n")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}\n')
    (tmp_path / "train.py").write_text("import torch, ray, pynvml\nimport torch.distributed as dist\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["lint", "--help"],
        ["check", "--help"],
        ["diagnose", "--help"],
        ["diff", "--help"],
        ["init", "--help"],
        ["doctor", "--help"],
        ["nodes", "--help"],
        ["history", "--help"],
        ["lsp", "--help"],
        ["serve", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_version_import_almost_nothing(arguments: list[str], tmp_path: Path) -> None:
    code, modules = imported(*arguments, cwd=tmp_path)
    assert code == 0
    assert not modules & (NEVER | HEAVY | {"asyncio", "multiprocessing", "preflight_rules", "preflight_checks"})


def test_lint_imports_no_framework_and_no_executor(tree: Path) -> None:
    code, modules = imported("lint", ".", cwd=tree)
    assert code in (0, 1)
    assert {"tree_sitter", "preflight_rules"} <= modules
    assert not modules & (NEVER | {"anyio", "asyncio", "psutil", "jinja2", "preflight_checks"})
    # Lint needs only one module of the trainer, the arithmetic that assigns parameters to servers (see
    # test_architecture).


def test_lint_imports_nothing_for_node_reports(tree: Path) -> None:
    for form in ("text", "json"):
        _, modules = imported("lint", ".", "-o", form, cwd=tree)
        assert "preflight.engine.report" in modules
        assert not modules & {"preflight.model.charts", "preflight.engine.pack_output"}


def test_lint_as_text_does_not_import_pydantic(tree: Path) -> None:
    _, modules = imported("lint", ".", cwd=tree)
    assert "pydantic" not in modules


def test_lint_as_json_does_not_import_a_terminal_library(tree: Path) -> None:
    _, modules = imported("lint", ".", "-o", "json", cwd=tree)
    assert "rich" not in modules
    assert not modules & NEVER


def test_reading_logs_imports_no_framework_and_little_else(tree: Path) -> None:
    (tree / "run.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    code, modules = imported("diagnose", "run.log", "-o", "json", cwd=tree)
    assert code == 1
    # Some checks that a diagnosis refers to import anyio.
    assert not modules & (NEVER | HEAVY - {"anyio"})


def test_judging_a_recording_imports_no_framework(tree: Path) -> None:
    from preflight.model.recording_io import save
    from tests.builders import job, make_recording, reached

    (tree / "saved.json").write_bytes(save(make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))))
    _, modules = imported("judge", "saved.json", cwd=tree)
    assert "preflight_checks" in modules
    assert not modules & NEVER
    # Neither are modules of a stage that was not reached.
    assert "preflight_checks.smoke" not in modules


def test_rules_and_checks_can_be_listed_without_any_framework(tmp_path: Path) -> None:
    _, modules = imported("rules", cwd=tmp_path)
    assert not modules & (NEVER | {"rich"})
