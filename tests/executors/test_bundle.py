"""The bundle: the right modules, always the same bytes, importable from memory with source lines."""

from __future__ import annotations

import ast
import hashlib
import json
import marshal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight._util.cache import Cache
from preflight.agent import bootstrap
from preflight.executors.bundle import (
    MAX_BYTES,
    BundleError,
    ExtractionError,
    build_bundle,
    extract,
    pack,
    pack_extra_modules,
)


def content(*, trainer: bool = True) -> dict[str, dict[str, str]]:
    data = build_bundle(trainer=trainer)
    end = 4 + int.from_bytes(data[:4], "big")
    document = json.loads(data[4:end])

    def part(place: list[int]) -> str:
        return zlib.decompress(data[end + place[0] : end + place[1]]).decode()

    sources = json.loads(part(document["packed"].pop("")))
    assert sorted(sources) == document["modules"]
    assert part(document["packed"]["preflight.agent.bootstrap"]) == sources["preflight.agent.bootstrap"]
    return {**document, "modules": sources}


def compiled(data: bytes) -> dict[str, bytes]:
    """The code in a bundle, by module."""
    end = 4 + int.from_bytes(data[:4], "big")
    places: dict[str, list[int]] = json.loads(data[4:end])["compiled"]
    return {name: zlib.decompress(data[end + first : end + last]) for name, (first, last) in places.items()}


def test_bundle_holds_only_node_modules() -> None:
    modules = content()["modules"]
    assert {"preflight.agent.agent", "preflight.agent.wire", "reference_trainer"} <= modules.keys()
    assert content()["packed"].keys() == {"pynvml", "preflight.agent.bootstrap"}
    assert modules["preflight"] == modules["preflight_checks"] == ""
    some = (
        "preflight",
        "preflight._util",
        "preflight._util.redaction",
        "preflight._util.secret_spans",
        "preflight._util.secret_names",
        "preflight._util.secret_spans",
        "preflight_checks",
        "pynvml",
    )
    strangers = [
        name
        for name in modules
        if name not in some and not name.startswith(("preflight.agent", "preflight_checks.probes", "reference_trainer"))
    ]
    assert strangers == []


def test_trainer_is_shipped_only_for_smoke_runs() -> None:
    document = content(trainer=False)
    assert not [name for name in document["modules"] if name.startswith("reference_trainer")]
    assert {"preflight.agent.agent", "preflight_checks.probes.limits"} <= document["modules"].keys()


def test_cached_bundle_equals_a_fresh_one(tmp_path: Path) -> None:
    built = build_bundle(cache=Cache(tmp_path / "cache"))
    (entry,) = (tmp_path / "cache").iterdir()
    assert built == build_bundle()
    other = b"another"
    entry.write_bytes(hashlib.sha256(other).hexdigest().encode() + b"\n" + other)
    assert build_bundle(cache=Cache(tmp_path / "cache")) == other
    assert build_bundle(trainer=False, cache=Cache(tmp_path / "cache")) != other


def test_untrusted_cache_is_not_used(tmp_path: Path) -> None:
    built = build_bundle(cache=Cache(tmp_path / "cache"))
    (entry,) = (tmp_path / "cache").iterdir()
    other = b"another"
    entry.write_bytes(hashlib.sha256(other).hexdigest().encode() + b"\n" + other)
    entry.chmod(0o666)
    assert build_bundle(cache=Cache(tmp_path / "cache")) == built


def test_another_process_builds_the_same_bytes() -> None:
    code = "import sys; from preflight.executors.bundle import build_bundle; sys.stdout.buffer.write(build_bundle())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30)
    assert done.stdout == build_bundle()


def test_cached_code_equals_compiled_code() -> None:
    made = compiled(build_bundle())
    for name, source in content()["modules"].items():
        named = bootstrap.filename(name, name in content()["packages"])
        assert made[name] == marshal.dumps(compile(source, named, "exec", dont_inherit=True), 2), name


def test_stale_cached_code_is_not_used() -> None:
    modules = {
        "preflight": "",
        "preflight._util.redaction": "X = 1\n",
        bootstrap.__name__: Path(bootstrap.__file__).read_text(),
    }
    made = compiled(pack(modules, ["preflight"]))
    named = bootstrap.filename("preflight._util.redaction", False)
    assert made["preflight._util.redaction"] == marshal.dumps(compile("X = 1\n", named, "exec", dont_inherit=True), 2)


def test_plugin_modules_come_with_their_packages() -> None:
    shipment = pack_extra_modules([("acme.probes.disk", "X = 1\n")])
    assert shipment.modules == {"acme.probes.disk": "X = 1\n", "acme": "", "acme.probes": ""}
    assert shipment.packages == ["acme", "acme.probes"]
    with pytest.raises(BundleError, match="the plugin sources for nodes are"):
        pack_extra_modules([("acme.probes.disk", "#" * (MAX_BYTES + 1))])


def test_every_module_compiles_on_python_3_8() -> None:
    import ast

    for name, code in content()["modules"].items():
        ast.parse(code, name, feature_version=(3, 8))


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


class Compiled:
    """Counts the modules that an interpreter started as on a node compiles; imports those named."""

    CODE = """
import builtins, sys
plain, found = builtins.compile, []
def counting(source, name, *rest, **more):
    found.append(str(name))
    return plain(source, name, *rest, **more)
builtins.compile = counting
exec(sys.argv[1])
data = open(sys.argv[2], "rb").read()
end = 4 + int.from_bytes(data[:4], "big")
content = json.loads(data[4:end])
content["magic"] = sys.argv[3] or content["magic"]
def entry(*_, **__):
    import preflight.agent.guardian, preflight_checks.probes.limits, pynvml
    print(json.dumps([name for name in found if name.startswith(ORIGIN)]))
sys.modules["probe_of_mine"] = type(sys)("probe_of_mine")
sys.modules["probe_of_mine"].entry = entry
start(content, data[end:], b"", {"entry": "probe_of_mine:entry", "arguments": {}}, 0, 1)
"""

    @classmethod
    def names(cls, folder: Path, magic: str = "") -> list[str]:
        (folder / "bundle").write_bytes(build_bundle())
        source = Path(bootstrap.__file__).read_text()
        command = [sys.executable, "-I", "-c", cls.CODE, source, str(folder / "bundle"), magic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_matching_python_compiles_nothing(tmp_path: Path) -> None:
    assert Compiled.names(tmp_path) == ["preflight-bundle:/pynvml.py"]


def test_another_python_compiles_what_it_imports(tmp_path: Path) -> None:
    names = Compiled.names(tmp_path, magic="00000000")
    assert "preflight-bundle:/preflight/agent/guardian.py" in names
    assert len(names) == len(set(names))


def test_unusable_interpreters_are_skipped(tmp_path: Path) -> None:
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
    # It printed its nonce, and then received no bundle.
    assert (done.stdout, done.returncode) == (b"preflight-shell\n\npreflight-0123\n", 1), done


def test_the_command_line_is_short_and_means_the_same_to_every_shell() -> None:
    line = bootstrap.shell_line("preflight-0123")
    assert len(line) < 4000
    inner = line.removeprefix("exec sh -c '").removesuffix("'")
    assert not set(inner) & set("'\\!\n")


READY = """
import sys
import json
exec(sys.argv[1])
modules = {"p": "", "p.probes": "", "p.probes.a": "x = 1", "q": "import nowhere", "q.b": "x = 1"}
finder = BundleFinder(modules, ["p", "p.probes", "q"], ["p.probes"])
sys.meta_path.insert(0, finder)
for name in ("p.probes.a", "q.b", "p.probes.none", "nobody"):
    prepare(name)
print(sorted(name for name in sys.modules if name[:2] in ("p.", "q.")))
"""


def test_only_modules_of_ready_packages_are_imported_before_a_fork() -> None:
    source = Path(bootstrap.__file__).read_text()
    done = subprocess.run([sys.executable, "-I", "-c", READY, source], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("['p.probes', 'p.probes.a']\n", "")


# The extracted part of a plugin: the probe and its dependencies, on their original lines.


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
