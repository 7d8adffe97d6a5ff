"""The probe of GPUs against the stub library and the real binding, and AMD's GPUs from a made-up sysfs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.command import CommandResult
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import built, devices, gpus, libraries, stack
from preflight_checks.probes import libraries as elf
from preflight_checks.probes import packages as probe
from preflight_checks.probes.gpus import pci_address
from preflight_checks.probes.packages import Source, commit_of, installed, parse_metadata_dir_name
from tests.cluster.devices import Gpu, Gpus, compile_library
from tests.cluster.faults.devices import Torch
from tests.waiting import LIMIT_S, scaled

RUN = """
import dataclasses, json, sys
from preflight_checks.probes import gpus
gpus.DEVICE_S = gpus.SYSTEM_S = float(sys.argv[1])
print(json.dumps(dataclasses.asdict(gpus.gpus({}))))
"""


@pytest.fixture(autouse=True)
def _time_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is loaded in its own process, which may take long on a busy machine."""
    monkeypatch.setattr(libraries, "LOAD_S", LIMIT_S)


def probe_fact(folder: Path, text: str) -> dict[str, Any]:
    """The probe's fact about a driver with the answers in `text`."""
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        library.symlink_to(compile_library("stub_nvml.c"))
    (folder / "stub.conf").write_text(text)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "STUB_NVML_CONF": str(folder / "stub.conf"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    # Only a driver that hangs is waited for so long.
    limit_s = scaled(2.0) if "wedge" in text else LIMIT_S
    command = [sys.executable, "-c", RUN, str(limit_s)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_all_values_of_a_healthy_gpu(tmp_path: Path) -> None:
    more = {
        "nvlink0": 1,
        "nvlink1": 0,
        "nvlink0_recovery": 3,
        "vbios": "92.00",
        "gsp_firmware": "535",
        "process_pid": 1,
    }
    more |= {"process_memory": 7, "process1_pid": 999999, "fabric_state": 3, "retired_pages": 2}
    seen = probe_fact(tmp_path, Gpus((Gpu(more=more),)).text("n"))
    (card,) = seen["gpus"]
    assert (seen["driver"], seen["cuda_driver"], seen["problem"]) == ("535.183.01", "12.2", "")
    assert card["problem"] == "" and card["unread"] == {}
    assert card["pci"] == "0000:10:00.0" and card["uuid"].startswith("GPU-")
    assert (card["nvlinks"], card["nvlink_errors"]["recovery"]) == ([True, False], 3)
    assert [(p["pid"], bool(p["name"])) for p in card["processes"]] == [(1, True), (999999, False)]
    assert (card["fabric_state"], card["fabric_status"], card["pages_retired"]) == (3, 0, 2)
    assert (card["pcie_width"], card["temperature_slowdown_c"], card["compute_mode"]) == (16, 89, 0)


def test_a_busy_node_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 0.0, 0.0))
    assert gpus._overload_explanation() == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (70.0, 0.0, 0.0))
    assert gpus._overload_explanation() == " (the node is busy: load 70 on 2 cores)"


def test_an_old_driver_reports_fewer_values(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "cluster" / "stub_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-DOLD_DRIVER", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    card = Gpu(more={"process_pid": 1, "process_memory": 5, "throttle_reasons": 8, "fabric_state": 3})
    seen = probe_fact(tmp_path, Gpus((card,), "470.57.02", 11040).text("n"))
    (found,) = seen["gpus"]
    assert (seen["driver"], found["problem"], found["unread"]) == ("470.57.02", "", {})
    assert [process["pid"] for process in found["processes"]] == [1]
    assert (found["clock_reasons"], found["fabric_state"], found["recovery_action"]) == (8, None, None)
    assert found["memory_used_bytes"] == 500 * 2**20


def test_pairs_of_gpus(tmp_path: Path) -> None:
    cards = (Gpu(more={"peer2": 1, "distance1": 50}), Gpu(more={"recovery_action": 2}), Gpu())
    seen = probe_fact(tmp_path, Gpus(cards).text("n"))
    assert (seen["peer_reads"], seen["peer_distances"]) == ([0, 1, 0], [50, 10, 10])
    assert [card["recovery_action"] for card in seen["gpus"]] == [0, 2, 0]
    assert probe_fact(tmp_path, Gpus((Gpu(),)).text("n"))["peer_reads"] is None


def test_a_hanging_gpu_hides_no_other(tmp_path: Path) -> None:
    cards = (Gpu(), Gpu(more={"temperature": "wedge:60"}), Gpu(more={"error": 15}), Gpu())
    seen = probe_fact(tmp_path, Gpus(cards).text("n"))
    problems = [card["problem_kind"] for card in seen["gpus"]]
    assert problems == ["", "timeout", "lost", ""]
    hung = seen["gpus"][1]
    assert "nvmlDeviceGetTemperature did not return" in hung["problem"]
    assert hung["ecc_uncorrected"] == 0 and hung["temperature_c"] is None


def test_denied_and_missing_bindings(tmp_path: Path) -> None:
    card = Gpu(more={"ecc_uncorrected": "error:4", "mig_mode": "unsupported", "clock": "error:999"})
    (seen,) = probe_fact(tmp_path, Gpus((card,)).text("n"))["gpus"]
    assert seen["problem"] == ""
    assert (seen["ecc_uncorrected"], seen["mig_enabled"], seen["clock_mhz"]) == (None, None, None)
    assert set(seen["unread"]) == {"ecc_uncorrected", "clock_mhz"}
    assert "ermission" in seen["unread"]["ecc_uncorrected"]


def test_a_gpu_lost_during_the_query(tmp_path: Path) -> None:
    (seen,) = probe_fact(tmp_path, Gpus((Gpu(more={"power_usage": "error:15"}),)).text("n"))["gpus"]
    assert seen["problem_kind"] == "lost" and seen["ecc_uncorrected"] == 0 and seen["temperature_c"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [("init_error=18\n", "mismatch"), ("init_error=9\n", "no-driver"), ("init_error=wedge:60\n", "timeout")],
)
def test_a_driver_that_does_not_answer(tmp_path: Path, text: str, problem: str) -> None:
    seen = probe_fact(tmp_path, text)
    assert (seen["problem"], seen["gpus"]) == (problem, [])


@pytest.mark.parametrize(
    ("said", "kernel"), [("00000000:1B:00.0", "0000:1b:00.0"), ("00010000:C1:00.0", "0000:c1:00.0"), ("odd", "odd")]
)
def test_pci_addresses_are_written_like_the_kernels(said: str, kernel: str) -> None:
    assert pci_address(said) == kernel


MI250 = """cpu_cores_count 0
simd_count 440
vendor_id 4098
location_id 49408
domain 0
gfx_target_version 90010
unique_id 1234567890
"""


def test_amd_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(("cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n", MI250)):
        (tmp_path / "nodes" / str(number)).mkdir(parents=True)
        (tmp_path / "nodes" / str(number) / "properties").write_text(text)
        (tmp_path / "nodes" / str(number) / "name").write_text("aldebaran\n")
    card = tmp_path / "pci" / "0000:c1:00.0"
    card.mkdir(parents=True)
    (card / "mem_info_vram_total").write_text("68702699520\n")
    monkeypatch.setattr(gpus, "KFD", str(tmp_path / "nodes"))
    monkeypatch.setattr(gpus, "PCI", str(tmp_path / "pci"))
    monkeypatch.setattr(gpus, "MODULE", str(tmp_path))
    (tmp_path / "version").write_text("6.7.0\n")
    (found,) = gpus.kfd_devices()
    assert found == gpus.Device("aldebaran", "1234567890", "gfx90a", "0000:c1:00.0", 68702699520)
    seen = gpus.gpus({})
    assert (seen.vendor, seen.driver, [card.name for card in seen.gpus]) == ("amd", "6.7.0", ["aldebaran"])


def test_architectures_of_amd() -> None:
    assert [gpus.llvm_architecture(n) for n in (90010, 90402, 110000, 100302, 0)] == [
        "gfx90a",
        "gfx942",
        "gfx1100",
        "gfx1032",
        "",
    ]


def script(folder: Path, name: str, text: str) -> None:
    """A shell script with this text, as a tool."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_vendors_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TOOLS", ((str(tmp_path / "nvidia-smi"), "-L"), (str(tmp_path / "rocm-smi"), "-i")))
    monkeypatch.setattr(gpus, "ANSWER_S", 0.3)
    with pytest.raises(ProbeUnavailable) as missing:
        gpus.management_tool({})
    assert missing.value.kind == "missing"
    script(tmp_path, "rocm-smi", "echo 'GPU[0]: x'")
    assert gpus.management_tool({}).exit_code == 0
    script(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    failing = gpus.management_tool({})
    assert (failing.exit_code, failing.said) == (9, "NVIDIA-SMI has failed")
    script(tmp_path, "nvidia-smi", "sleep 30")
    assert gpus.management_tool({}).exit_code is None
    (tmp_path / "nvidia-smi").chmod(0o644)
    with pytest.raises(ProbeUnavailable) as denied:
        gpus.management_tool({})
    assert denied.value.kind == "denied"


# The libraries that a framework would load, on made-up wheels with compiled libraries.


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
    hanging = "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { sleep(30); }\n"
    path = library(tmp_path / "libcudnn.so.9", hanging)
    with monkeypatch.context() as hurried:
        hurried.setattr(libraries, "LOAD_S", 0.3)
        found = libraries.with_version(libraries.LibraryLookup("x", str(path)), {}, libraries.cudnn_version)
    assert (found.version, "timeout" in found.problem) == ("", True)
    path.write_text("no library")
    assert (
        "loading"
        in libraries.with_version(libraries.LibraryLookup("x", str(path)), {}, libraries.cudnn_version).problem
    )
    assert elf.read_dynamic_section(str(path)) is None and elf.read_dynamic_section(str(tmp_path / "absent")) is None
    path.write_bytes(b"")
    assert elf.read_dynamic_section(str(path)) is None


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
    libraries.loader_cache.cache_clear()
    found = libraries.locate("libnccl.so.2", None)
    assert (found.path, found.via) == ("/lib/x86_64-linux-gnu/libnccl.so.2", "the loader's cache (ldconfig)")
    assert libraries.loader_cache()["libcudnn.so.9"] == "/lib/aarch64-linux-gnu/libcudnn.so.9"
    libraries.loader_cache.cache_clear()


# The distributions that an interpreter finds, from the names of folders.


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("torch-2.3.0+cu121.dist-info", ("torch", "2.3.0+cu121")),
        ("nvidia_nccl_cu12-2.20.5.dist-info", ("nvidia-nccl-cu12", "2.20.5")),
        ("ruamel.yaml-0.18.dist-info", ("ruamel-yaml", "0.18")),
        ("PyYAML-6.0-py3.9.egg-info", ("pyyaml", "6.0")),
        ("torch", None),
        ("torch.libs", None),
        ("~orch-2.3.0.dist-info", ("~orch", "2.3.0")),
    ],
)
def test_names_and_versions_come_from_folder_names(entry: str, named: tuple[str, str] | None) -> None:
    assert parse_metadata_dir_name(entry) == named


def test_packages_are_found_without_imports() -> None:
    seen = installed({})
    assert seen.distributions["pytest"] and seen.python == ".".join(map(str, sys.version_info[:3]))
    assert "anyio" in seen.distributions and seen.machine


def test_other_names_enter_only_the_digest() -> None:
    whole, few = installed({}), installed({"only": ["pytest", "any*"]})
    assert set(few.distributions) >= {"pytest", "anyio"} and len(few.distributions) < len(whole.distributions)
    assert few.digest == whole.digest != ""


def test_the_first_folder_counts_and_duplicate_versions_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (
        "a/numpy-1.26.4.dist-info",
        "b/numpy-2.1.0.dist-info",
        "b/ray-2.9.dist-info",
        "b/ray-2.10.dist-info",
    ):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "absent")])
    seen = installed({})
    assert seen.distributions["numpy"] == "1.26.4" and seen.twice == {"ray": ["2.10", "2.9"]}


def test_sources_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / ".git" / "refs" / "heads").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".git" / "refs" / "heads" / "main").write_text(COMMIT + "\n")
    places = {
        "mine-1.0.dist-info": {"url": f"file://{tree}", "dir_info": {"editable": True}},
        "theirs-1.0.dist-info": {
            "url": "https://me:hidden@host/x.git",
            "vcs_info": {"vcs": "git", "commit_id": COMMIT},
        },
        "broken-1.0.dist-info": [],
    }
    for name, said in places.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "direct_url.json").write_text(json.dumps(said))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    seen = installed({})
    assert seen.sources["mine"] == Source(str(tree), COMMIT)
    assert seen.sources["theirs"].commit == COMMIT and "hidden" not in str(seen.sources)
    assert set(seen.sources) == {"mine", "theirs"}


def test_a_commit_is_read_from_packed_references_and_worktrees(tmp_path: Path) -> None:
    git = tmp_path / "main" / ".git"
    (git / "worktrees" / "one").mkdir(parents=True)
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/side\n")
    (git / "worktrees" / "one" / "HEAD").write_text("ref: refs/heads/side\n")
    (git / "worktrees" / "one" / "commondir").write_text("../..\n")
    (tmp_path / "side" / "deep").mkdir(parents=True)
    (tmp_path / "side" / ".git").write_text(f"gitdir: {git}/worktrees/one\n")
    assert commit_of(str(tmp_path / "side" / "deep")) == COMMIT
    (git / "HEAD").write_text("not a commit\n")
    assert commit_of(str(tmp_path / "main")) == ""


def test_the_kind_of_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert probe.installed({}).kind == "system"
    (tmp_path / "conda-meta").mkdir()
    assert probe.installed({}).kind == "conda"
