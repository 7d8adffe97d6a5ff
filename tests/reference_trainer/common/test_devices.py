"""The choice of a device, without one: a torch that sees as many GPUs as the test says."""

from __future__ import annotations

import os
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import bandwidth, group
from reference_trainer.collective import bandwidth as pace
from reference_trainer.common import framework

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

    assert framework.initialise() is None and not framework.open_context(0)
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
    from reference_trainer.ps import store as memory

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
