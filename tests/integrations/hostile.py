"""An untrusted checkout whose files try to get executed by any command that runs in or on it.

Each file that runs writes its own path into `Trap.marks`, so a test can name the executed file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "torchrun-two-nodes"
#: Modules that Python, venv, pip, hatchling or preflight import: single files.
MODULES = (
    *(
        "venv",
        "sitecustomize",
        "usercustomize",
        "site",
        "click",
        "pydantic",
        "yaml",
        "rich",
        "anyio",
        "jinja2",
        "typing",
    ),
    *("os", "json", "subprocess", "tempfile", "platform", "hashlib", "ctypes", "runpy", "re", "packaging", "pathspec"),
    *("tomllib", "tomli", "setup", "conftest", "tree_sitter", "preflight_rules", "preflight_checks", "virtualenv"),
)
#: The same names as packages that can be run with `-m`.
PACKAGES = ("pip", "preflight", "encodings", "ensurepip", "hatchling", "importlib", "setuptools", "ClusterShell")
#: Programs that would be found in a search path with an empty or relative entry.
PROGRAMS = (
    *("python", "python3", "preflight", "git", "timeout", "mktemp", "od", "env", "tee", "sed", "kubectl", "sbatch"),
    *("setpriv", "ssh", "bash", "sh", "hatchling", "nvidia-smi"),
)


@dataclass(frozen=True)
class Trap:
    """A checkout, and the file to which every executed file of it writes."""

    checkout: Path
    marks: Path

    @property
    def executed(self) -> list[str]:
        """Which files of the checkout were executed, each once."""
        if not self.marks.exists():
            return []
        return sorted({os.path.relpath(line, self.checkout) for line in self.marks.read_text().splitlines()})

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a workflow of the project may point Python into the checkout."""
        return {
            "PYTHONPATH": f"{self.checkout}:",
            "PYTHONSTARTUP": str(self.checkout / "click.py"),
            "PYTHONUSERBASE": str(self.checkout / "user"),
            "PYTHONBREAKPOINT": "click.set_trace",
            "PYTHONINSPECT": "",
        }


def trap(folder: Path, job: str = "broken") -> Trap:
    """Create a checkout in `folder` with an example job in `jobs` and all traps around it."""
    made = Trap(folder, folder.parent / f"{folder.name}.executed")
    shutil.copytree(EXAMPLES / job, folder / "jobs")
    mark = _mark(made.marks)
    for place in (folder, folder / "jobs"):
        for name in MODULES:
            _put(place / f"{name}.py", mark)
        for name in PACKAGES:
            _put(place / name / "__init__.py", mark)
            _put(place / name / "__main__.py", mark)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    user = folder / "user" / "lib" / version / "site-packages"
    _put(user / "usercustomize.py", mark)
    _put(user / "hostile.pth", f"import sys; exec({mark.replace('__file__', repr(str(user / 'hostile.pth')))!r})\n")
    _put(folder / "hostile.pth", f"import sys; exec({mark.replace('__file__', repr(str(folder / 'hostile.pth')))!r})\n")
    for name in PROGRAMS:
        if not (folder / name).exists():
            _program(folder / name, made.marks)
        _program(folder / "bin" / name, made.marks)
    _put(folder / "pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n')
    _put(folder / "pip.conf", f"[global]\nindex-url = file://{folder}\n[install]\npre = yes\n")
    _put(folder / "pyvenv.cfg", f"home = {folder / 'bin'}\n")
    _repository(folder, made.marks)
    return made


def _mark(marks: Path) -> str:
    """A line of Python that writes its own path; `encodings` is imported before there is an `open`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return f"import posix; posix.write(posix.open({str(marks)!r}, {flags}, 0o644), (__file__ + '\\n').encode())\n"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _program(path: Path, marks: Path) -> None:
    _put(path, f"#!/bin/sh\necho {path} >> {marks}\nexit 0\n")
    path.chmod(0o755)


def _repository(folder: Path, marks: Path) -> None:
    """Create a repository with a commit, whose configuration and hooks run programs and whose remote is one."""
    quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": "/usr/bin:/bin"}
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-C", str(folder), *words], env=quiet, check=True, timeout=30)
    program = folder / ".git" / "hostile"
    _program(program, marks)
    with (folder / ".git" / "config").open("a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {program}\n\thooksPath = {folder / '.git' / 'hooks'}\n\tsshCommand = {program}\n"
            f"\tpager = {program}\n\teditor = {program}\n\taskPass = {program}\n"
            f'[filter "x"]\n\tsmudge = {program}\n\tclean = {program}\n\tprocess = {program}\n'
            f'[diff "x"]\n\ttextconv = {program}\n\tcommand = {program}\n[diff]\n\texternal = {program}\n'
            f'[remote "origin"]\n\turl = ext::{program}\n\tpromisor = true\n\tuploadpack = {program}\n'
            f"[extensions]\n\tpartialClone = origin\n[protocol]\n\tallow = always\n[alias]\n\tls-tree = !{program}\n"
            f"[gc]\n\tauto = 1\n[core]\n\talternateRefsCommand = {program}\n\tgitProxy = {program}\n"
        )
    _put(folder / ".gitattributes", "* filter=x diff=x\n")
    for hook in ("post-checkout", "post-index-change", "fsmonitor-watchman", "pre-commit"):
        _program(folder / ".git" / "hooks" / hook, marks)


def neighbours() -> str:
    """The folders in which this interpreter finds packages, for a `.pth` file of another environment."""
    own = Path(sysconfig.get_path("purelib"))
    found = [own, *(Path(entry) for entry in sys.path if entry.endswith("site-packages"))]
    return "".join(f"{path}\n" for path in dict.fromkeys(found))


def python_that_lends(folder: Path) -> Path:
    """A folder with a `python3` and a `python` whose virtual environments find the packages of this interpreter.

    The requirements of preflight are installed there in the locked versions, so pip fetches nothing. Everything else is
    real.
    """
    base = Path(sys.executable).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lent = f"$place/lib/{version}/site-packages/lent.pth"
    text = (
        f'#!/bin/sh\n"{base}" "$@" || exit\ncase " $* " in *" venv "*)\n'
        f'  for place in "$@"; do :; done\n  printf %s "{neighbours()}" > "{lent}";;\nesac\n'
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python3", "python"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder
