"""The choice of a device, without one: a torch that sees as many GPUs as the test says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import bandwidth, group
from reference_trainer.collective import bandwidth as pace
from reference_trainer.collective import steps as sharded
from reference_trainer.common import framework, used_transport
from reference_trainer.common import framework as gpu_state
from reference_trainer.common import progress as starvation
from reference_trainer.common.framework import GpuState, GpuWatcher, OtherUse, environment
from reference_trainer.common.used_transport import CardCounters, count, counted_between, parse_interfaces
from tests.waiting import LIMIT_S, until

#: torch 2.11.0 with NCCL 2.28.9 on an H100, recorded on 2026-11-27: two ranks on one GPU.
DUPLICATE_GPU = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with \
NCCL_DEBUG=WARN for details), NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"""
#: The same torch with 250 MB of free memory.
OUT_OF_MEMORY = """CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
CUDA kernel errors might be asynchronously reported at some other API call."""


def torch_with(gpus: int, *, error: str = "", nccl: tuple[int, ...] = (2, 28, 9)) -> Any:
    """A torch that sees this many GPUs; using one fails with `error`."""
    used: list[int] = []

    def set_device(device: Any) -> None:
        if error:
            raise RuntimeError(error)
        used.append(device.index)

    cuda = SimpleNamespace(
        is_available=lambda: gpus > 0,
        device_count=lambda: gpus,
        set_device=set_device,
        nccl=SimpleNamespace(version=lambda: nccl),
        used=used,
    )
    return SimpleNamespace(
        cuda=cuda,
        device=lambda kind, index=None: SimpleNamespace(type=kind, index=index, __str__=lambda: kind),
        zeros=lambda count, device: None,
        distributed=SimpleNamespace(is_nccl_available=lambda: True),
        __version__="2.11.0",
    )


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of the environment end with the test; there is no driver."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(framework, "_LIBRARY", "libcuda-of-no-machine.so.1")


@pytest.mark.parametrize(("gpus", "indices"), [(1, [0, 0, 0]), (2, [0, 1, 0]), (8, [0, 1, 2])])
def test_processes_take_the_gpus_that_each_of_them_sees_in_turn(gpus: int, indices: list[int]) -> None:
    assert [framework.device_named(torch_with(gpus), "cuda", place).index for place in range(3)] == indices


def test_process_on_the_host_does_not_touch_cuda() -> None:
    torch = torch_with(1, error="CUDA must not be used")
    torch.cuda.is_available = torch.cuda.set_device
    assert framework.device_named(torch, "cpu").type == "cpu"
    assert framework.nccl_obstacle(torch, {"backend": "gloo"}) == ""
    assert framework.choose_device(torch, {}, "gloo").type == "cpu"


def test_message_about_a_missing_gpu_names_the_setting_that_hides_it() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "7"
    with pytest.raises(ProbeUnavailable, match=r"finds 0 GPUs \(CUDA_VISIBLE_DEVICES=7\)") as raised:
        framework.device_named(torch_with(0), "cuda")
    assert raised.value.kind == "missing"
    obstacle = framework.nccl_obstacle(torch_with(0), {"backend": "nccl"})
    assert obstacle.endswith("finds no GPU (CUDA_VISIBLE_DEVICES=7)")


def test_gpu_without_free_memory_is_named_in_one_line() -> None:
    with pytest.raises(ProbeUnavailable) as raised:
        framework.device_named(torch_with(1, error=OUT_OF_MEMORY), "cuda")
    assert raised.value.kind == "denied"
    assert raised.value.reason.endswith("cannot be used: CUDA error: out of memory")


@pytest.mark.parametrize(("ranks", "shared"), [(1, False), (2, False), (3, True)])
def test_ranks_share_gpus_only_if_nccl_is_asked_for(ranks: int, shared: bool) -> None:
    params = {"local_rank": 1, "local_world_size": ranks}
    assert bool(framework.nccl_obstacle(torch_with(2), {**params, "backend": "auto"})) == shared
    assert framework.nccl_obstacle(torch_with(2), {**params, "backend": "nccl"}) == ""
    assert "NCCL_HOSTID" not in os.environ
    assert framework.choose_device(torch_with(2), params, "nccl").index == 1
    assert os.environ.get("NCCL_HOSTID") == ("preflight-1" if shared else None)


@pytest.mark.parametrize("more", [{}, {"filtered": True}, {"force_interface": True}])
def test_nccl_chooses_its_interface_unless_the_job_filters(more: dict[str, bool]) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        os.environ.pop(name, None)
    framework.set_interface({"interface": "eth1", **more}, "nccl")
    assert os.environ.get("NCCL_SOCKET_IFNAME") == ("eth1" if more else None)
    framework.set_interface({"interface": "eth1"}, "gloo")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth1"


def test_description_of_an_error_holds_the_reason_of_nccl() -> None:
    text = framework.describe(RuntimeError(DUPLICATE_GPU))
    assert text.startswith("RuntimeError: NCCL error in: ") and "\n" not in text
    assert text.endswith("NCCL version 2.28.9: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60")
    assert framework.describe(ValueError("first\nsecond")) == "ValueError: first"


def test_driver_is_opened_through_functions_that_release_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def library(code: int) -> Any:
        names = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain")
        return SimpleNamespace(**{name: lambda *given, name=name: calls.append(name) or code for name in names})

    assert framework.load_cuda_driver() is None and not framework.open_context(0)
    monkeypatch.setattr(framework.ctypes, "CDLL", lambda name: library(0))
    assert framework.open_context(1)
    assert calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    monkeypatch.setattr(framework.ctypes, "CDLL", lambda name: library(2))
    assert not framework.open_context(1)


class Dist:
    """torch.distributed, as far as a group is set up and taken down; `newer` accepts a device."""

    def __init__(self, *, newer: bool) -> None:
        self.given: dict[str, Any] = {}

        def old(backend: str, store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
            self.given = {"timeout": timeout}

        def new(
            backend: str, store: Any, rank: int, world_size: int, timeout: timedelta, device_id: Any = None
        ) -> None:
            self.given = {"timeout": timeout, "device_id": device_id}

        self.init_process_group = new if newer else old
        self.destroy_process_group = lambda: None
        self.all_reduce = lambda tensor: None


def nothing(*given: Any, **named: Any) -> None:
    """What a rank reports of itself."""


PROGRESS: Any = SimpleNamespace(rank=0, collective=0, entering=nothing, left=nothing, on_fault_injected=nothing)


@pytest.mark.parametrize("newer", [True, False])
def test_nccl_gets_its_device_and_ends_no_rank_before_the_head_does(newer: bool) -> None:
    dist, gpu = Dist(newer=newer), SimpleNamespace(type="cuda", index=3)
    tensor = SimpleNamespace(is_cuda=False)
    torch = SimpleNamespace(ones=lambda count, device: tensor)
    params = {"world_size": 2}
    group.join(dist, torch, params, PROGRESS, None, "nccl", gpu, 60.0)
    assert dist.given["timeout"] > timedelta(seconds=60) and dist.given.get("device_id", gpu) is gpu
    assert ("device_id" in dist.given) is newer
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert ("NCCL_ASYNC_ERROR_HANDLING" in os.environ) is not newer
    group.join(dist, torch, params, PROGRESS, None, "gloo", gpu, 60.0)
    assert dist.given["timeout"] == timedelta(seconds=60) and dist.given.get("device_id") is None


def test_group_is_destroyed_on_the_device_of_the_rank() -> None:
    used: list[Any] = []
    torch, gpu = SimpleNamespace(cuda=SimpleNamespace(set_device=used.append)), SimpleNamespace(type="cuda", index=3)
    assert group.tear_down(torch, Dist(newer=True), PROGRESS, gpu) == "" and used == [gpu]


def test_gpus_exchange_the_large_message_of_the_sweep() -> None:
    sweep = bandwidth.Sweep([bandwidth.CollectiveTiming("all_reduce", 1 << 22, [0.1], 1)])
    assert pace.exchange_bytes(sweep, SimpleNamespace(type="cuda")) == 1 << 22
    assert pace.exchange_bytes(sweep, SimpleNamespace(type="cpu")) == pace.EXCHANGE_BYTES
    assert pace.exchange_bytes(bandwidth.Sweep(), SimpleNamespace(type="cuda")) == pace.EXCHANGE_BYTES


def test_ranks_on_one_gpu_divide_the_part_of_its_memory() -> None:
    free = 64 << 30
    torch = SimpleNamespace(
        zeros=lambda count, device: None, cuda=SimpleNamespace(mem_get_info=lambda device: (free, 80 << 30))
    )
    collectives = SimpleNamespace(timed=lambda *given: 0.001)
    device = SimpleNamespace(type="cuda")
    sizes = [
        bandwidth._Runner(torch, collectives, PROGRESS, 8, device, sharing).probe()[1]  # type: ignore[arg-type]
        for sharing in (1, 16)
    ]
    assert sizes == [bandwidth.MAX_GPU_BYTES, free // 32 // 16]


def test_gpus_are_told_apart_by_their_identifier() -> None:
    def torch(uuid: str) -> Any:
        return SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(uuid=uuid)))

    gpu = SimpleNamespace(type="cuda", index=0)
    assert group.device_identity(torch("a"), gpu) == group.device_identity(torch("a"), gpu)
    assert group.device_identity(torch("a"), gpu) != group.device_identity(torch("b"), gpu)
    assert group.device_identity(torch("a"), SimpleNamespace(type="cpu")) == 0


def test_digest_keeps_the_copy_that_a_gpu_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from reference_trainer.ps import exact as memory

    copies: list[Any] = []

    class OnGpu:
        """Its bytes exist only in a copy on the host."""

        def detach(self) -> OnGpu:
            return self

        def cpu(self) -> Any:
            copy = torch.arange(1000.0)
            copies.append(weakref.ref(copy))
            return copy

    class Sha:
        """Hashes only memory that still exists."""

        def update(self, view: Any) -> None:
            assert copies[-1]() is not None, "the copy was freed before it was read"

        def hexdigest(self) -> str:
            return "digest"

    monkeypatch.setattr(memory.hashlib, "sha256", Sha)
    assert memory.digest([OnGpu(), OnGpu()]) == "digest" and len(copies) == 2


# Counters of interfaces and RDMA ports are read and compared; unreadable ones are reported.


#: The format of Linux 6 (net/core/net-procfs.c), with a long name and an alias as old tools create.
DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compr
    lo: 9241803   44100    0    0    0     0          0         0  9241803   44100    0    0    0     0       0    0
  eth0:1836022 2214    0    0    0     0          0         0   193118    1766    0    0    0     0       0          0
enp220s0np0: 138463231270 1147283113 0 0 0 0 0 0 28501279127 74956770 0 0 0 0 0 0
"""


def test_bytes_of_interfaces_are_read() -> None:
    assert parse_interfaces(DEV) == {
        "lo": [9241803, 9241803],
        "eth0": [193118, 1836022],
        "enp220s0np0": [28501279127, 138463231270],
    }


def test_malformed_table_gives_no_interfaces() -> None:
    for text in ("", "Inter-| Receive\n face |bytes\n", "eth0: 1 2 3\n", "eth0: a b c d e f g h i j\n"):
        assert parse_interfaces(text) == {}


def port(root: Path, device: str, number: int, folder: str, **values: object) -> None:
    place = root / device / "ports" / str(number) / folder
    place.mkdir(parents=True)
    for name, value in values.items():
        (place / name).write_text(f"{value}\n")


def test_ports_count_words_and_efa_bytes(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(DEV)
    port(tmp_path / "ib", "mlx5_0", 1, "counters", port_xmit_data=250, port_rcv_data=1000)
    port(tmp_path / "ib", "rdmap16s27", 1, "hw_counters", tx_bytes=77, rx_bytes=88)
    port(tmp_path / "ib", "mlx5_1", 1, "counters", port_xmit_data="N/A (no PMA)", port_rcv_data=3)
    seen = count(str(tmp_path / "dev"), str(tmp_path / "ib"))
    assert seen.ports == {"mlx5_0:1": [1000, 4000], "rdmap16s27:1": [77, 88]}
    assert seen.interfaces["eth0"] == [193118, 1836022] and seen.problem == ""


def test_node_without_rdma_and_without_proc_net(tmp_path: Path) -> None:
    seen = count(str(tmp_path / "no"), str(tmp_path / "none"))
    assert seen.ports == {} and seen.interfaces == {} and "No such file" in seen.problem


def test_only_increased_counters_are_reported() -> None:
    before = CardCounters({"eth0": [10, 20], "eth1": [5, 5], "gone": [1, 1], "back": [9, 9]}, {"mlx5_0:1": [0, 0]})
    after = CardCounters(
        {"eth0": [110, 220], "eth1": [5, 5], "new": [7, 7], "back": [3, 12]}, {"mlx5_0:1": [64, 128]}, "x"
    )
    assert counted_between(before, after) == CardCounters({"eth0": [100, 200]}, {"mlx5_0:1": [64, 128]}, "x")


def test_counters_of_this_machine_can_be_read() -> None:
    assert "lo" in used_transport.count().interfaces


# Interface counters come from psutil if the rank's Python has it, else from /proc.


Card = namedtuple("Card", ("bytes_sent", "bytes_recv"))


def test_psutil_counts_where_it_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic, nowrap: {"eth0": Card(3, 5)})
    assert used_transport.count(infiniband="/nonexistent").interfaces == {"eth0": [3, 5]}


@pytest.mark.parametrize("broken", ["missing", "raises"])
def test_without_psutil_the_kernel_is_read(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "psutil", None)
    else:
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: 1 / 0)
    found = used_transport.count(infiniband="/nonexistent")
    assert "lo" in found.interfaces and not found.problem


def test_both_name_the_same_interfaces() -> None:
    text = Path(used_transport.INTERFACES).read_text()
    assert set(used_transport._by_psutil() or {}) == set(used_transport.parse_interfaces(text))


# NVML during a measurement: samples, the link, others on the card; and what is missing or hangs.


class FakeNvml:
    """A binding of NVML with one card; `missing` calls raise, as on old drivers."""

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetTemperature": 60,
            "nvmlDeviceGetPowerUsage": 500_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7)],
            **values,
        }
        self.opened = ""

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:
        self.opened = address.decode()
        return "card"

    def __getattr__(self, name: str) -> Any:
        def call(handle: Any, *arguments: Any) -> Any:
            if name not in self.values:
                raise RuntimeError("not supported")
            value = self.values[name]
            return value(*arguments) if callable(value) else value

        return call


def watcher(nvml: Any) -> GpuWatcher:
    return GpuWatcher(0, nvml, lambda index: "0000:00:06.0")


def test_samples_are_taken_between_begin_and_end() -> None:
    clocks = iter([1000, 1500, 1980] + [1980] * 1000)
    nvml = FakeNvml(nvmlDeviceGetClockInfo=lambda kind: next(clocks))
    looking = watcher(nvml)
    looking.begin()
    until(lambda: len(looking._clocks) >= 5)
    looking.read_link()
    looking.end()
    state = looking.state()
    assert nvml.opened == "0000:00:06.0" and state.samples >= 5 and state.clock_mhz == 1980
    assert (state.reasons, state.held_reasons, state.temperature_c, state.power_w) == (4, 4, 60, 500.0)
    assert (state.pcie_generation, state.pcie_width, state.uuid, state.driver) == (5, 16, "GPU-1", "580.1")
    assert (state.power_limit_w, state.power_limit_default_w, state.problem) == (700.0, 700.0, "")


def test_a_reason_of_a_moment_is_not_held() -> None:
    looking = watcher(FakeNvml())
    looking._reasons = [0, 0, 0x40, 0]
    state = looking.state()
    assert (state.reasons, state.held_reasons) == (0x40, 0)


def test_calls_that_a_driver_lacks_leave_fields_unknown() -> None:
    looking = watcher(FakeNvml())
    looking._nvml.values = {}
    looking.begin()
    looking.end()
    looking.read_link()
    assert looking.state() == GpuState(driver="580.1")
    assert looking.other_use(lambda: None) == OtherUse()
    assert not OtherUse(None, 3).busy


def test_the_older_name_of_the_reasons_is_used() -> None:
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    del nvml.values["nvmlDeviceGetCurrentClocksEventReasons"]
    looking = watcher(nvml)
    looking.begin()
    until(lambda: looking._reasons)
    looking.end()
    assert looking.state().reasons == 0x20


def test_a_card_that_stays_busy_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "SETTLE_S", 0.3)
    both = [SimpleNamespace(pid=9), SimpleNamespace(pid=7)]
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=98), nvmlDeviceGetComputeRunningProcesses=both)
    moved = []
    use = watcher(nvml).other_use(lambda: moved.append(1))
    assert use == OtherUse(98, 1) and use.busy and len(moved) >= 2


def test_a_card_that_falls_idle_was_busy_with_this_rank() -> None:
    rates = iter([90, 40, 0])
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=lambda: SimpleNamespace(gpu=next(rates)))
    use = watcher(nvml).other_use(lambda: None)
    assert use.utilization_percent == 0 and not use.busy


def test_without_nvml_everything_is_unknown() -> None:
    def no_driver(index: int) -> str:
        raise OSError("libcuda.so.1: cannot open shared object file")

    looking = GpuWatcher(0, FakeNvml(), no_driver)
    looking.begin()
    looking.read_link()
    looking.end()
    assert "libcuda.so.1" in looking.state().problem and looking.state().clock_mhz is None
    assert looking.other_use(lambda: None) == OtherUse() and looking.nvlinks_to("0000:01:00.0") is None


def test_a_driver_that_hangs_does_not_hang_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "INIT_S", 0.1)
    release = threading.Event()

    def hang(index: int) -> str:
        release.wait(LIMIT_S)
        return "0000:00:06.0"

    looking = GpuWatcher(0, FakeNvml(), hang)
    assert not release.is_set() and "did not respond within 0.1 s" in looking.state().problem
    release.set()


def test_links_to_a_peer_are_counted_directly_and_through_switches() -> None:
    up = [True, True, False, True]

    def state(link: int) -> bool:
        if link >= len(up):
            raise RuntimeError("invalid argument")
        return up[link]

    def remote(link: int) -> Any:
        return SimpleNamespace(busId=b"00000000:41:00.0" if link == 0 else b"00000000:C1:00.0")

    nvml = FakeNvml(nvmlDeviceGetNvLinkState=state, nvmlDeviceGetNvLinkRemotePciInfo=remote)
    nvml.values["nvmlDeviceGetNvLinkRemoteDeviceType"] = lambda link: 0
    assert watcher(nvml).nvlinks_to("0000:41:00.0") == 1
    assert watcher(nvml).nvlinks_to("0000:c1:00.0") == 2
    assert watcher(nvml).nvlinks_to("0000:81:00.0") == 0 and watcher(nvml).nvlinks_to("") == 0
    nvml.values["nvmlDeviceGetNvLinkRemoteDeviceType"] = lambda link: 2
    assert watcher(nvml).nvlinks_to("0000:81:00.0") == 3 and watcher(nvml).nvlinks_to("") == 3
    assert watcher(FakeNvml()).nvlinks_to("0000:81:00.0") == 0


# Several ranks on one GPU: the variables for each NCCL version, and a whole smoke run if there is a GPU.


Ranks = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("nccl", [(2, 30), (2, 30, 3), (2, 31, 0), (3, 0, 1)])
def test_new_nccl_versions_are_configured_to_share_a_gpu(nccl: tuple[int, ...]) -> None:
    given = environment(1, 2, nccl)
    assert given["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and "NCCL_HOSTID" not in given


@pytest.mark.parametrize("nccl", [(2, 18, 1), (2, 27, 5), (2, 29, 7), (2, 4)])
def test_old_nccl_versions_get_one_host_id_per_rank(nccl: tuple[int, ...]) -> None:
    both = [environment(rank, 2, nccl) for rank in range(2)]
    assert both[0]["NCCL_HOSTID"] != both[1]["NCCL_HOSTID"]
    assert all(given["NCCL_SOCKET_IFNAME"] == "lo" for given in both)
    assert not any("NCCL_MULTI_RANK_GPU_ENABLE" in given for given in both)


def test_single_rank_needs_no_variables() -> None:
    assert environment(0, 1, (2, 27, 5)) == {}


def nccl_version() -> tuple[int, ...]:
    """NCCL's version; skips without a GPU that torch can use over NCCL."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("no NVIDIA GPU that torch can use over NCCL")
    return tuple(torch.cuda.nccl.version())


@pytest.mark.thorough
@pytest.mark.parametrize("sharding", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_on_one_gpu_are_exact_and_report_their_transport(ranks: Ranks, world_size: int, sharding: bool) -> None:
    nccl = nccl_version()
    answers = ranks(
        world_size,
        steps=10,
        overrides={str(r): {"backend": "nccl", "interface": "", "sharding": sharding} for r in range(world_size)},
        environment={str(r): environment(r, world_size, nccl) for r in range(world_size)},
    )
    for answer in answers:
        assert "report" in answer, answer
        report = answer["report"]
        assert report["mismatches"] == [] and report["unmoved"] == [] and len(set(report["digests"])) == 1
        assert report["backend"] == "nccl" and report["nccl_version"]
        assert report["trainer"] == (sharded.DDP if not sharding else report["trainer"])
        if world_size > 1:
            assert report["transport"]["nccl"]["network"] and report["transport"]["nccl"]["version"]
            assert [t["operation"] for t in report["sweep"]["timed"][:5]] and report["sweep"]["unsupported"] == []


# The kernel's counters of time without a processor.


def test_throttled_time_is_read_in_both_cgroup_versions(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    two = root / "job" / "rank"
    two.mkdir(parents=True)
    (two / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n")
    own.write_text("0::/job/rank\n")
    assert starvation.throttled_s(str(root), str(own)) == 2.5
    one = root / "cpu,cpuacct" / "job"
    one.mkdir(parents=True)
    (one / "cpu.stat").write_text("nr_periods 7\nthrottled_time 1500000000\n")
    own.write_text("4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n")
    assert starvation.throttled_s(str(root), str(own)) == 1.5


def test_container_reads_its_cgroup_at_the_root(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/kubepods/somewhere/else\n")
    (tmp_path / "cpu.stat").write_text("throttled_usec 1000\n")
    assert starvation.throttled_s(str(tmp_path), str(own)) == 0.001


@pytest.mark.parametrize("text", ["", "nonsense\n", "throttled_usec many\n"])
def test_unreadable_counters_give_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert starvation.throttled_s(str(tmp_path), str(tmp_path / "no")) is None
    (tmp_path / "schedstat").write_text(text)
    assert starvation.waited_s(str(tmp_path / "schedstat")) is None


def test_wait_time_is_the_second_field_of_schedstat(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("30700768 2000000000 24\n")
    assert starvation.waited_s(str(tmp_path / "schedstat")) == 2.0


def test_wait_times_of_threads_are_summed(tmp_path: Path) -> None:
    for thread, text in (("1", "5 1000000000 1\n"), ("2", "5 500000000 1\n")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert starvation.threads_waited_s(str(tmp_path)) == 1.5
    (tmp_path / "3").mkdir()
    assert starvation.threads_waited_s(str(tmp_path)) is None
    assert starvation.threads_waited_s(str(tmp_path / "no")) is None


@pytest.mark.thorough
def test_a_thread_that_competes_for_one_processor_is_starved_and_a_sleeping_one_is_not() -> None:
    if starvation.waited_s() is None:
        pytest.skip("this kernel counts no waits")
    one = str(min(os.sched_getaffinity(0)))
    program = f"""
import os, threading, time
from reference_trainer.common.progress import StarvationClock
os.sched_setaffinity(0, {{{one}}})
ends = time.monotonic() + 2.0
if not os.fork():
    while time.monotonic() < ends: pass
    os._exit(0)
clock = StarvationClock()
threading.Thread(target=lambda: [None for _ in iter(lambda: time.monotonic() < ends, False)]).start()
time.sleep(1.0)
print(clock.read())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) > 0.1, done.stderr
    sleeping = starvation.StarvationClock()
    threading.Thread(target=time.sleep, args=(0.3,)).start()
    time.sleep(0.3)
    before = time.monotonic()
    assert sleeping.read() is not None and sleeping.read() <= time.monotonic() - before + 0.3  # type: ignore[operator]
