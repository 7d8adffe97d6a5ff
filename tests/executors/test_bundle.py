"""What is shipped: the right modules, always as the same bytes, importable from memory with source lines."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from preflight.bundle import BundleError, node_bundle
from preflight.node import bootstrap


def content() -> dict[str, dict[str, str]]:
    return json.loads(zlib.decompress(node_bundle()))  # type: ignore[no-any-return]


def test_it_holds_what_runs_on_nodes_and_nothing_of_the_head() -> None:
    modules = content()["modules"]
    assert {"preflight.node.agent", "preflight.node.wire", "pynvml", "reference_trainer"} <= modules.keys()
    assert modules["preflight"] == modules["preflight_checks"] == ""
    strangers = [
        name
        for name in modules
        if name not in ("preflight", "preflight_checks", "pynvml")
        and not name.startswith(("preflight.node", "preflight_checks.probes", "reference_trainer"))
    ]
    assert strangers == []


def test_another_process_builds_the_same_bytes() -> None:
    code = "import sys; from preflight.bundle import node_bundle; sys.stdout.buffer.write(node_bundle())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    assert done.stdout == node_bundle()


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(BundleError, match="no_such_probes"):
        node_bundle(("no_such_probes",))


@pytest.mark.parametrize("name", sorted(n for n in content()["modules"] if n != "pynvml"))
def test_every_module_compiles_on_python_3_8(name: str) -> None:
    import ast

    ast.parse(content()["modules"][name], feature_version=(3, 8))


def test_imports_come_from_memory_and_show_their_lines() -> None:
    code = """
import inspect, sys, traceback
exec(sys.argv[1])
finder = BundleFinder({"a": "", "a.b": "def f():\\n    return 1 / 0  # here\\n"}, ["a"])
sys.meta_path.insert(0, finder)
import a.b
assert a.b.__file__ == "preflight-bundle:/a/b.py", a.b.__file__
assert "# here" in inspect.getsource(a.b.f)
try:
    a.b.f()
except ZeroDivisionError:
    assert "return 1 / 0  # here" in traceback.format_exc()
    print("shown")
"""
    source = Path(bootstrap.__file__).read_text()
    command = [sys.executable, "-I", "-c", code, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("shown\n", "")


def test_an_interpreter_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    for name, code in (("python3", 97), ("python3.12", 2), ("python3.11", 127)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3.8").symlink_to(sys.executable)
    done = subprocess.run(
        ["/bin/sh", "-c", "PATH=$1:/bin; " + bootstrap.shell_line("preflight-0123"), "sh", str(tmp_path)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    # It said its nonce, and then found that nobody sends it a bundle.
    assert (done.stdout, done.returncode) == (b"\npreflight-0123\n", 1), done


def test_the_command_line_is_short_and_means_the_same_to_every_shell() -> None:
    line = bootstrap.shell_line("preflight-0123")
    assert len(line) < 4000
    inner = line.removeprefix("exec sh -c '").removesuffix("'")
    assert not set(inner) & set("'\\!\n")
