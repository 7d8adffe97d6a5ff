"""Modules of a pack are found by their names."""

from __future__ import annotations

from pathlib import Path

from preflight.plugins.pack import modules


def test_finds_modules_of_a_package_and_its_subpackages_without_importing_them(tmp_path: Path) -> None:
    for name in (
        "sub/__init__.py",
        "sub/b.py",
        "probes/__init__.py",
        "probes/c.py",
        "data/d.py",
        "a.py",
        "_private.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit\n")
    assert modules("pack", str(tmp_path), without="probes") == ("pack.a", "pack.sub.b")
