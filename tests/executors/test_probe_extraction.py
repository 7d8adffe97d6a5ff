"""The extracted part of a plugin: the probe and its dependencies, on their original lines."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.executors.bundle import ExtractionError, extract

HEAD = '''"""A check and its probe."""
from __future__ import annotations
import os, json
from dataclasses import dataclass
from typing import Any
from preflight.plugins.authoring import check
from preflight.agent.wire import ProbeUnavailable
from . import tools
from .more.deep import deep as deeper

'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Callable[..., object]]]:
    """Writes the module `cutpack.disk` with this text after `HEAD`; returns its function `probe`."""
    folder = tmp_path / "cutpack"
    (folder / "more").mkdir(parents=True)
    (folder / "__init__.py").write_text("import preflight.plugins.authoring\n")
    (folder / "tools.py").write_text("import preflight.engine.report\n\ndef read():\n    return LIMIT\n\nLIMIT = 3\n")
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
    """The statements of a source, by the names that they bind or import."""
    return [ast.unparse(item).splitlines()[0] for item in ast.parse(source).body]


def test_only_used_statements_are_kept_on_their_lines(package: Callable[[str], Callable[..., object]]) -> None:
    text = (
        "LIMIT = 5\nOTHER = check\n\ndef helper():\n    return LIMIT + deeper()\n\n"
        "@dataclass\nclass Fact:\n    x: Any\n\n"
        "def probe(params: dict[str, check]) -> Fact:\n    return Fact(helper())\n"
    )
    shipped = extract([package(text)])
    assert sorted(shipped) == ["cutpack.disk", "cutpack.more.deep"]
    source = shipped["cutpack.disk"]
    assert "OTHER" not in source and "judgement" not in source and "unused" not in shipped["cutpack.more.deep"]
    whole = (HEAD + text).splitlines()
    for number, line in enumerate(source.splitlines()):
        assert line in ("", whole[number])
    assert "def probe" in source and "@dataclass" in source


def test_extracted_probe_runs_without_preflight(
    package: Callable[[str], Callable[..., object]], tmp_path: Path
) -> None:
    probe = package("def probe(params):\n    from .tools import LIMIT\n    return [LIMIT, deeper(), json.dumps({})]\n")
    shipped = extract([probe])
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


def test_missing_dependency_is_reported_with_its_location(package: Callable[[str], Callable[..., object]]) -> None:
    probe = package("def probe(params):\n    return check\n")
    with pytest.raises(ExtractionError, match=r"disk\.py:6: a probe uses preflight\.plugins\.authoring"):
        extract([probe])


def test_module_used_by_name_is_shipped_whole(package: Callable[[str], Callable[..., object]]) -> None:
    with pytest.raises(ExtractionError, match=r"tools\.py:1: a probe uses preflight\.engine\.report"):
        extract([package("def probe(params):\n    return tools.read()\n")])


def test_shipped_probes_are_not_shipped_twice() -> None:
    from preflight_checks.probes.limits import limits

    assert extract([limits]) == {}


def test_names_of_the_facade_come_from_the_modules_that_define_them(
    package: Callable[[str], Callable[..., object]],
) -> None:
    text = (
        "from preflight.plugin import (\n    Job,\n    ProbeUnavailable as Missing,\n    check,\n)\n\n"
        "def probe(params):\n    raise Missing('missing', 'it is not here')\n"
    )
    source = extract([package(text)])["cutpack.disk"]
    assert "from preflight.agent.wire import ProbeUnavailable as Missing" in source
    assert "preflight.plugin" not in source and "Job" not in source
    assert source.splitlines()[len(HEAD.splitlines()) + 6] == "def probe(params):"
    with pytest.raises(ExtractionError, match=r"disk.py:\d+: a probe uses preflight.model"):
        extract([package("from preflight.plugin import Job\n\ndef probe(params):\n    return Job('x')\n")])
