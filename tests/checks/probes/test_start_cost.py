"""Reading and importing a small package in place of a framework."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import start_cost as probe
from preflight_checks.probes.start_cost import import_cost, read_cost


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "stand_in_framework"
    (folder / "nn").mkdir(parents=True)
    (folder / "__init__.py").write_text("__version__ = '1.2'\n")
    for index in range(20):
        (folder / "nn" / f"m{index}.py").write_text("x = 1\n")
    (folder / "libc.so.2").write_bytes(b"x" * 5000)
    (folder / "nn" / "data.bin").write_bytes(b"x" * 5000)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


def test_modules_and_libraries_are_read_and_nothing_is_imported(package: Path) -> None:
    seen = read_cost({"packages": ["no_such_framework", "stand_in_framework"]})
    assert (seen.package, seen.files, seen.cut) == ("stand_in_framework", 22, False)
    assert seen.folder == str(package)
    assert "stand_in_framework" not in sys.modules


def test_reading_ends_in_time(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "WITHIN_S", -1.0)
    assert read_cost({"packages": ["stand_in_framework"]}).cut
    monkeypatch.setattr(probe, "WITHIN_S", 60.0)
    monkeypatch.setattr(probe, "MAX_FILES", 5)
    assert read_cost({"packages": ["stand_in_framework"]}).files == 5


def test_an_import_is_timed_and_a_broken_one_has_a_reason(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_cost({"packages": ["stand_in_framework"]}).version == "1.2"
    del sys.modules["stand_in_framework"]
    (package / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    with pytest.raises(ProbeUnavailable, match="libcudart"):
        import_cost({"packages": ["stand_in_framework"]})


def test_without_a_framework_nothing_is_timed() -> None:
    for look in (read_cost, import_cost):
        with pytest.raises(ProbeUnavailable, match="none of"):
            look({"packages": ["no_such_framework"]})
