"""RDMA devices, ports, rates, counters, firmware, GIDs, and what ranks may open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job
from preflight.model.recording import FactRecord, Unavailable
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.host.processors import memlock_limited
from preflight_checks.links.slow_links import plan_rdma_speed, rdma_writes_slow
from preflight_checks.probes.devices import Pci, pci
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.rdma import (
    Gid,
    GpuDirect,
    RailSpeed,
    RdmaAccess,
    RdmaDevice,
    RdmaDevices,
    RdmaPort,
    RdmaSpeeds,
    gpudirect,
    rdma,
    rdma_access,
    rdma_speed,
)
from preflight_checks.rdma.devices import HcaFilter, demand, rdma_closed_to_ranks, rdma_device_absent, rdma_port_down
from preflight_checks.rdma.port_health import (
    acs_redirects,
    automatic_gid,
    firmware_differs,
    gid_unusable,
    gpudirect_missing,
    hca_far,
    iommu_translates,
    link_errors,
    rate_differs,
)
from tests.checks.check_builders import (
    TIMEOUT,
    fact,
    facts,
    fleet,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)

ALL = (rdma_device_absent, rdma_port_down, rate_differs, link_errors, firmware_differs, gid_unusable)
NCCL = job(backend="nccl")
UP = RdmaPort(1, "ACTIVE", "LinkUp", 200.0, "200 Gb/sec (4X HDR)", "InfiniBand", [], {"link_downed": 1})
DOWN = replace(UP, state="DOWN", physical="Polling")
LOCAL = "fe80:0000:0000:0000:0ac0:ebff:feda:0001"


def hca(name: str, port: RdmaPort = UP, firmware: str = "28.39.1002") -> RdmaDevice:
    return RdmaDevice(name, "mlx5_core", firmware, "MT_0000000838", "", [port])


def node(name: str, *devices: RdmaDevice) -> FactRecord:
    return fact(rdma, name, RdmaDevices(list(devices)))


def four_nodes(**other: Sequence[RdmaDevice]) -> list[FactRecord]:
    """node0 ... node3 with two cards each, except for the named ones."""
    usual = (hca("mlx5_0"), hca("mlx5_1"))
    return [node(f"node{i}", *other.get(f"node{i}", usual)) for i in range(4)]


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_equal_cards_pass(check: Check) -> None:
    found = statuses(judge(check, NCCL, fleet(), facts(*four_nodes())))
    assert found == {"not-applicable"} if check is gid_unusable else found == {"pass"}


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_a_cluster_without_rdma_has_no_finding(check: Check) -> None:
    bare = facts(*(node(f"node{i}") for i in range(4)))
    assert statuses(judge(check, NCCL, fleet(), bare)) == {"not-applicable"}


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_unknown_without_facts(check: Check) -> None:
    blind = facts(*(fact(rdma, f"node{i}", TIMEOUT) for i in range(4)))
    assert statuses(judge(check, NCCL, fleet(), blind)) == {"unknown"}


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
@pytest.mark.parametrize("other", [{"backend": "gloo"}, {"env_NCCL_IB_DISABLE": "1"}, {"env_NCCL_NET": "Socket"}])
def test_a_job_without_rdma_requests_nothing(check: Check, other: dict[str, str]) -> None:
    without = job(**{"backend": "nccl", **other})
    assert plan(check, without, fleet()) == []
    assert statuses(judge(check, without, fleet(), facts())) == {"not-applicable"}
    assert plan(check, NCCL, local_fleet(2)) == [] and plan(check, NCCL, fleet(1)) == []


def test_a_fact_is_required_if_the_job_requests_rdma() -> None:
    assert not any(request.required for request in plan(rdma_port_down, NCCL, fleet(2)))
    asked = plan(rdma_port_down, job(backend="nccl", env_NCCL_IB_HCA="mlx5"), fleet(2))
    assert all(request.required and request.because for request in asked)


def test_demand_for_rdma() -> None:
    def why(**values: str) -> str:
        found = demand(job(**values))
        return found.requested_by if found is not None else "none"

    assert why(backend="nccl") == "" and why(backend="gloo") == "none"
    assert why(backend="nccl", env_NCCL_NET="IB") == "NCCL_NET=IB"
    assert why(backend="nccl", env_FI_PROVIDER="efa") == "FI_PROVIDER=efa"
    assert why(env_UCX_TLS="rc,cuda") == "UCX_TLS=rc,cuda" and why(env_UCX_TLS="tcp") == "none"
    strict = demand(job(env_UCX_TLS="rc_x"))
    assert strict is not None and strict.strict
    loose = demand(job(env_UCX_TLS="rc_x,tcp"))
    assert loose is not None and not loose.strict


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("mlx5", ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("=mlx5_1:2,mlx5_0", ["mlx5_0:1", "mlx5_1:2"]),
        ("^mlx5_1", ["mlx5_0:1", "ib0:1"]),
        ("^=mlx5_1", ["mlx5_0:1", "mlx5_10:1", "ib0:1"]),
        ("^=mlx5_1:1", ["mlx5_0:1", "mlx5_1:2", "mlx5_10:1", "ib0:1"]),
    ],
)
def test_the_filter_of_nccl(value: str, taken: list[str]) -> None:
    ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("ib0", 1)]
    wanted = HcaFilter("NCCL_IB_HCA", value)
    assert [f"{name}:{port}" for name, port in ports if wanted.selects(name, port)] == taken


def test_the_filter_of_ucx() -> None:
    wanted = HcaFilter("UCX_NET_DEVICES", "mlx5_[0-2]:1,eth0")
    assert wanted.selects("mlx5_2", 1) and not wanted.selects("mlx5_2", 2) and not wanted.selects("mlx5_20", 1)
    assert wanted.absent_names(["mlx5_0", "mlx5_1"], ["eth0"]) == ("mlx5_2",)
    assert HcaFilter("UCX_NET_DEVICES", "all").selects("mlx5_0", 1)
    assert HcaFilter("UCX_NET_DEVICES", "all").absent_names([]) == ()


def test_a_node_that_lost_a_card() -> None:
    listed = job(backend="nccl", env_NCCL_IB_HCA="mlx5_0,mlx5_1")
    found = one(judge(rdma_device_absent, listed, fleet(), facts(*four_nodes(node3=[hca("mlx5_0")]))), Status.FAIL)
    assert found.nodes == ("node3",) and "mlx5_1" in found.message and found.severity is None


def test_a_list_incomplete_on_all_nodes_is_a_warning() -> None:
    longer = job(backend="nccl", env_NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2")
    found = one(judge(rdma_device_absent, longer, fleet(), facts(*four_nodes())), Status.FAIL)
    assert found.severity is Severity.WARNING and "mlx5_2" in found.message
    strange = job(backend="nccl", env_NCCL_IB_HCA="mlx4")
    assert one(judge(rdma_device_absent, strange, fleet(), facts(*four_nodes())), Status.FAIL).severity is None


def test_one_node_without_any_card() -> None:
    assert one(judge(rdma_device_absent, NCCL, fleet(), facts(*four_nodes(node1=[]))), Status.FAIL).nodes == ("node1",)
    idle = four_nodes(node0=[hca("mlx5_0", DOWN)], node1=[], node2=[hca("mlx5_0", DOWN)], node3=[hca("mlx5_0", DOWN)])
    assert "fail" not in statuses(judge(rdma_device_absent, NCCL, fleet(), facts(*idle)))


def test_no_card_on_any_node() -> None:
    bare = facts(*(node(f"node{i}") for i in range(4)))
    strict = job(backend="nccl", env_NCCL_NET="IB")
    assert one(judge(rdma_device_absent, strict, fleet(), bare), Status.FAIL).severity is None
    hoped = job(backend="nccl", env_NCCL_IB_HCA="mlx5")
    assert one(judge(rdma_device_absent, hoped, fleet(), bare), Status.FAIL).severity is Severity.WARNING


def test_ucx_may_name_interfaces() -> None:
    mixed = job(env_UCX_TLS="rc,tcp", env_UCX_NET_DEVICES="mlx5_0:1,eth0")
    assert {request.probe.split(":")[1] for request in plan(rdma_device_absent, mixed, fleet(2))} == {
        "rdma",
        "interfaces",
    }
    eth = [fact(interfaces, f"node{i}", Interfaces([Interface("eth0", True, True, False)])) for i in range(4)]
    assert statuses(judge(rdma_device_absent, mixed, fleet(), facts(*four_nodes(), *eth))) == {"pass"}


def test_a_port_that_is_down_on_one_node() -> None:
    seen = facts(*four_nodes(node2=[hca("mlx5_0"), hca("mlx5_1", DOWN)]))
    found = one(judge(rdma_port_down, NCCL, fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.WARNING and "1 of 2" in found.message
    named = job(backend="nccl", env_NCCL_IB_HCA="mlx5_0,mlx5_1")
    assert one(judge(rdma_port_down, named, fleet(), seen), Status.FAIL).severity is None


def test_a_node_with_no_port_left_is_an_error_and_one_finding() -> None:
    dark = facts(*four_nodes(node2=[hca("mlx5_0", DOWN), hca("mlx5_1", DOWN)]))
    found = one(judge(rdma_port_down, NCCL, fleet(), dark), Status.FAIL)
    assert found.severity is None and "mlx5_0:1, mlx5_1:1" in found.message


def test_an_unused_port_may_be_down() -> None:
    unused = [[hca("mlx5_0"), hca("mlx5_1", DOWN)]] * 4
    seen = facts(*four_nodes(**{f"node{i}": devices for i, devices in enumerate(unused)}))
    assert statuses(judge(rdma_port_down, NCCL, fleet(), seen)) == {"pass"}


def test_the_remedy_depends_on_the_state() -> None:
    for state, physical, word in (("INIT", "LinkUp", "subnet manager"), ("DOWN", "Disabled", "ip link set")):
        dark = replace(UP, state=state, physical=physical)
        found = one(judge(rdma_port_down, NCCL, fleet(), facts(*four_nodes(node0=[hca("mlx5_0", dark)]))), Status.FAIL)
        assert word in found.remedy


def test_a_hung_card_is_unknown_and_required() -> None:
    wedged = facts(*four_nodes(node1=[RdmaDevice("mlx5_0", problem="its driver did not answer within 2 s")]))
    verdicts = judge(rdma_port_down, NCCL, fleet(), wedged)
    assert one(verdicts, Status.UNKNOWN).required and "mlx5_0 on node1" in one(verdicts, Status.UNKNOWN).subject


def test_a_slow_port_and_another_link_layer() -> None:
    slow = hca("mlx5_0", replace(UP, rate_gbps=50.0, rate_text="50 Gb/sec (1X HDR)"))
    found = one(judge(rate_differs, NCCL, fleet(), facts(*four_nodes(node3=[slow, hca("mlx5_1")]))), Status.FAIL)
    assert found.nodes == ("node3",) and "1X HDR" in found.message
    roce = hca("mlx5_0", replace(UP, link_layer="Ethernet"))
    found = one(judge(rate_differs, NCCL, fleet(), facts(*four_nodes(node0=[roce, hca("mlx5_1")]))), Status.FAIL)
    assert found.nodes == ("node0",) and "cannot communicate" in found.message


def test_counters_far_above_the_median() -> None:
    faulty = hca("mlx5_1", replace(UP, counters={"link_downed": 212}))
    found = one(judge(link_errors, NCCL, fleet(), facts(*four_nodes(node1=[hca("mlx5_0"), faulty]))), Status.FAIL)
    assert found.nodes == ("node1",) and "212 link_downed" in found.message
    everywhere = {f"node{i}": [faulty, faulty] for i in range(4)}
    assert statuses(judge(link_errors, NCCL, fleet(), facts(*four_nodes(**everywhere)))) == {"pass"}


def test_firmware() -> None:
    old = facts(*four_nodes(node2=[hca("mlx5_0", firmware="28.33.0751"), hca("mlx5_1")]))
    found = one(judge(firmware_differs, NCCL, fleet(), old), Status.FAIL)
    assert found.nodes == ("node2",) and "mlx5_0 on node2" in found.message


def roce(node_name: str, *, index_3: int = 2, without_ipv4: bool = False) -> FactRecord:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0004"
    gids = [Gid(0, LOCAL, 1, "eth0"), Gid(1, LOCAL, 2, "eth0")]
    if not without_ipv4:
        gids += [Gid(2, mapped, 1, "eth0"), Gid(3, mapped, index_3, "eth0")]
    return node(node_name, hca("mlx5_0", replace(UP, link_layer="Ethernet", gids=gids)))


def gid_job(index: int | None = None) -> Job:
    return job(backend="nccl") if index is None else job(backend="nccl", env_NCCL_IB_GID_INDEX=str(index))


def test_a_usable_gid_everywhere() -> None:
    seen = facts(*(roce(f"node{i}") for i in range(3)))
    assert statuses(judge(gid_unusable, gid_job(3), fleet(3), seen)) == {"pass"}
    assert statuses(judge(gid_unusable, gid_job(), fleet(3), seen)) == {"pass"}


@pytest.mark.parametrize("index", [3, None])
def test_a_gid_that_is_missing_on_one_node(index: int | None) -> None:
    seen = facts(roce("node0"), roce("node1", without_ipv4=True), roce("node2"))
    found = one(judge(gid_unusable, gid_job(index), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "dev eth0" in found.remedy


@pytest.mark.parametrize(("index", "what"), [(1, "link-local"), (2, "RoCE v1"), (9, "an empty entry")])
def test_an_unusable_gid_everywhere(index: int, what: str) -> None:
    seen = facts(*(roce(f"node{i}") for i in range(3)))
    found = one(judge(gid_unusable, gid_job(index), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2") and what in found.message
    assert found.severity is None and "NCCL_IB_GID_INDEX=3" in found.remedy


def test_one_index_with_different_gids() -> None:
    seen = facts(roce("node0"), roce("node1", index_3=1), roce("node2"))
    found = one(judge(gid_unusable, gid_job(3), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "RoCE v1" in found.message and found.severity is None


def test_equal_storage_cards_are_at_most_a_warning() -> None:
    seen = facts(*(roce(f"node{i}", without_ipv4=True) for i in range(3)))
    assert one(judge(gid_unusable, gid_job(), fleet(3), seen), Status.FAIL).severity is Severity.WARNING


def test_nccls_choice_of_a_gid() -> None:
    v6 = Gid(4, "2001:0db8:0000:0000:0000:0000:0000:0001", 2)
    v4 = [Gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0004", 1), Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0004", 2)]
    assert automatic_gid([Gid(0, LOCAL, 1), *v4, v6]) == v4[1]
    assert automatic_gid([Gid(0, LOCAL, 1), *v4, v6], "IPv6") == v6
    assert automatic_gid([Gid(0, LOCAL, 1), *v4], version=1) == v4[0]
    assert automatic_gid([Gid(0, LOCAL, 1)]) == Gid(0, LOCAL, 1) and automatic_gid([]) is None


def opened(name: str, value: RdmaAccess) -> FactRecord:
    return fact(rdma_access, name, value)


GOOD = RdmaAccess(["uverbs0", "uverbs1"])


@pytest.mark.parametrize(
    ("access", "word"),
    [
        (RdmaAccess(), "no device node"),
        (
            RdmaAccess(["uverbs0", "uverbs1"], {"uverbs0": "Permission denied", "uverbs1": "Permission denied"}),
            "denied",
        ),
        (RdmaAccess(["uverbs0"]), "1 device nodes for 2 cards"),
        (RdmaAccess(["uverbs0", "uverbs1"], {}, "no such file"), "libibverbs"),
    ],
)
def test_devices_that_ranks_may_not_open(access: RdmaAccess, word: str) -> None:
    some = [opened(f"node{i}", access if i == 2 else GOOD) for i in range(4)]
    found = one(judge(rdma_closed_to_ranks, NCCL, fleet(), facts(*four_nodes(), *some)), Status.FAIL)
    assert found.nodes == ("node2",) and word in found.message and found.severity is None
    everywhere = [opened(f"node{i}", access) for i in range(4)]
    found = one(judge(rdma_closed_to_ranks, NCCL, fleet(), facts(*four_nodes(), *everywhere)), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_ranks_may_open_all_devices() -> None:
    every = [opened(f"node{i}", GOOD) for i in range(4)]
    assert statuses(judge(rdma_closed_to_ranks, NCCL, fleet(), facts(*four_nodes(), *every))) == {"pass"}
    blind = [fact(rdma_access, f"node{i}", TIMEOUT) for i in range(4)]
    assert statuses(judge(rdma_closed_to_ranks, NCCL, fleet(), facts(*four_nodes(), *blind))) == {"unknown"}
    bare = [node(f"node{i}") for i in range(4)]
    assert statuses(judge(rdma_closed_to_ranks, NCCL, fleet(), facts(*bare, *every))) == {"not-applicable"}
    assert {request.context for request in plan(rdma_closed_to_ranks, NCCL, fleet(1))} == set()
    assert {request.context for request in plan(rdma_closed_to_ranks, NCCL, fleet(2))} == {True, False}


PEER = GpuDirect("535.183.01", False, "/sys/module/nvidia_peermem/version", "5.15.0-105-generic")
NONE = replace(PEER, peer_memory="")


def test_gpudirect_on_only_some_nodes() -> None:
    some = [fact(gpudirect, f"node{i}", NONE if i == 1 else PEER) for i in range(4)]
    found = one(judge(gpudirect_missing, NCCL, fleet(), facts(*four_nodes(), *some)), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "modprobe nvidia_peermem" in found.remedy
    none = [fact(gpudirect, f"node{i}", NONE) for i in range(4)]
    assert (
        one(judge(gpudirect_missing, NCCL, fleet(), facts(*four_nodes(), *none)), Status.FAIL).severity
        is Severity.WARNING
    )


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (replace(NONE, open_modules=True, driver="570.86.15"), "pass"),
        (replace(NONE, open_modules=True, driver="570.86.15", kernel="5.4.0-170-generic"), "fail"),
        (replace(NONE, open_modules=True, driver="510.47.03"), "fail"),
        (GpuDirect("", False, "", "6.1.0"), "not-applicable"),
    ],
)
def test_dma_buf_replaces_the_module(value: GpuDirect, status: str) -> None:
    every = [fact(gpudirect, f"node{i}", value) for i in range(4)]
    assert statuses(judge(gpudirect_missing, NCCL, fleet(), facts(*four_nodes(), *every))) == {status}


METAL = Pci(["01:00.0", "02:00.0"], ["03:00.0"], ["00:01.0", "00:02.0"], [], [], ["identity"], False)


@pytest.mark.parametrize(
    ("value", "acs", "iommu"),
    [
        (METAL, "pass", "pass"),
        (replace(METAL, redirecting=["00:01.0"]), "fail", "pass"),
        (replace(METAL, unreadable=["00:01.0"]), "unknown", "pass"),
        (replace(METAL, iommu=["DMA-FQ"], kernel_options=["intel_iommu=on"]), "pass", "fail"),
        (replace(METAL, redirecting=["00:01.0"], iommu=["DMA"], virtual=True), "not-applicable", "not-applicable"),
        (replace(METAL, gpus=[], redirecting=["00:01.0"]), "not-applicable", "not-applicable"),
        (replace(METAL, iommu=[]), "pass", "pass"),
    ],
)
def test_bridges_and_iommu(value: Pci, acs: str, iommu: str) -> None:
    seen = facts(fact(pci, "node0", value))
    assert statuses(judge(acs_redirects, NCCL, fleet(1), seen)) == {acs}
    assert statuses(judge(iommu_translates, NCCL, fleet(1), seen)) == {iommu}


def test_locked_memory_is_requested_if_ucx_uses_rdma() -> None:
    assert plan(memlock_limited, job(env_UCX_TLS="rc"), fleet(2)) and not plan(memlock_limited, job(), fleet(2))
    low = Limits(1024, 1024, 65536, rdma_devices=["mlx5_0"])
    seen = facts(*(fact(limits, f"node{i}", low) for i in range(2)))
    assert one(judge(memlock_limited, job(env_UCX_TLS="rc"), fleet(2), seen), Status.FAIL).severity is None


# RDMA filters that leave the GPUs of one socket without a card of their own.


NUMA_UP = RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")
NUMA_DOWN = RdmaPort(1, "DOWN", "Polling", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")
GPUS = {f"0000:{index}0:00.0": index // 4 for index in range(8)}
CARDS = {f"0000:{index}a:00.0": index // 2 for index in range(4)}


def numa_node(name: str, *, last: RdmaPort = NUMA_UP, numa: dict[str, int] | None = None) -> list[FactRecord]:
    """Eight GPUs and four cards on two sockets; the last two cards are on the second."""
    places = {**GPUS, **CARDS} if numa is None else numa
    devices = [
        RdmaDevice(f"mlx5_{index}", "mlx5_core", pci=address, ports=[NUMA_UP if index < 2 else last])
        for index, address in enumerate(CARDS)
    ]
    return [fact(pci, name, Pci(list(GPUS), list(CARDS), numa=places)), fact(rdma, name, RdmaDevices(devices))]


def verdicts(*records: FactRecord, **named: Any) -> list[Verdict]:
    return judge(hca_far, job(backend="nccl", **named), fleet(2), facts(*records))


def test_a_filter_of_one_socket_is_named_with_the_idle_cards() -> None:
    found = one(verdicts(*numa_node("node0"), env_NCCL_IB_HCA="mlx5_0,mlx5_1"), Status.FAIL)
    assert "with NCCL_IB_HCA=mlx5_0,mlx5_1, 4 GPUs of node0 on memory node 1" in found.message
    assert "mlx5_2, mlx5_3 are active there" in found.message and found.nodes == ("node0",)
    assert found.locations and "Add mlx5_2, mlx5_3 to NCCL_IB_HCA" in found.remedy


def test_a_filter_with_a_card_on_each_socket_passes() -> None:
    for value in ("mlx5_0,mlx5_2", "mlx5", "^mlx5_3"):
        assert one(verdicts(*numa_node("node0"), env_NCCL_IB_HCA=value), Status.PASS)


def test_a_socket_without_an_active_card_is_not_the_filters_fault() -> None:
    assert one(verdicts(*numa_node("node0", last=NUMA_DOWN), env_NCCL_IB_HCA="mlx5_0,mlx5_1"), Status.PASS)


def test_without_a_filter_nothing_is_judged() -> None:
    assert statuses(verdicts(*numa_node("node0"))) == {"not-applicable"}


def test_without_memory_nodes_it_is_unknown() -> None:
    for numa in ({}, {**dict.fromkeys(GPUS, -1), **CARDS}):
        found = one(verdicts(*numa_node("node0", numa=numa), env_NCCL_IB_HCA="mlx5_0"), Status.UNKNOWN)
        assert "names no memory node for its GPUs" in found.message


# RDMA writes compared with the rate of the slower port: who is blamed, and what stays unknown.


WRITES_NCCL = job(backend="nccl", master_addr="node0", master_port=29500)
WRITES_UP = RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")


def hcas(node: str, *ports: RdmaPort) -> FactRecord:
    listed = [
        RdmaDevice(f"mlx5_{index}", "mlx5_core", pci=f"0000:{index}a:00.0", ports=[port])
        for index, port in enumerate(ports or (WRITES_UP, WRITES_UP))
    ]
    return fact(rdma, node, RdmaDevices(listed))


def speeds(node: str, peer: str, *rates: float | None, problem: str = "", left_out: int = 0) -> FactRecord:
    rails = [
        RailSpeed(f"mlx5_{index}", 1, f"mlx5_{index}", 1, rate, 1.1 if rate else None, "" if rate else problem)
        for index, rate in enumerate(rates)
    ]
    value = RdmaSpeeds(peer, "10.0.0.2", rails, left_out)
    return fact(rdma_speed, node, value, params={"peer": peer}, peers=(peer,), required=False)


def writes_verdicts(*records: FactRecord, count: int = 4) -> list[Verdict]:
    every = [hcas(f"node{index}") for index in range(count)]
    return judge(rdma_writes_slow, WRITES_NCCL, fleet(count), facts(*every, *records))


def ring(slow: Sequence[tuple[str, str]] = (), usual: float = 390.0, low: float = 41.0) -> list[FactRecord]:
    """Four nodes in a ring; on the first rail the named pairs are slow."""
    pairs = [("node0", "node1"), ("node1", "node2"), ("node2", "node3"), ("node3", "node0")]
    return [speeds(a, b, low if (a, b) in slow else usual, usual) for a, b in pairs]


def test_fast_rails_pass_with_rates_and_latency() -> None:
    found = one(writes_verdicts(*ring()), Status.PASS)
    assert "RDMA writes over 8 pairs of ports: 390 Gbit/s to 390 Gbit/s, 1.1 to 1.1 us" in found.subject


def test_a_port_that_is_slow_with_both_partners_is_named_alone() -> None:
    found = one(writes_verdicts(*ring([("node0", "node1"), ("node1", "node2")])), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity in (None, Severity.WARNING)
    assert "node1 mlx5_0:1 with every partner" in found.message
    assert "reach 41 Gbit/s; the slower port reports 400 Gbit/s, expected at least 300 Gbit/s" in found.message
    assert "2 of 8 pairs" in found.message and "ib_write_bw -d mlx5_0" in str(found.evidence[0])


def test_one_slow_pair_names_both_ends() -> None:
    found = one(writes_verdicts(*ring([("node2", "node3")])), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_all_equally_slow_is_found() -> None:
    found = one(writes_verdicts(*ring(usual=40.0, low=40.0)), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2", "node3") and "all pairs of ports" in found.message


def test_the_slower_port_is_the_measure() -> None:
    slower = replace(WRITES_UP, rate_gbps=100.0, rate_text="100 Gb/sec (4X EDR)")
    records = facts(hcas("node0"), hcas("node1", slower, slower), speeds("node0", "node1", 97.0, 96.0))
    assert statuses(judge(rdma_writes_slow, WRITES_NCCL, fleet(2), records)) == {"pass"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (speeds("node0", "node1", None, None, problem="the peer: `ib_write_bw` was not found"), "was not found"),
        (speeds("node0", "node1", 390.0, left_out=3), "no time left for 3 pairs of ports"),
        (
            fact(rdma_speed, "node0", Unavailable("missing", "`ib_write_bw` was not found"), peers=("node1",)),
            "`ib_write_bw` was not found",
        ),
    ],
)
def test_what_was_not_measured_is_unknown(record: FactRecord, reason: str) -> None:
    found = [item for item in writes_verdicts(record) if item.status is Status.UNKNOWN]
    assert found and reason in found[0].message and not found[0].required


def test_ports_without_a_rate_are_unknown() -> None:
    blank = replace(WRITES_UP, rate_gbps=None, rate_text="")
    records = facts(hcas("node0", blank), hcas("node1", blank), speeds("node0", "node1", 4.0))
    found = one(judge(rdma_writes_slow, WRITES_NCCL, fleet(2), records), Status.UNKNOWN)
    assert "the rate of a port is unknown" in found.message


def test_evidence_names_the_memory_node_of_the_card() -> None:
    place = fact(pci, "node1", Pci(["0000:10:00.0"], ["0000:0a:00.0"], numa={"0000:0a:00.0": 1}))
    found = one(writes_verdicts(*ring([("node0", "node1")]), place), Status.FAIL)
    assert "mlx5_0:1 of node1 is on memory node 1" in found.evidence[0].observed


def test_without_rdma_or_ports_it_is_not_applicable() -> None:
    assert statuses(judge(rdma_writes_slow, job(backend="gloo"), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(rdma_writes_slow, WRITES_NCCL, fleet(2), facts())) == {"not-applicable"}


def test_each_pair_is_asked_for_its_ports_of_one_kind() -> None:
    def card(number: int) -> FactRecord:
        have = Interface("eth0", True, True, False, [Address(f"10.0.0.{number}", 24)], 1500, 25000, "physical")
        return fact(interfaces, f"node{number}", Interfaces([have]))

    roce = replace(
        WRITES_UP, link_layer="Ethernet", gids=[Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", 2, "eth0")]
    )
    seen = facts(*(card(number) for number in range(3)), hcas("node0"), hcas("node1"), hcas("node2", roce, WRITES_UP))
    asked = [r for r in plan_rdma_speed(WRITES_NCCL, fleet(3), seen) if r.probe.endswith("rdma_speed")]
    rails = {(r.node, *r.peers): r.params["rails"] for r in asked}
    for (a, b), found in rails.items():
        devices = {rail[0] for rail in found}
        assert devices == ({"mlx5_1"} if "node2" in (a, b) else {"mlx5_0", "mlx5_1"})
    assert len(rails) >= 2 and all(r.exclusive and r.listen for r in asked)
    assert not list(plan_rdma_speed(WRITES_NCCL, local_fleet(2), seen))
    assert not list(plan_rdma_speed(job(backend="gloo"), fleet(3), seen))
    both = facts(*(card(number) for number in range(2)), hcas("node0", roce), hcas("node1", roce))
    (request,) = (r for r in plan_rdma_speed(WRITES_NCCL, fleet(2), both) if r.probe.endswith("rdma_speed"))
    assert request.params["rails"] == [["mlx5_0", 1, 3, "mlx5_0", 1, 3]]
