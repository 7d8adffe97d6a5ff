"""GPUs, packages, limits and paths of this machine, and parsers on recorded text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import built
from preflight_checks.probes.gpu_device import kernel_driver
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.limits import limits
from preflight_checks.probes.packages import packages
from preflight_checks.probes.paths import path_state

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
