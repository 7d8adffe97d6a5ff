"""Bus bandwidth compared with the links between nodes; not judged on busy hosts or without measurements."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import InputFile, Job
from preflight.model.recording import FactRecord, Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.copies import Copies, Copy, copies
from preflight_checks.probes.folders import Entry, PathState, path_state
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.limits import Cgroups, Limits, limits
from preflight_checks.probes.link_quality import Direction, Quality, measure
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.smoke.collective_speed import collectives_below_fabric, collectives_slow, straggler, unequal_work
from preflight_checks.smoke.gpu_floors import gpu_copies_slow, gpu_slow, gpu_wrong
from preflight_checks.smoke.plan import plan_smoke
from reference_trainer.collective.bandwidth import CollectiveTiming, Sweep, Window, bus_bandwidth, partner_of
from reference_trainer.collective.gpu_speed import ExactCompute, GpuReport, Speed, WrongProduct
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.framework import GpuState, OtherUse
from reference_trainer.common.messages import OPERATIONS
from reference_trainer.common.used_transport import NcclConnections, Transport
from tests.checks.check_builders import LAUNCH, claim, fact, facts, fleet, job, judge, local_fleet, one, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
#: 16 MiB in 30 ms is 0.56 GB/s of two ranks, 4.5 Gbit/s.
LARGE = 1 << 24


def timed(operation: str, message_bytes: int, seconds: float, world_size: int) -> CollectiveTiming:
    return CollectiveTiming(
        operation, message_bytes, [seconds] * 3, bus_bandwidth(operation, message_bytes, seconds, world_size)
    )


def sweep(seconds: float = 0.03, world_size: int = 2, **changes: Any) -> Sweep:
    small = [timed(name, 4096, 0.0002, world_size) for name in OPERATIONS]
    large = [timed(name, LARGE, seconds, world_size) for name in OPERATIONS]
    return replace(Sweep([*small, *large], cores=8, local_ranks=1, load=0.4, waited=0.01), **changes)


def run_records(*sweeps: Sweep, backend: str = "gloo", nodes: tuple[str, ...] = ("node0", "node1")) -> list[FactRecord]:
    records = []
    for number, (node, measured) in enumerate(zip(nodes, sweeps, strict=True)):
        report = RankReport(number, len(sweeps), node, backend, "cpu", "2.13.0", sweep=measured)
        params = {"rank": number, "world_size": len(sweeps)}
        request = Request(probe_name(rank), node, params, context=True, group="smoke train")
        records.append(FactRecord(request, asdict(report)))
    return records


def link(mbps: float, a: str = "node0", b: str = "node1") -> FactRecord:
    way = Direction(mbps, mbps, 500, 500, 0, 0, 5000, 1472, 3, 0.02)
    base = Quality(b, "10.0.0.2", "10.0.0.1", 5e-5, 6e-5, 1e-4, 1e-5, 200, 0)
    return fact(measure, a, replace(base, out=way, back=way), params={"peer": b, "try": 1}, peers=(b,))


def verdict_on(*records: FactRecord, nodes: Fleet | None = None) -> Verdict:
    (verdict,) = judge(collectives_slow, job(**JOB), nodes or fleet(2), facts(*records))
    return verdict


def test_collectives_as_fast_as_the_links_pass_with_numbers() -> None:
    verdict = verdict_on(*run_records(sweep(), sweep()), link(9400.0))
    assert verdict.status is Status.PASS
    assert "all_reduce 0.559 GB/s" in verdict.subject and "at 16 MiB" in verdict.subject
    assert "all_to_all 200 us" in verdict.subject and "at 4 KiB" in verdict.subject
    assert "2 ranks over gloo" in verdict.subject and "carried 9.4 Gbit/s" in verdict.subject


def test_the_slowest_rank_counts() -> None:
    verdict = verdict_on(*run_records(sweep(), sweep(0.05)), link(9400.0))
    assert "all_reduce 0.336 GB/s" in verdict.subject


def test_an_all_reduce_far_below_the_slowest_link_is_a_finding() -> None:
    verdict = verdict_on(*run_records(sweep(0.6), sweep(0.6)), link(9400.0))
    assert verdict.status is Status.FAIL and verdict.nodes == ("node0", "node1")
    assert "moves only 224 Mbit/s" in verdict.message and "carried 9.4 Gbit/s" in verdict.message
    assert "expected at least 2.35 Gbit/s" in verdict.message
    assert collectives_slow.meta.severity is Severity.WARNING


def test_slow_links_excuse_slow_collectives() -> None:
    assert verdict_on(*run_records(sweep(0.6), sweep(0.6)), link(300.0)).status is Status.PASS


def test_more_ranks_than_cores_and_busy_hosts_are_inconclusive() -> None:
    crowded = sweep(0.6, cores=2, local_ranks=4)
    verdict = verdict_on(*run_records(crowded, sweep(0.6)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and not verdict.required
    assert "host busy: 4 ranks on 2 cores of node0" in verdict.message and "all_reduce" in verdict.message
    verdict = verdict_on(*run_records(sweep(0.6, waited=0.5), sweep(0.6, waited=0.6)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and "half of the ranks waited for a processor 55%" in verdict.message


def test_a_quota_leaves_fewer_cores_than_the_mask() -> None:
    value = Limits(1024, 1024, None, usable_cpus=list(range(8)), cgroup=Cgroups(cpu_quota_cores=1.5))
    held = fact(limits, "node1", value, context=True)
    verdict = verdict_on(held, *run_records(sweep(0.6, local_ranks=2), sweep(0.6, local_ranks=2)), link(9400.0))
    assert verdict.status is Status.UNKNOWN and "2 ranks on 1.5 cores of node1" in verdict.message


def test_without_links_the_numbers_are_not_judged() -> None:
    for verdict in (
        verdict_on(*run_records(sweep(0.6), sweep(0.6))),
        verdict_on(*run_records(sweep(0.6), sweep(0.6), nodes=("local0", "local1")), nodes=local_fleet(2)),
    ):
        assert verdict.status is Status.PASS and verdict.subject.startswith("bus bandwidth, for information")


def test_a_group_too_large_for_the_message_is_not_judged() -> None:
    count = 128
    names = tuple(f"node{number}" for number in range(count))
    several = [sweep(0.6, count) for _ in range(count)]
    verdict = verdict_on(*run_records(*several, nodes=names), link(9400.0), nodes=fleet(count))
    assert verdict.status is Status.PASS and "for information" in verdict.subject


def test_skipped_collectives_are_listed() -> None:
    lacking = sweep(unsupported=["reduce_scatter"], skipped="an all-reduce of 1048576 bytes took 2.0 s")
    verdict = verdict_on(*run_records(lacking, lacking))
    assert "gloo has no reduce_scatter" in verdict.subject and "took 2.0 s" in verdict.subject


def test_one_rank_and_no_run_have_no_bandwidth() -> None:
    alone = judge(
        collectives_slow,
        job(**JOB),
        fleet(1),
        facts(*run_records(Sweep(skipped="one rank alone sends nothing"), nodes=("node0",))),
    )
    assert "one rank alone" in one(alone, Status.NOT_APPLICABLE).message
    assert one(judge(collectives_slow, job(**JOB), fleet(2), facts()), Status.UNKNOWN).message.startswith("blocked by")


# All-reduce over NCCL compared with NVSwitch in a node and with the ports between nodes.


FABRIC_JOB = job(backend="nccl", master_addr="node0", master_port=29500)
FABRIC_LARGE = 1 << 28
OVER_IB = NcclConnections("2.28.9", "IB", [f"mlx5_{index}:1" for index in range(8)], {"NET/IB": 16}, True)
OVER_SOCKETS = NcclConnections("2.28.9", "Socket", ["eth0"], {"NET/Socket": 4}, False)
WITHIN = NcclConnections("2.28.9", "", [], {"P2P/CUMEM": 16}, None)


def fabric_run_records(
    gbps: float,
    *,
    nodes: int,
    local: int,
    nccl: NcclConnections,
    links: int | None = 18,
    message: int = FABRIC_LARGE,
    model: str = "NVIDIA H200",
    backend: str = "nccl",
    shared: bool = False,
) -> list[FactRecord]:
    """Ranks whose all-reduce reached this many GB/s."""
    records = []
    for number in range(nodes * local):
        node = f"node{number // local}"
        place = 0 if shared else number % local
        gpu = GpuReport(model, f"0000:{place:02x}:00.0", switch_links=links)
        sweep = Sweep([CollectiveTiming("all_reduce", message, [0.001] * 3, gbps * 1e9)], cores=8)
        device = f"cuda:{place} {model}"
        report = RankReport(number, nodes * local, node, backend, device, "torch 2.11", transport=Transport(nccl))
        report = replace(report, sweep=sweep, gpu=gpu)
        params = {"rank": number, "world_size": nodes * local}
        request = Request(probe_name(rank), node, params, context=True, group="smoke train")
        records.append(FactRecord(request, asdict(report)))
    return records


def hcas(node: str, rate: float | None = 400.0, count: int = 8) -> FactRecord:
    ports = [RdmaPort(1, "ACTIVE", "LinkUp", rate, f"{rate} Gb/sec", "InfiniBand")]
    return fact(
        rdma, node, RdmaDevices([RdmaDevice(f"mlx5_{index}", "mlx5_core", ports=ports) for index in range(count)])
    )


def card(node: str, speed: int | None, kind: str = "physical") -> FactRecord:
    have = [Interface("eth0", True, True, False, [Address("10.0.0.1", 24)], 1500, speed, kind)]
    return fact(interfaces, node, Interfaces(have))


def verdicts(records: Sequence[FactRecord], *more: FactRecord, nodes: int) -> list[Verdict]:
    return judge(collectives_below_fabric, FABRIC_JOB, fleet(nodes), facts(*more, *records))


def in_node(gbps: float, **more: Any) -> list[Verdict]:
    return verdicts(fabric_run_records(gbps, nodes=1, local=8, nccl=WITHIN, **more), nodes=1)


def test_a_healthy_node_passes_and_a_slow_one_is_a_finding() -> None:
    assert "moves 300 GB/s over NVSwitch, peak 450 GB/s" in one(in_node(300.0), Status.PASS).subject
    found = one(in_node(12.0), Status.FAIL)
    assert "moves 12 GB/s over NVSwitch, but node0 GPU 0 (0000:00:00.0) (18 links) can carry 450 GB/s" in found.message
    assert "expected at least 112 GB/s (25%)" in found.message
    assert collectives_below_fabric.meta.severity is Severity.WARNING


@pytest.mark.parametrize("more", [{"links": 0}, {"links": None}, {"model": "NVIDIA Quantum 9"}, {"shared": True}])
def test_a_node_without_a_known_nvswitch_is_unknown(more: dict[str, Any]) -> None:
    assert one(in_node(12.0, **more), Status.UNKNOWN)


def test_all_nodes_alike_far_below_their_ports_are_found() -> None:
    ports = [hcas("node0"), hcas("node1")]
    slow = verdicts(fabric_run_records(9.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    found = one(slow, Status.FAIL)
    assert "moves 9 GB/s over 8 RDMA ports of 400 Gbit/s, but node0 can carry 400 GB/s" in found.message
    assert found.nodes == ("node0", "node1") and "NET/IB" in found.evidence[0].observed
    good = verdicts(fabric_run_records(300.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    assert statuses(good) == {"pass"}


def test_one_rank_a_node_is_measured_by_one_port() -> None:
    ports = [hcas("node0"), hcas("node1")]
    assert statuses(verdicts(fabric_run_records(35.0, nodes=2, local=1, nccl=OVER_IB), *ports, nodes=2)) == {"pass"}
    assert statuses(verdicts(fabric_run_records(4.0, nodes=2, local=1, nccl=OVER_IB), *ports, nodes=2)) == {"fail"}


def test_the_weakest_node_decides() -> None:
    ports = [hcas("node0"), hcas("node1", 100.0)]
    found = verdicts(fabric_run_records(22.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    assert "100 Gbit/s" in one(found, Status.PASS).subject


def test_ports_without_a_rate_are_unknown() -> None:
    for ports in ([], [hcas("node0", None), hcas("node1", None)], [hcas("node0")]):
        found = verdicts(fabric_run_records(1.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
        assert "the rate of the ports" in one(found, Status.UNKNOWN).message


def test_sockets_are_measured_by_the_speed_of_their_card() -> None:
    records = fabric_run_records(0.1, nodes=2, local=1, nccl=OVER_SOCKETS)
    cards = [card("node0", 25000), card("node1", 25000)]
    found = one(verdicts(records, *cards, nodes=2), Status.FAIL)
    assert "moves 0.1 GB/s over sockets on eth0, but node0 can carry 3.125 GB/s" in found.message
    fast = fabric_run_records(2.0, nodes=2, local=1, nccl=OVER_SOCKETS)
    assert statuses(verdicts(fast, *cards, nodes=2)) == {"pass"}
    # No socket of NCCL fills a card of 400 Gbit/s.
    assert statuses(verdicts(fast, card("node0", 400000), card("node1", 400000), nodes=2)) == {"pass"}


def test_virtual_cards_are_unknown() -> None:
    records = fabric_run_records(0.1, nodes=2, local=1, nccl=OVER_SOCKETS)
    for cards in ([card("node0", 10000, "veth"), card("node1", 10000, "veth")], [card("node0", None)]):
        assert "report no speed" in one(verdicts(records, *cards, nodes=2), Status.UNKNOWN).message


def test_small_messages_and_gloo_are_not_applicable() -> None:
    for more in ({"message": 4096}, {"backend": "gloo"}):
        assert statuses(in_node(1.0, **more)) == {"not-applicable"}


# GPUs compared with what their model reaches, by measurements of a real card, and products with known bits.


GPU_JOB = job(backend="nccl", master_addr="node0", master_port=29500)
#: Documents of `benchmarks/gpu_floors.py` on an H200 and an H100, 2026-11-26, driver 580.159.04, torch 2.11.0+cu130.
CARDS = ("h200", "h100")
RECORDED = {
    card: [json.loads(line) for line in (Path(__file__).parent / "gpus" / f"{card}.jsonl").read_text().splitlines()]
    for card in CARDS
}


def recorded(name: str, number: int = 0, card: str = "h200") -> dict[str, Any]:
    """The report of a real measurement: `alone`, `busy` (beside a busy process), `full` (short of memory), or `flipped`
    (one element of each product was altered)."""
    found: dict[str, Any] = [item["report"] for item in RECORDED[card] if item["name"] == name][number]
    return found


def healthy() -> GpuReport:
    """The figures of the real card when it was alone."""
    data = recorded("alone")
    return GpuReport(
        data["model"],
        data["pci"],
        [Speed(**item) for item in data["speeds"]],
        state=GpuState(**data["state"]),
        before=OtherUse(0, 0),
        after=OtherUse(0, 0),
        exact=ExactCompute({"fp32": 40, "bf16": 40}, 1000),
    )


def slower(report: GpuReport, factor: float, *names: str, **state: Any) -> GpuReport:
    """The named figures multiplied by `factor`, and the state changed."""
    speeds = [
        replace(s, best=s.best * factor, median=s.median * factor) if s.what in names else s for s in report.speeds
    ]
    return replace(report, speeds=speeds, state=replace(report.state, **state))


def gpu_run_records(
    *reports: GpuReport | dict[str, Any] | None, device: str = "cuda:0 NVIDIA H200", one_card: bool = False
) -> list[FactRecord]:
    """The results of these ranks, each on a node and, unless `one_card` is set, on a card of its own."""
    records = []
    for number, gpu in enumerate(reports):
        report = RankReport(number, len(reports), f"node{number}", "nccl", device, "torch 2.11.0")
        value = asdict(report)
        value["gpu"] = asdict(gpu) if isinstance(gpu, GpuReport) else gpu
        if isinstance(gpu, GpuReport) and gpu.state.uuid and not one_card:
            value["gpu"]["state"]["uuid"] = f"GPU-{number}"
        params = {"rank": number, "world_size": len(reports)}
        request = Request(probe_name(rank), f"node{number}", params, context=True, group="smoke train")
        records.append(FactRecord(request, value))
    return records


def gpu_verdicts(check: Any, *reports: GpuReport | dict[str, Any] | None, **more: Any) -> list[Verdict]:
    return judge(check, GPU_JOB, fleet(len(reports)), facts(*gpu_run_records(*reports, **more)))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("number", range(3))
def test_a_real_healthy_card_passes_every_floor_with_a_margin(number: int, card: str) -> None:
    report = recorded("alone", number, card)
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert one(gpu_verdicts(check, report), Status.PASS)
    # A quarter less of everything passes, too.
    lower = {**report, "speeds": [{**item, "best": item["best"] * 0.75} for item in report["speeds"]]}
    for check in (gpu_slow, gpu_copies_slow):
        assert one(gpu_verdicts(check, lower), Status.PASS)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("number", range(2))
def test_a_real_card_in_use_is_unknown_and_the_reason_is_given(number: int, card: str) -> None:
    report = recorded("busy", number, card)
    found = one(gpu_verdicts(gpu_slow, report), Status.UNKNOWN)
    assert "the GPU was also used by 1 other process (99 % busy" in found.message
    assert "TFLOP/s in products in fp32" in found.message
    assert one(gpu_verdicts(gpu_copies_slow, report), Status.PASS)
    assert one(gpu_verdicts(gpu_wrong, report), Status.PASS)


@pytest.mark.parametrize("card", CARDS)
def test_a_real_card_short_of_memory_is_unknown(card: str) -> None:
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert (
            "68 MiB of memory are free" in one(gpu_verdicts(check, recorded("full", 0, card)), Status.UNKNOWN).message
        )


def test_an_altered_element_of_a_real_card_is_found() -> None:
    found = one(gpu_verdicts(gpu_wrong, recorded("flipped", 0, "h100")), Status.FAIL)
    assert "element (17, 4095) is -48042.0, expected exactly -48043.0; 1 of 16777216" in found.message
    assert "(also in tf32, " in found.message


def test_a_capped_card_is_named_with_its_figures_and_the_cap() -> None:
    capped = slower(
        healthy(), 0.5, "bf16", clock_mhz=1100, power_limit_w=350.0, power_w=349.0, reasons=4, held_reasons=4
    )
    found = one(gpu_verdicts(gpu_slow, healthy(), capped), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity in (None, Severity.WARNING)
    assert "node1 GPU 0 (0000:00:06.0), NVIDIA H200, reaches 344.1 TFLOP/s in products in bf16" in found.message
    assert "expected at least 494.5 (50% of the published 989)" in found.message
    assert "it ran at 1100 of 1980 MHz because its power is limited to 350 W of 700 W" in found.message
    assert "nvidia-smi -pl 700" in found.remedy and "nvidia.com" in found.evidence[0].expected


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"reasons": 0x40, "held_reasons": 0x40, "temperature_c": 92}, "because of heat at 92 °C"),
        ({"reasons": 0x80, "held_reasons": 0x80}, "because of the power brake"),
        ({"reasons": 0x2, "clock_application_mhz": 1200, "clock_mhz": 1200}, "application clocks are set to 1200 MHz"),
        ({"reasons": 0x8, "held_reasons": 0x8}, "because of a hardware slowdown"),
        ({"reasons": 0, "held_reasons": 0, "clock_mhz": 900}, "clocks may be locked"),
        ({"reasons": 0x4, "held_reasons": 0x4, "clock_mhz": 900}, "at its power limit of 700 W"),
        ({"reasons": 0, "held_reasons": 0}, "are normal"),
        ({"samples": 0, "problem": "NVML: not found"}, "its clocks are unknown (NVML: not found)"),
    ],
)
def test_the_cause_is_what_nvml_reported(state: dict[str, Any], cause: str) -> None:
    found = one(gpu_verdicts(gpu_slow, slower(healthy(), 0.4, "fp32", **state)), Status.FAIL)
    assert cause in found.message


def test_slow_memory_is_a_finding_of_its_own_figure() -> None:
    found = one(gpu_verdicts(gpu_slow, slower(healthy(), 0.3, "memory")), Status.FAIL)
    assert "1269 GB/s in copies within its memory, expected at least 2880" in found.message


def test_all_equally_slow_cards_are_one_finding() -> None:
    slow = slower(healthy(), 0.1, "bf16", "fp16")
    found = one(gpu_verdicts(gpu_slow, slow, slow, slow), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2") and "3 GPUs are that slow" in found.message


def test_an_unlisted_card_is_unknown_with_its_figures() -> None:
    for model in ("NVIDIA Quantum 9", "NVIDIA H200 MIG 1g.18gb"):
        found = one(gpu_verdicts(gpu_slow, replace(healthy(), model=model)), Status.UNKNOWN)
        assert model in found.message and "TFLOP/s in products in bf16" in found.message


def test_a_card_whose_other_use_is_unknown_is_not_blamed() -> None:
    slow = slower(healthy(), 0.3, "fp32")
    unseen = replace(slow, before=OtherUse(), after=OtherUse())
    assert "whether others used the GPU is unknown" in one(gpu_verdicts(gpu_slow, unseen), Status.UNKNOWN).message
    good = replace(healthy(), before=OtherUse(), after=OtherUse())
    assert statuses(gpu_verdicts(gpu_slow, good)) == {"pass"}


def test_ranks_that_share_a_card_are_not_blamed() -> None:
    slow = slower(healthy(), 0.4, "fp32")
    shared = replace(slow, shared_by=2, pci="", state=replace(slow.state, uuid=""))
    assert "2 ranks shared the GPU" in one(gpu_verdicts(gpu_slow, shared), Status.UNKNOWN).message
    # Two pods, or two names of this machine, that see the same card.
    pods = judge(gpu_slow, GPU_JOB, fleet(2), facts(*gpu_run_records(slow, slow, one_card=True)))
    assert "2 ranks shared the GPU" in one(pods, Status.UNKNOWN).message
    records = gpu_run_records(slow, slow, one_card=True)
    both = [replace(record, request=replace(record.request, node="node0")) for record in records]
    found = one(judge(gpu_slow, GPU_JOB, fleet(1), facts(*both)), Status.UNKNOWN)
    assert "2 ranks shared the GPU" in found.message
    # A rank that sees one device of eight does not share it.
    assert statuses(gpu_verdicts(gpu_slow, replace(slow, shared_by=8))) == {"fail"}


def test_a_downgraded_link_is_named_with_its_lanes() -> None:
    found = one(gpu_verdicts(gpu_copies_slow, slower(healthy(), 0.12, "host_to_device", pcie_width=2)), Status.FAIL)
    assert "PCIe generation 5 with 2 lanes, but the card and slot support generation 5 with 16 lanes" in found.message
    assert "6.656 GB/s in copies from the host, expected at least 31.5" in found.message


def test_a_slot_that_supports_less_lowers_the_floor() -> None:
    older = slower(healthy(), 0.45, "host_to_device", "device_to_host", pcie_generation=4, pcie_generation_max=4)
    assert statuses(gpu_verdicts(gpu_copies_slow, older)) == {"pass"}


def test_without_nvml_a_low_copy_is_unknown_and_a_high_one_passes() -> None:
    blind = {"pcie_generation": None, "pcie_generation_max": None, "pcie_width": None, "pcie_width_max": None}
    found = one(gpu_verdicts(gpu_copies_slow, slower(healthy(), 0.4, "host_to_device", **blind)), Status.UNKNOWN)
    assert "NVML does not show what the card and slot support" in found.message
    assert statuses(gpu_verdicts(gpu_copies_slow, slower(healthy(), 1.0, **blind))) == {"pass"}


def test_copies_to_a_peer_are_judged_by_the_links_that_are_up() -> None:
    def with_peer(rate: float, links: int | None) -> GpuReport:
        base = healthy()
        return replace(base, speeds=[*base.speeds, Speed("peer", rate, rate, 1 << 27, 9)], peer="0:7", peer_links=links)

    assert statuses(gpu_verdicts(gpu_copies_slow, with_peer(380.0, 18))) == {"pass"}
    found = one(gpu_verdicts(gpu_copies_slow, with_peer(45.0, 18)), Status.FAIL)
    assert "45 GB/s in copies to the next GPU, expected at least 225" in found.message
    assert "18 NVLinks are up" in found.message
    for links in (0, None):
        assert statuses(gpu_verdicts(gpu_copies_slow, with_peer(20.0, links))) == {"pass"}


def test_a_missing_figure_is_unknown() -> None:
    base = healthy()
    part = replace(base, speeds=[s for s in base.speeds if s.what != "fp8"], notes={"fp8": "there was no time left"})
    assert "products in fp8: there was no time left" in one(gpu_verdicts(gpu_slow, part), Status.UNKNOWN).message


def test_one_wrong_bit_names_the_card_and_the_repetition() -> None:
    wrong = WrongProduct("bf16", 7, 17, 4000, "1296.0", "1288.0", "0x1", 1, 16777216)
    odd = replace(healthy(), exact=ExactCompute({"fp32": 40, "bf16": 40}, 1000, [wrong]))
    found = gpu_verdicts(gpu_wrong, healthy(), odd)
    assert statuses(found) == {"pass", "fail"}
    (fault,) = (item for item in found if item.status is Status.FAIL)
    assert fault.nodes == ("node1",) and gpu_wrong.meta.severity is Severity.ERROR
    assert (
        "in repetition 7 of 40 of a matrix product in bf16, element (17, 4000) is 1296.0, expected exactly 1288.0"
        in (fault.message)
    )
    assert "1 of 16777216 elements are wrong" in fault.message


def test_a_busy_card_with_wrong_bits_is_still_wrong() -> None:
    wrong = WrongProduct("fp32", 1, 0, 0, "nan", "3.0", "0x7fc00000", 5, 100)
    busy = replace(healthy(), exact=ExactCompute({"fp32": 3}, 300, [wrong]), before=OtherUse(99, 1))
    assert one(gpu_verdicts(gpu_wrong, busy), Status.FAIL)


def test_a_precision_that_could_not_run_is_unknown() -> None:
    partial = replace(healthy(), exact=ExactCompute({"fp32": 40}, 1000, [], {"bf16": "CUBLAS_STATUS_NOT_SUPPORTED"}))
    assert "bf16: CUBLAS_STATUS_NOT_SUPPORTED" in one(gpu_verdicts(gpu_wrong, partial), Status.UNKNOWN).message


def test_processors_and_older_recordings_are_not_applicable() -> None:
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert statuses(gpu_verdicts(check, GpuReport(skipped="the rank computes on the processor"), device="cpu")) == {
            "not-applicable"
        }
        assert statuses(gpu_verdicts(check, None)) == {"not-applicable"}


# The ranks of nodes with GPUs: all get one backend, and NCCL only the interface that a filter selects.


TORCH = Packages("3.11", "/usr/bin/python3", torch=Framework("2.9.0", "12.8"))


def node(name: str, *, cards: int) -> list[Any]:
    """The facts of a node with torch for CUDA, so many GPUs and two interfaces."""
    number = int(name[-1]) + 1
    eth = [Interface(f"eth{i}", True, True, False, [Address(f"10.{i}.0.{number}", 24)]) for i in (0, 1)]
    return [
        fact(gpus, name, Gpus(gpus=[Gpu(index) for index in range(cards)])),
        fact(packages, name, TORCH),
        fact(interfaces, name, Interfaces(eth)),
    ]


def planned(asked: Job, *cards: int) -> list[Mapping[str, Any]]:
    """The parameters of the ranks on nodes with so many GPUs."""
    records = [record for index, count in enumerate(cards) for record in node(f"node{index}", cards=count)]
    return [request.params for request in plan_smoke(asked, fleet(len(cards)), Facts(tuple(records)))]


@pytest.mark.parametrize("cards", [(1, 1), (0, 0), (1, 0), (0, 8)])
def test_a_job_that_asks_for_nccl_gets_it_on_every_node(cards: tuple[int, ...]) -> None:
    assert {params["backend"] for params in planned(job(nodes=2, backend="nccl"), *cards)} == {"nccl"}


@pytest.mark.parametrize(("cards", "backend"), [((1, 1), "nccl"), ((0, 0), "gloo"), ((1, 0), "gloo"), ((0, 8), "gloo")])
def test_all_ranks_get_the_same_backend_where_the_job_names_none(cards: tuple[int, ...], backend: str) -> None:
    assert {params["backend"] for params in planned(job(nodes=2), *cards)} == {backend}


def test_only_an_interface_of_the_jobs_filter_is_marked_as_such() -> None:
    filtered = planned(job(nodes=2, backend="nccl", env_NCCL_SOCKET_IFNAME="eth1"), 1, 1)
    assert [(params.get("interface"), params.get("filtered")) for params in filtered] == [("eth1", True)] * 2
    assert not any("filtered" in params for params in planned(job(nodes=2, backend="nccl"), 1, 1))


@pytest.mark.parametrize(
    ("vendor", "framework", "ranks"),
    [
        ("nvidia", Framework("2.9.0", "12.8"), 4),
        ("amd", Framework("2.9.0+rocm6.4", hip="6.4.43482"), 4),
        ("amd", Framework("2.9.0", "12.8"), 1),
        ("nvidia", Framework("2.9.0+rocm6.4", hip="6.4.43482"), 1),
        ("nvidia", Framework("2.9.0+cpu"), 1),
    ],
)
def test_ranks_use_the_gpus_for_which_torch_was_built(vendor: str, framework: Framework, ranks: int) -> None:
    records = (
        fact(gpus, "node0", Gpus(gpus=[Gpu(index) for index in range(8)], vendor=vendor)),
        fact(packages, "node0", Packages("3.11", "/usr/bin/python3", torch=framework)),
    )
    asked = job(nodes=1, processes_per_node=4, backend="nccl")
    assert len(list(plan_smoke(asked, fleet(1), Facts(records)))) == ranks


# A rank that is slow in both windows is named; one slow window, a busy machine or ordinary differences are not.


def run_facts(window: Callable[[int, int], Window], count: int = 4, device: str = "cpu") -> Facts:
    """A completed run with the measurements of each rank in each window."""
    records: list[FactRecord] = []
    for number in range(count):
        report = RankReport(number, count, f"node{number}", "gloo", device, "2.13.0", steps=10, losses=[2.0, 1.0])
        value: dict[str, Any] = {**asdict(report), "windows": [asdict(window(number, index)) for index in range(2)]}
        params = {"rank": number, "world_size": count}
        request = Request(probe_name(rank), f"node{number}", params, context=True, group="smoke train")
        records.append(FactRecord(request, value))
    return facts(*records)


def usual_window(rank: int, index: int, *, times: float = 1.0, waited: float = 0.02, held: float = 0.0) -> Window:
    compute = [0.001 * times * (1 + 0.02 * (piece % 5)) for piece in range(20)]
    return Window(compute, [0.0005] * 8, (rank + 1 + index) % 4, waited, held)


def test_equal_ranks_pass() -> None:
    found = one(judge(straggler, job(**JOB), fleet(), run_facts(usual_window)), Status.PASS)
    assert found.subject.startswith("speed of 4 ranks")


def test_a_rank_that_is_slow_twice_is_named_with_its_node() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=3.1 if r == 2 else 1.0))
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "rank 2 on node2 took 3.1 times as long" in found.message
    assert found.severity in (None, Severity.WARNING)


def test_a_rank_that_is_slow_in_one_window_is_not() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=5.0 if r == 2 and i == 0 else 1.0))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}


def test_gpus_have_a_tighter_limit_than_cpus() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, times=1.5 if r == 1 else 1.0))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}
    seen = run_facts(lambda r, i: usual_window(r, i, times=1.5 if r == 1 else 1.0), device="cuda:0 NVIDIA H100")
    assert one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL).nodes == ("node1",)


def test_a_quota_is_named_as_the_reason() -> None:
    seen = run_facts(
        lambda r, i: usual_window(r, i, times=5.0, waited=0.8, held=0.78) if r == 3 else usual_window(r, i)
    )
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert "quota throttled it for 78% of the time" in found.message


def test_one_crowded_node_is_named_but_not_if_all_are() -> None:
    seen = run_facts(lambda r, i: usual_window(r, i, waited=0.7 if r == 1 else 0.01))
    found = one(judge(straggler, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "unlike most others" in found.message
    seen = run_facts(lambda r, i: usual_window(r, i, waited=0.7))
    assert statuses(judge(straggler, job(**JOB), fleet(), seen)) == {"pass"}


def slow_to_exchange(r: int, i: int, waited: float) -> Window:
    base = usual_window(r, i, waited=waited)
    return Window(base.compute_s, [0.05] * 8 if r == 2 else base.exchange_s, base.partner, waited, 0.0)


def test_a_rank_that_exchanges_slowly_with_both_partners_is_named_unless_all_are_busy() -> None:
    found = one(
        judge(straggler, job(**JOB), fleet(), run_facts(lambda r, i: slow_to_exchange(r, i, 0.01))), Status.FAIL
    )
    assert found.nodes == ("node2",) and "to exchange with others" in found.message
    said = one(
        judge(straggler, job(**JOB), fleet(), run_facts(lambda r, i: slow_to_exchange(r, i, 0.5))), Status.UNKNOWN
    )
    assert "hosts busy" in said.message and not said.required


def test_healthy_ranks_that_vary_are_never_named() -> None:
    chance = random.Random(3)
    for _ in range(300):
        seen = run_facts(
            lambda r, i: usual_window(r, i, times=chance.lognormvariate(0, 0.15), waited=chance.uniform(0, 0.9)), 8
        )
        names = {v.message for v in judge(straggler, job(**JOB), fleet(8), seen) if v.status is Status.FAIL}
        assert not any("times as long" in name for name in names)


def test_two_ranks_and_reports_without_windows_are_not_compared() -> None:
    assert statuses(judge(straggler, job(**JOB), fleet(2), run_facts(usual_window, 2))) == {"not-applicable"}
    assert statuses(judge(straggler, job(**JOB), fleet(), facts())) == {"unknown"}


def test_partners_change_between_windows_and_agree_with_each_other() -> None:
    for world_size in (1, 2, 3, 4, 5, 8, 9):
        for window in (0, 1):
            partners = {r: partner_of(r, world_size, window) for r in range(world_size)}
            assert all(p == -1 or (p != r and partners[p] == r) for r, p in partners.items())
            assert sum(p == -1 for p in partners.values()) == world_size % 2
        if world_size > 2:
            assert all(partner_of(r, world_size, 0) != partner_of(r, world_size, 1) for r in range(world_size))


def with_batches() -> Job:
    """A job with a configuration file; each node has a copy."""
    file = InputFile("ds.json", "deepspeed", "a" * 64, 9)
    return replace(job([claim("micro_batch_size_per_gpu", 4)], **JOB), files=(file,))


def batches(**sizes: int) -> list[FactRecord]:
    return [
        fact(
            copies,
            node,
            Copies("/job", [Copy("ds.json", "/job/ds.json", "", f"{size:064}", 9, {"train_batch_size": str(size)})]),
            context=True,
        )
        for node, size in sizes.items()
    ]


def test_unequal_batches_are_distinguished_from_slow_machines() -> None:
    unequal = batches(node0=4, node1=4, node2=8, node3=4)
    alike = one(
        judge(straggler, with_batches(), fleet(), facts(*unequal, *run_facts(usual_window).records)), Status.PASS
    )
    assert "the machines are equally fast, but the job's own work" in alike.subject
    assert "train_batch_size in the nodes' copies of ds.json is node2: 8; 3 nodes have 4 (BAT030)" in alike.subject
    slow = run_facts(lambda r, i: usual_window(r, i, times=3.1 if r == 1 else 1.0)).records
    found = one(judge(straggler, with_batches(), fleet(), facts(*unequal, *slow)), Status.FAIL)
    assert found.nodes == ("node1",) and "The job's own work is uneven for another reason" in found.message


def test_unequal_data_is_distinguished_from_slow_machines() -> None:
    shards = {f"{index:03}.tar": 2**20 for index in range(4)} | {"000.tar": 9 * 2**20}
    entries = [Entry(name, size) for name, size in shards.items()]
    path = "/data/{000..003}.tar"
    state = PathState(path, path, "pattern", entries=entries, listed=4, size_bytes=12 * 2**20)
    data = fact(path_state, "node0", state, params={"path": path})
    given = job(**JOB, data_path=path, world_size=4)
    alike = one(judge(straggler, given, fleet(), facts(data, *run_facts(usual_window).records)), Status.PASS)
    assert "rank 1 ends its epoch much earlier" in alike.subject and "(DAT014)" in alike.subject


def test_sizes_set_for_single_nodes_are_reported() -> None:
    own = [
        claim("micro_batch_size_per_gpu", size, scope=replace(LAUNCH.scope, node=f"node{number}"))
        for number, size in enumerate((4, 4, 4, 16))
    ]
    given = job(own, **JOB)
    assert unequal_work(given, fleet(), facts()) == (
        "the job's files set micro_batch_size_per_gpu to node3: 16; 3 nodes have 4",
    )
    assert unequal_work(job(**JOB, micro_batch_size_per_gpu=4), fleet(), facts()) == ()
