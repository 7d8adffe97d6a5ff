"""What is built: exactly our four packages, with their data, and everything a build from source needs."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"preflight", "preflight_checks", "preflight_rules", "reference_trainer"}
#: Where each package lies in the repository.
FOLDERS = {
    "preflight": ROOT / "preflight",
    "preflight_checks": ROOT / "checks" / "preflight_checks",
    "preflight_rules": ROOT / "rules" / "preflight_rules",
    "reference_trainer": ROOT / "reference_trainer",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built with what is installed and no network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    """The wheel, opened."""
    (path,) = built.glob("*.whl")
    assert path.name.startswith("preflight_train-")
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_puts_exactly_our_packages_into_site_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    (info,) = tops - PACKAGES
    assert tops == {*PACKAGES, info}
    assert info.endswith(".dist-info")


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_file_of_a_package_is_in_the_wheel(wheel: zipfile.ZipFile, package: str) -> None:
    folder = FOLDERS[package]
    # Files that git ignores or does not know yet are left to whoever is working on them.
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "."], cwd=folder, capture_output=True, text=True, check=False, timeout=30
    )
    if tracked.returncode:
        pytest.skip("not in a git checkout")
    expected = {f"{package}/{name}" for name in tracked.stdout.splitlines() if (folder / name).exists()}
    assert f"{package}/__init__.py" in expected
    assert expected <= set(wheel.namelist())
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_wheel_holds_no_tests_and_no_leftovers(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert "__pycache__" not in name
        assert not name.endswith((".pyc", ".so", ".orig"))
        assert not Path(name).name.startswith("test_")


def test_entry_points_name_the_command_and_every_pack(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    found = configparser.ConfigParser()
    found.read_string(wheel.read(name).decode())
    assert dict(found["console_scripts"]) == {"preflight": "preflight.cli:main"}
    groups = {section: dict(found[section]) for section in found.sections() if section.startswith("preflight.")}
    assert groups == {
        "preflight.rules": {"builtin": "preflight_rules:PACK"},
        "preflight.checks": {"builtin": "preflight_checks:PACK"},
        "preflight.sources": {"builtin": "preflight.sources:PACK"},
        "preflight.executors": {"builtin": "preflight.executors:PACK"},
        "preflight.reporters": {"builtin": "preflight.reporters:PACK"},
    }


def test_the_metadata_says_what_we_are(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = wheel.read(name).decode()
    assert "\nName: preflight-train\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    for heavy in ("torch", "ray", "kubernetes"):
        (line,) = [line for line in metadata.splitlines() if line.startswith(f"Requires-Dist: {heavy}>")]
        assert "extra ==" in line
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_source_distribution_is_enough_to_build_and_test(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "action.yml",
        "mkdocs.yml",
        "integrations/slurm/prolog",
        "docs/report.schema.json",
        "tests/building.py",
        "checks/preflight_checks/__init__.py",
        "rules/preflight_rules/__init__.py",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith((".venv", ".git/", ".ci"))]
