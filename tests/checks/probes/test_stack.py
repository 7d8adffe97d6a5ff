"""The libraries that a framework would load, on made-up wheels with compiled libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.agent.command import CommandResult
from preflight_checks.probes import built, devices, libraries, stack
from preflight_checks.probes import libraries as elf
from tests.cluster.faults.stack import Torch

CUDNN = "long cudnnGetVersion(void) { return %d; }\n"
NCCL = "int ncclGetVersion(int *v) { *v = %d; return 0; }\n"


def library(path: Path, source: str, *options: str) -> Path:
    """A shared library of this C source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), "-Wl,--no-as-needed", *options]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True, timeout=60)
    return path


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder with a torch, its cuDNN 9.5.1 and NCCL 2.26.2."""
    site = tmp_path / "site"
    for name, text in Torch().files().items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    library(site / "nvidia/cudnn/lib/libcudnn.so.9", CUDNN % 90501)
    library(site / "nvidia/nccl/lib/libnccl.so.2", NCCL % 22602)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return site


def link(site: Path, tag: str) -> None:
    """torch's library, which finds those of NVIDIA by a run path of this kind."""
    folders = "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib"
    needs = [str(site / "nvidia/cudnn/lib/libcudnn.so.9"), str(site / "nvidia/nccl/lib/libnccl.so.2")]
    # Without a name of its own, a library is needed by the path it was linked with; give it one.
    for need in needs:
        source = CUDNN % 90501 if "cudnn" in need else NCCL % 22602
        library(Path(need), source, f"-Wl,-soname,{Path(need).name}")
    library(site / "torch/lib/libtorch_cuda.so", "int torch;", *needs, f"-Wl,-rpath,{folders}", f"-Wl,{tag}")


def loaded_libraries(software: stack.Stack) -> dict[str, tuple[str, str]]:
    return {found.name: (found.version, found.via.split()[0]) for found in software.builds[0].libraries}


def test_build_facts_of_a_wheel(environment: Path) -> None:
    link(environment, "--disable-new-dtags")
    found = stack.stack({})
    build = found.builds[0]
    assert (build.framework, build.version, build.cuda) == ("torch", "2.7.1+cu126", "12.6")
    assert (build.cudnn, build.nccl) == ("9.5.1.17", "2.26.2")
    assert build.architectures == ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
    assert loaded_libraries(found) == {"libcudnn.so.9": ("9.5.1", "the"), "libnccl.so.2": ("2.26.2", "the")}


@pytest.mark.parametrize(("tag", "version"), [("--disable-new-dtags", "9.5.1"), ("--enable-new-dtags", "8.2.4")])
def test_the_library_path_wins_over_a_runpath_and_not_over_an_rpath(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, version: str
) -> None:
    link(environment, tag)
    library(tmp_path / "apps/libcudnn.so.9", CUDNN % 8204)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'apps'}")
    assert loaded_libraries(stack.stack({}))["libcudnn.so.9"][0] == version


def test_parts_of_cudnn_from_another_folder(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link(environment, "--disable-new-dtags")
    library(environment / "nvidia/cudnn/lib/libcudnn_ops.so.9", "int part;")
    library(tmp_path / "apps/libcudnn_ops.so.9", "int part;")
    library(tmp_path / "apps/libcudnn.so.9", CUDNN % 90100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "apps"))
    assert loaded_libraries(stack.stack({}))["libcudnn_ops.so.9"] == ("9.1.0", "LD_LIBRARY_PATH")


def test_a_hanging_or_invalid_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LOAD_S", 0.3)
    hanging = "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { sleep(30); }\n"
    path = library(tmp_path / "libcudnn.so.9", hanging)
    found = libraries.with_version(libraries.LibraryLookup("x", str(path)), {}, libraries.cudnn_version)
    assert (found.version, "timeout" in found.problem) == ("", True)
    path.write_text("no library")
    assert (
        "loading"
        in libraries.with_version(libraries.LibraryLookup("x", str(path)), {}, libraries.cudnn_version).problem
    )
    assert elf.dynamic(str(path)) is None and elf.dynamic(str(tmp_path / "absent")) is None
    path.write_bytes(b"")
    assert elf.dynamic(str(path)) is None


def test_the_drivers_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "DRIVER", "libcuda-of-nobody.so.1")
    assert libraries.driver_library().problem == "missing"
    path = tmp_path / "libcuda-of-nobody.so.1"
    path.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    run = f"""
import dataclasses, json
from preflight_checks.probes import libraries
libraries.DRIVER = {path.name!r}
print(libraries.driver_library().problem)
"""

    def seen() -> str:
        # The loader reads LD_LIBRARY_PATH when a process starts.
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert seen() == "empty"
    path.write_text("no library")
    assert seen() == "unloadable"
    path.unlink()
    library(path, "int driver;")
    assert seen() == ""


def test_build_facts_of_tensorflow_paddle_and_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "tensorflow/__init__.py": "",
        "tensorflow/python/platform/build_info.py": "import collections\nbuild_info = collections.OrderedDict("
        "[('cuda_version', '12.5.1'), ('cudnn_version', '9'), "
        "('cuda_compute_capabilities', ['sm_60', 'compute_90'])])\n",
        "paddle/__init__.py": "",
        "paddle/version/__init__.py": "full_version = '2.6.2'\ncuda_version = '11.8'\ncudnn_version = '8.6.0'\n"
        "nccl_version = '21602'\n",
        "deepspeed/__init__.py": "",
        "deepspeed/git_version_info_installed.py": "version='0.16.9'\n"
        "installed_ops={'cpu_adam': True, 'fused_adam': False}\n"
        "torch_info={'version': '2.5', 'cuda_version': '12.4'}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = stack.stack({})
    builds = {build.framework: build for build in found.builds}
    assert (builds["paddle"].cuda, builds["paddle"].cudnn, builds["paddle"].nccl) == ("11.8", "8.6.0", "2.16.2")
    assert builds["tensorflow"].architectures == ["sm_60", "compute_90"]
    assert found.deepspeed == stack.DeepSpeedOps("0.16.9", ["cpu_adam"], "2.5", "12.4")


def test_paddle_takes_cudnn_from_the_library_path_unless_nvidias_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paddle/version").mkdir(parents=True)
    (tmp_path / "paddle/__init__.py").touch()
    (tmp_path / "paddle/version/__init__.py").write_text("full_version = '2.6.2'\ncuda_version = '12.0'\n")
    library(tmp_path / "apps/libcudnn.so", CUDNN % 8204)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "apps"))

    def found() -> list[tuple[str, str]]:
        (build,) = (one for one in stack.stack({}).builds if one.framework == "paddle")
        return [(item.version, item.via) for item in build.libraries]

    assert found() == [("8.2.4", "LD_LIBRARY_PATH")]
    info = tmp_path / "nvidia_cudnn_cu12-9.5.1.17.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.5.1.17\n")
    assert found() == []


def test_features_of_horovod_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "horovod" / "torch"
    folder.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (folder / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\0N7horovod6common13GlooAllreduceE\0")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = stack.stack({}).horovod
    assert found is not None and found.extensions == {"torch": ["gloo"]}


@pytest.mark.parametrize(
    ("data", "listed"),
    [
        (b"\0sm_80\0x\0sm_50 sm_80 sm_90\0", ["sm_50", "sm_80", "sm_90"]),
        (b"\0 sm_90 compute_90 \0", ["sm_90", "compute_90"]),
        (b"\0gfx900;gfx90a;gfx942:sramecc+:xnack-\0", ["gfx900", "gfx90a", "gfx942:sramecc+:xnack-"]),
        (b"\0sm_80\0sm_90\0", None),
        (b"\0sm_90\0", ["sm_90"]),
        (b"nothing", None),
    ],
)
def test_the_list_of_architectures(tmp_path: Path, data: bytes, listed: list[str] | None) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_python.so").write_bytes(data)
    assert built.architectures("torch", str(tmp_path), {}) == listed


@pytest.mark.parametrize(
    ("name", "version"), [("libcuda.so.550.54.15", "550.54.15"), ("libcuda.so.1.1", ""), ("libcuda.so.1", "")]
)
def test_only_driver_versions_are_accepted(tmp_path: Path, name: str, version: str) -> None:
    (tmp_path / name).touch()
    assert libraries.driver_version(str(tmp_path / name)) == version


def test_versions_in_numbers() -> None:
    class Library:
        def __init__(self, number: int) -> None:
            self.number = number

    def version(number: int) -> str:
        class Function:
            restype = None

            def __call__(self) -> int:
                return number

        holder = type("Holder", (), {"cudnnGetVersion": Function()})()
        return libraries.cudnn_version(holder)

    assert [version(number) for number in (7605, 8204, 8907, 90100, 91002)] == [
        "7.6.5",
        "8.2.4",
        "8.9.7",
        "9.1.0",
        "9.10.2",
    ]


def test_device_nodes_and_cgroup_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DEV", str(tmp_path))
    monkeypatch.setattr(devices, "CONTAINERD", str(tmp_path / "config.toml"))
    monkeypatch.setattr(devices, "CDI", (str(tmp_path / "cdi"),))
    monkeypatch.setattr(devices, "MARKS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "config.toml").write_text("[plugins]\n  [x.options]\n    SystemdCgroup = true\n")
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia-caps").mkdir()
    found = devices.device_nodes({})
    assert (found.nodes, found.unlinked) == ([str(tmp_path / "nvidia0")],) * 2
    assert (found.cgroup_driver, found.engine, found.cdi, found.container) == ("systemd", "containerd", False, False)
    (tmp_path / "char").mkdir()
    (tmp_path / "char" / "1:3").symlink_to("../nvidia0")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").touch()
    found = devices.device_nodes({})
    assert (found.unlinked, found.cdi) == ([], True)


def test_the_loader_s_cache_gives_the_first_64_bit_library(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibnccl.so.2 (libc6) => /lib/i386-linux-gnu/libnccl.so.2\n"
        "\tlibnccl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so.2\n"
        "\tlibcudnn.so.9 (libc6,AArch64, OS ABI: Linux 3.7.0) => /lib/aarch64-linux-gnu/libcudnn.so.9\n"
    )
    monkeypatch.setattr(libraries.command, "run", lambda *_, **__: CommandResult(("ldconfig",), 0, text, "", 0.0))
    libraries.cached.cache_clear()
    found = libraries.locate("libnccl.so.2", None)
    assert (found.path, found.via) == ("/lib/x86_64-linux-gnu/libnccl.so.2", "the loader's cache (ldconfig)")
    assert libraries.cached()["libcudnn.so.9"] == "/lib/aarch64-linux-gnu/libcudnn.so.9"
    libraries.cached.cache_clear()
