"""The built distributions: exactly our four packages with their data, and everything that a build from source needs."""

from __future__ import annotations

import configparser
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from preflight import __version__
from preflight.cli.main import cli
from tests.pip_options import EXTRA_INDEX_URL
from tests.suite.effort import THOROUGH
from tests.waiting import until

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
PACKAGES = {"preflight", "preflight_checks", "preflight_rules", "reference_trainer"}
#: The folder of each package in the repository.
FOLDERS = {
    "preflight": ROOT / "preflight",
    "preflight_checks": ROOT / "checks" / "preflight_checks",
    "preflight_rules": ROOT / "rules" / "preflight_rules",
    "reference_trainer": ROOT / "reference_trainer",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built with the installed tools and without network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=300)
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
    info, data = sorted(tops - PACKAGES, key=lambda name: name.endswith(".data"))
    assert tops == {*PACKAGES, info, data}
    assert info.endswith(".dist-info")


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_file_of_a_package_is_in_the_wheel(wheel: zipfile.ZipFile, package: str) -> None:
    folder = FOLDERS[package]
    # Ignored and untracked files are not tested.
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "."], cwd=folder, capture_output=True, text=True, check=False, timeout=30
    )
    if tracked.returncode:
        pytest.skip("not in a git checkout")
    expected = {f"{package}/{name}" for name in tracked.stdout.splitlines() if (folder / name).exists()}
    assert f"{package}/__init__.py" in expected
    assert expected <= set(wheel.namelist())
    assert f"{package}/py.typed" in wheel.namelist()


def test_manual_pages_and_completions_are_data_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    data = {name.partition(".data/data/")[2]: name for name in wheel.namelist() if ".data/data/" in name}
    assert {name for name in data if not name.startswith("share/man/man1/")} == {
        "share/bash-completion/completions/preflight",
        "share/zsh/site-functions/_preflight",
        "share/fish/vendor_completions.d/preflight.fish",
    }
    verbs = {name for name, command in cli.commands.items() if not command.hidden}
    assert {f"share/man/man1/preflight-{verb}.1" for verb in verbs} <= set(data)
    page = wheel.read(data["share/man/man1/preflight-lint.1"]).decode()
    for option in ("\\-\\-statistics", "\\-\\-set"):
        assert option in page
    if shutil.which("groff") is not None:
        for name in sorted(data):
            if name.endswith(".1"):
                words = ["groff", "-man", "-Tutf8", "-ww", "-Wbreak", "-z"]
                done = subprocess.run(words, input=wheel.read(data[name]), capture_output=True, timeout=30, check=False)
                assert (done.returncode, done.stderr) == (0, b""), name


def test_the_wheel_has_no_tests_and_no_leftovers(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert "__pycache__" not in name
        assert not name.endswith((".pyc", ".so", ".orig"))
        assert not Path(name).name.startswith("test_")


def test_entry_points_name_the_command_and_every_pack(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    found = configparser.ConfigParser()
    found.read_string(wheel.read(name).decode())
    assert dict(found["console_scripts"]) == {"preflight": "preflight.cli.main:main"}
    groups = {section: dict(found[section]) for section in found.sections() if section.startswith("preflight.")}
    assert groups == {
        "preflight.rules": {"builtin": "preflight_rules:PACK"},
        "preflight.checks": {"builtin": "preflight_checks:PACK"},
        "preflight.sources": {"builtin": "preflight.sources:PACK"},
        "preflight.executors": {"builtin": "preflight.executors:PACK"},
        "preflight.reporters": {"builtin": "preflight.reporters:PACK"},
    }


def test_the_metadata_describes_the_project(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = wheel.read(name).decode()
    assert "\nName: preflight-train\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    for heavy in ("torch", "ray", "kubernetes"):
        lines = [line for line in metadata.splitlines() if line.startswith(f"Requires-Dist: {heavy}>")]
        assert lines and all("extra ==" in line for line in lines)
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
        "tests/builders.py",
        "checks/preflight_checks/__init__.py",
        "rules/preflight_rules/__init__.py",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith((".venv", ".git/", ".ci"))]


def test_the_index_would_accept_the_metadata(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(built.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- installed where nothing else is ---

#: The releases of Python that pyproject.toml promises.
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
BROKEN_JOB = ROOT / "examples" / "megatron-slurm" / "broken" / "pretrain_gpt.sbatch"


@functools.cache
def interpreter(version: str) -> str:
    """A Python of this version: one on PATH, or one of pyenv; empty if there is none."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    roots = (os.environ.get("PYENV_ROOT", ""), str(Path.home() / ".pyenv"))
    candidates = [
        *([sys.executable] if here == version else []),
        *filter(None, [shutil.which(f"python{version}")]),
        *(str(path) for root in roots if root for path in sorted(Path(root).glob(f"versions/{version}.*/bin/python"))),
    ]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        # A shim of pyenv exists for versions that are not selected, and fails.
        done = subprocess.run([candidate, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=False)
        if done.stdout.strip() == version:
            return candidate
    return ""


def uv(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run uv, which keeps what it downloads in its cache."""
    program = Path(sys.executable).with_name("uv")
    return subprocess.run(
        [str(program), *words],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never", **environment},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def clean_environment(folder: Path, version: str) -> Path:
    """A new virtual environment with nothing in it; the test is skipped without such a Python."""
    python = interpreter(version)
    if not python:
        pytest.skip(f"no Python {version} on PATH or below pyenv")
    made = uv("venv", "--quiet", "--python", python, str(folder / "venv"), folder=folder)
    assert made.returncode == 0, made.stderr
    return folder / "venv"


def skip_without_packages(done: subprocess.CompletedProcess[str]) -> None:
    """Skip where the packages that preflight needs cannot be downloaded."""
    if done.returncode and re.search(r"dns error|Connect|Network is unreachable|offline", done.stderr):
        pytest.skip("the package index cannot be reached")


def try_out(venv: Path, folder: Path) -> None:
    """Try what a new user tries first."""

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [str(venv / "bin" / "preflight"), *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert ran("--version").stdout == f"preflight {__version__}\n"
    lint = ran("lint", str(BROKEN_JOB))
    assert lint.returncode == 1 and "error[WLD001]" in lint.stdout, lint.stderr
    doctor = ran("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    for name in ("man/man1/preflight.1", "bash-completion/completions/preflight", "zsh/site-functions/_preflight"):
        assert (venv / "share" / name).is_file()


@pytest.mark.parametrize("version", [VERSIONS[0], *(pytest.param(one, marks=THOROUGH) for one in VERSIONS[1:])])
def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path, version: str) -> None:
    venv = clean_environment(tmp_path, version)
    (wheel,) = built.glob("*.whl")
    done = uv("pip", "install", "--quiet", "--python", str(venv), str(wheel), folder=tmp_path)
    skip_without_packages(done)
    assert done.returncode == 0, done.stderr
    try_out(venv, tmp_path)


@THOROUGH
@pytest.mark.parametrize("version", VERSIONS)
def test_the_source_distribution_builds_and_works_in_a_clean_environment(
    built: Path, tmp_path: Path, version: str
) -> None:
    venv = clean_environment(tmp_path, version)
    (source,) = built.glob("*.tar.gz")
    done = uv("pip", "install", "--quiet", "--python", str(venv), str(source), folder=tmp_path)
    skip_without_packages(done)
    assert done.returncode == 0, done.stderr
    try_out(venv, tmp_path)


@THOROUGH
def test_what_is_uploaded_to_an_index_can_be_installed_from_it(built: Path, tmp_path: Path) -> None:
    """A release with a real index in the place of the public one: twine uploads, pip and uvx install."""
    (tmp_path / "index").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ["-m", "pypiserver", "run", "--interface", "127.0.0.1", "--port", str(port), "-P", ".", "-a", "."]
    running = subprocess.Popen([sys.executable, *server, "index"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for_port(port)
        upload = [sys.executable, "-m", "twine", "upload", "--non-interactive", "--repository-url", f"{address}/"]
        done = subprocess.run(
            [*upload, "--username", "a", "--password", "a", *map(str, sorted(built.iterdir()))],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(list((tmp_path / "index").iterdir())) == 2
        venv = clean_environment(tmp_path, VERSIONS[-1])
        simple = (EXTRA_INDEX_URL, f"{address}/simple/")
        done = uv("pip", "install", "--quiet", "--python", str(venv), *simple, "preflight-train", folder=tmp_path)
        skip_without_packages(done)
        assert done.returncode == 0, done.stderr
        try_out(venv, tmp_path)
        done = uv(
            *("tool", "run", "--quiet", "--python", interpreter(VERSIONS[-1]), *simple, "--from", "preflight-train"),
            *("preflight", "--version"),
            folder=tmp_path,
        )
        assert done.stdout == f"preflight {__version__}\n", done.stderr
    finally:
        running.terminate()
        running.wait(20)


def wait_for_port(port: int) -> None:
    """Wait until something listens."""

    def listens() -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True
        return False

    until(listens)
