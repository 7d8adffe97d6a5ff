"""What of a plugin is shipped: the probe, what it uses, on the lines it stood on, and nothing that nodes lack."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.cutting import CutError, cut

HEAD = '''"""A check and its probe."""
from __future__ import annotations
import os, json
from dataclasses import dataclass
from typing import Any
from preflight.judgement import check
from preflight.node.wire import ProbeUnavailable
from . import tools
from .more.deep import deep as deeper

'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Callable[..., object]]]:
    """Writes the module `cutpack.disk` with this text behind `HEAD`; gives its function `probe`."""
    folder = tmp_path / "cutpack"
    (folder / "more").mkdir(parents=True)
    (folder / "__init__.py").write_text("import preflight.judgement\n")
    (folder / "tools.py").write_text("import preflight.report\n\ndef read():\n    return LIMIT\n\nLIMIT = 3\n")
    (folder / "more" / "__init__.py").write_text("")
    (folder / "more" / "deep.py").write_text("def deep():\n    return 4\n\ndef unused():\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> Callable[..., object]:
        (folder / "disk.py").write_text(HEAD + text)
        import importlib

        importlib.invalidate_caches()
        return importlib.import_module("cutpack.disk").probe  # type: ignore[no-any-return]

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "cutpack"]:
        del sys.modules[name]


def top(source: str) -> list[str]:
    """The statements of a source, by what they bind or import."""
    return [ast.unparse(item).splitlines()[0] for item in ast.parse(source).body]


def test_only_what_the_probe_uses_is_kept_and_lines_stay(package: Callable[[str], Callable[..., object]]) -> None:
    text = (
        "LIMIT = 5\nOTHER = check\n\ndef helper():\n    return LIMIT + deeper()\n\n"
        "@dataclass\nclass Fact:\n    x: Any\n\n"
        "def probe(params: dict[str, check]) -> Fact:\n    return Fact(helper())\n"
    )
    shipped = cut([package(text)])
    assert sorted(shipped) == ["cutpack.disk", "cutpack.more.deep"]
    source = shipped["cutpack.disk"]
    assert "OTHER" not in source and "judgement" not in source and "unused" not in shipped["cutpack.more.deep"]
    whole = (HEAD + text).splitlines()
    for number, line in enumerate(source.splitlines()):
        assert line in ("", whole[number])
    assert "def probe" in source and "@dataclass" in source


def test_it_runs_where_there_is_no_preflight_and_no_package(
    package: Callable[[str], Callable[..., object]], tmp_path: Path
) -> None:
    probe = package("def probe(params):\n    from .tools import LIMIT\n    return [LIMIT, deeper(), json.dumps({})]\n")
    shipped = cut([probe])
    assert top(shipped["cutpack.tools"]) == ["LIMIT = 3"]
    away = tmp_path / "away"
    for name, source in shipped.items():
        file = away.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    code = "import sys; sys.path[:0] = [sys.argv[1]]\nfrom cutpack.disk import probe\nprint(probe({}))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(away)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[3, 4, '{}']\n", done.stderr


def test_what_nodes_lack_is_named_with_its_place(package: Callable[[str], Callable[..., object]]) -> None:
    probe = package("def probe(params):\n    return check\n")
    with pytest.raises(CutError, match=r"disk\.py:6: a probe uses preflight\.judgement"):
        cut([probe])


def test_a_whole_module_is_taken_where_it_is_used_by_its_name(package: Callable[[str], Callable[..., object]]) -> None:
    with pytest.raises(CutError, match=r"tools\.py:1: a probe uses preflight\.report"):
        cut([package("def probe(params):\n    return tools.read()\n")])


def test_shipped_probes_are_not_shipped_twice() -> None:
    from preflight_checks.probes.limits import limits

    assert cut([limits]) == {}
