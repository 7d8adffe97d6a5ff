"""GPUs, packages, limits and paths of this machine, and parsers on recorded text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import built
from preflight_checks.probes import start_cost as probe
from preflight_checks.probes.folders import path_state
from preflight_checks.probes.gpus import gpus, kernel_driver
from preflight_checks.probes.isolated import Send, run_isolated
from preflight_checks.probes.limits import limits
from preflight_checks.probes.packages import packages
from preflight_checks.probes.start_cost import import_cost, read_cost
from tests.waiting import LIMIT_S, scaled

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"


@pytest.mark.parametrize(
    ("text", "version"), [(PROPRIETARY, "535.104.05"), (OPEN, "580.65.06"), ("", ""), ("NVRM", "")]
)
def test_the_loaded_kernel_module(text: str, version: str) -> None:
    assert kernel_driver(text) == version


class FakeNvml(ModuleType):
    """The calls of pynvml that the probe makes, for a node with two GPUs, one of them lost."""

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9
    NVML_ERROR_LIB_RM_VERSION_MISMATCH, NVML_ERROR_NO_PERMISSION = 18, 4

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, init: int = 0) -> None:
        super().__init__("pynvml")
        self.init = init

    def nvmlInit(self) -> None:
        if self.init:
            raise self.NVMLError(self.init)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError(15)
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return "GPU-0"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
        class Memory:
            total = 141 << 30

        return Memory()

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)


def test_a_lost_gpu_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = gpus({})
    assert (found.driver, found.cuda_driver, found.problem) == ("550.54.15", "12.4", "")
    assert [(g.name, g.compute_capability, g.problem) for g in found.gpus] == [
        ("NVIDIA H200", "9.0", ""),
        ("", "", "error 15"),
    ]


@pytest.mark.parametrize(("code", "problem"), [(12, "no-library"), (9, "no-driver"), (18, "mismatch"), (999, "other")])
def test_a_broken_driver_is_an_observation(monkeypatch: pytest.MonkeyPatch, code: int, problem: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(code))
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert gpus({}).problem == problem


def test_a_denied_or_missing_binding_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(4))
    with pytest.raises(ProbeUnavailable) as denied:
        gpus({})
    assert denied.value.kind == "denied"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ProbeUnavailable) as missing:
        gpus({})
    assert missing.value.kind == "missing"


def test_packages_are_read_without_importing_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.7.1+cu128'\ncuda: Optional[str] = '12.8'\ngit_version = 'abc'\n"
    )
    info = tmp_path / "torch-2.7.1+cu128.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.7.1+cu128\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = packages({})
    assert found.torch is not None
    assert (found.torch.version, found.torch.cuda, found.torch.commit) == ("2.7.1+cu128", "12.8", "abc")
    assert found.versions["torch"] == "2.7.1+cu128"
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("text", "cuda", "version"),
    [
        ("__version__ = '2.4.0+cpu'\ncuda = None\n", "", "2.4.0+cpu"),
        ("full_version    = '2.6.1'\ncuda_version    = '11.8'\ncommit = 'f00'\n", "11.8", "2.6.1"),
        ("full_version = '3.0.0'\ncuda_version = 'False'\n", "", "3.0.0"),
        ("", "", ""),
    ],
)
def test_version_files_of_torch_and_paddle(text: str, cuda: str, version: str, tmp_path: Path) -> None:
    for framework, file in (("torch", "version.py"), ("paddle", "version/__init__.py")):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        said = built.version_info(framework, str(tmp_path))
        assert (said.get("cuda", ""), said.get("version", "")) == (cuda, version)


def test_an_invalid_version_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("cuda = '12.8' (")
    assert built.version_info("torch", str(tmp_path)) == {}


def test_limits_of_this_process() -> None:
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = limits({})
    assert found.open_files_soft == (None if soft == resource.RLIM_INFINITY else soft)
    assert found.shm_problem or found.shm_total_bytes is not None


def test_a_directory_is_listed_with_sizes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "sub" / "b").write_bytes(b"1")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    found = path_state({"path": str(tmp_path)})
    assert [(e.name, e.size_bytes) for e in found.entries] == [("a", 3), ("sub/b", 1)]
    assert found.unreadable == ["gone"]
    assert (found.kind, found.size_bytes, found.listed) == ("directory", 4, 2)


def test_the_digest_changes_with_a_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    before = path_state({"path": str(tmp_path)}).digest
    (tmp_path / "a").write_bytes(b"12")
    assert path_state({"path": str(tmp_path)}).digest != before


def test_relative_paths_patterns_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("part-0.tar", "part-1.tar", "other"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA", str(tmp_path))
    assert path_state({"path": "other"}).kind == "file"
    pattern = path_state({"path": "$DATA/part-*.tar"})
    assert pattern.kind == "pattern" and [e.name for e in pattern.entries] == ["part-0.tar", "part-1.tar"]


def test_missing_and_dangling_paths_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert path_state({"path": str(tmp_path / "none")}).problem == "missing"
    assert path_state({"path": str(tmp_path / "link")}).problem == "dangling"


# Tasks in their own processes: results before a hang or a crash are kept, and a hung task is not awaited.


def _quick(say: Send) -> None:
    say({"name": "é" * 40000})
    say({"count": 2})


def _hangs(say: Send) -> None:
    say({"name": "early"})
    say({"at": "a call"})
    time.sleep(60)


def _raises(say: Send) -> None:
    say({"at": "reading"})
    raise ValueError("no such thing")


def _is_killed(say: Send) -> None:
    say({"at": "computing"})
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_task_reports_separately() -> None:
    # All of them end, so the limit only has to be longer than any of them can take here.
    quick, broken, killed = run_isolated([_quick, _raises, _is_killed], LIMIT_S)
    assert (quick.problem, quick.values) == ("", {"name": "é" * 40000, "count": 2})
    assert (broken.problem, broken.at) == ("crashed", "reading") and "no such thing" in broken.detail
    assert killed.problem == "crashed" and "signal 9" in killed.detail


def test_what_a_hung_task_sent_before_is_kept() -> None:
    hung, quick = run_isolated([_hangs, _quick], scaled(1.0))
    assert (hung.problem, hung.at, hung.values) == ("timeout", "a call", {"name": "early"})
    assert quick.problem == ""


def test_nothing_to_do() -> None:
    assert run_isolated([], 0.1) == []


def test_no_child_process_remains() -> None:
    """Runs in its own interpreter, because other tests leave children of their own."""
    program = (
        "import os\n"
        f"from {__name__} import _hangs, _quick, run_isolated\n"
        "run_isolated([_hangs, _quick], 0.2)\n"
        "try:\n"
        "    print(*os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('none')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.strip(), ended.stderr) == ("none", ""), "a child was not reaped"


# Reading and importing a small package in place of a framework.


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
