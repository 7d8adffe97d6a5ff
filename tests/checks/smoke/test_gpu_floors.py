"""GPUs compared with what their model reaches, by measurements of a real card, and products with known bits."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.smoke.gpu_floors import gpu_copies_slow, gpu_slow, gpu_wrong
from reference_trainer.collective.gpu_speed import ExactCompute, GpuReport, Speed, WrongProduct
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.gpu_state import GpuState, OtherUse
from tests.checks.check_builders import facts, fleet, job, judge, one, statuses

JOB = job(backend="nccl", master_addr="node0", master_port=29500)
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


def run_records(
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


def verdicts(check: Any, *reports: GpuReport | dict[str, Any] | None, **more: Any) -> list[Verdict]:
    return judge(check, JOB, fleet(len(reports)), facts(*run_records(*reports, **more)))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("number", range(3))
def test_a_real_healthy_card_passes_every_floor_with_a_margin(number: int, card: str) -> None:
    report = recorded("alone", number, card)
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert one(verdicts(check, report), Status.PASS)
    # A quarter less of everything passes, too.
    lower = {**report, "speeds": [{**item, "best": item["best"] * 0.75} for item in report["speeds"]]}
    for check in (gpu_slow, gpu_copies_slow):
        assert one(verdicts(check, lower), Status.PASS)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("number", range(2))
def test_a_real_card_in_use_is_unknown_and_the_reason_is_given(number: int, card: str) -> None:
    report = recorded("busy", number, card)
    found = one(verdicts(gpu_slow, report), Status.UNKNOWN)
    assert "the GPU was in use by 1 other process (99 % busy" in found.message
    assert "TFLOP/s in products in fp32" in found.message
    assert one(verdicts(gpu_copies_slow, report), Status.PASS)
    assert one(verdicts(gpu_wrong, report), Status.PASS)


@pytest.mark.parametrize("card", CARDS)
def test_a_real_card_short_of_memory_is_unknown(card: str) -> None:
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert "68 MiB of memory are free" in one(verdicts(check, recorded("full", 0, card)), Status.UNKNOWN).message


def test_an_altered_element_of_a_real_card_is_found() -> None:
    found = one(verdicts(gpu_wrong, recorded("flipped", 0, "h100")), Status.FAIL)
    assert "element (17, 4095) is -48042.0, expected exactly -48043.0; 1 of 16777216" in found.message
    assert "(also in tf32, " in found.message


def test_a_capped_card_is_named_with_its_figures_and_the_cap() -> None:
    capped = slower(
        healthy(), 0.5, "bf16", clock_mhz=1100, power_limit_w=350.0, power_w=349.0, reasons=4, held_reasons=4
    )
    found = one(verdicts(gpu_slow, healthy(), capped), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity in (None, Severity.WARNING)
    assert "node1 GPU 0 (0000:00:06.0), NVIDIA H200, reaches 344.1 TFLOP/s in products in bf16" in found.message
    assert "expected at least 494.5 (50% of the published 989)" in found.message
    assert "it ran at 1100 of 1980 MHz, its power is limited to 350 W of 700 W" in found.message
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
    found = one(verdicts(gpu_slow, slower(healthy(), 0.4, "fp32", **state)), Status.FAIL)
    assert cause in found.message


def test_slow_memory_is_a_finding_of_its_own_figure() -> None:
    found = one(verdicts(gpu_slow, slower(healthy(), 0.3, "memory")), Status.FAIL)
    assert "1269 GB/s in copies in its memory, expected at least 2880" in found.message


def test_all_equally_slow_cards_are_one_finding() -> None:
    slow = slower(healthy(), 0.1, "bf16", "fp16")
    found = one(verdicts(gpu_slow, slow, slow, slow), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2") and "3 GPUs are that slow" in found.message


def test_an_unlisted_card_is_unknown_with_its_figures() -> None:
    for model in ("NVIDIA Quantum 9", "NVIDIA H200 MIG 1g.18gb"):
        found = one(verdicts(gpu_slow, replace(healthy(), model=model)), Status.UNKNOWN)
        assert model in found.message and "TFLOP/s in products in bf16" in found.message


def test_a_card_whose_other_use_is_unknown_is_not_blamed() -> None:
    slow = slower(healthy(), 0.3, "fp32")
    unseen = replace(slow, before=OtherUse(), after=OtherUse())
    assert "whether others used the GPU is unknown" in one(verdicts(gpu_slow, unseen), Status.UNKNOWN).message
    good = replace(healthy(), before=OtherUse(), after=OtherUse())
    assert statuses(verdicts(gpu_slow, good)) == {"pass"}


def test_ranks_that_share_a_card_are_not_blamed() -> None:
    slow = slower(healthy(), 0.4, "fp32")
    shared = replace(slow, shared_by=2, pci="", state=replace(slow.state, uuid=""))
    assert "2 ranks shared the GPU" in one(verdicts(gpu_slow, shared), Status.UNKNOWN).message
    # Two pods, or two names of this machine, that see the same card.
    pods = judge(gpu_slow, JOB, fleet(2), facts(*run_records(slow, slow, one_card=True)))
    assert "2 ranks shared the GPU" in one(pods, Status.UNKNOWN).message
    records = run_records(slow, slow, one_card=True)
    both = [replace(record, request=replace(record.request, node="node0")) for record in records]
    found = one(judge(gpu_slow, JOB, fleet(1), facts(*both)), Status.UNKNOWN)
    assert "2 ranks shared the GPU" in found.message
    # A rank that sees one device of eight does not share it.
    assert statuses(verdicts(gpu_slow, replace(slow, shared_by=8))) == {"fail"}


def test_a_downgraded_link_is_named_with_its_lanes() -> None:
    found = one(verdicts(gpu_copies_slow, slower(healthy(), 0.12, "host_to_device", pcie_width=2)), Status.FAIL)
    assert "PCIe generation 5 with 2 lanes, of generation 5 with 16 lanes" in found.message
    assert "6.656 GB/s in copies from the host, expected at least 31.5" in found.message


def test_a_slot_that_supports_less_lowers_the_floor() -> None:
    older = slower(healthy(), 0.45, "host_to_device", "device_to_host", pcie_generation=4, pcie_generation_max=4)
    assert statuses(verdicts(gpu_copies_slow, older)) == {"pass"}


def test_without_nvml_a_low_copy_is_unknown_and_a_high_one_passes() -> None:
    blind = {"pcie_generation": None, "pcie_generation_max": None, "pcie_width": None, "pcie_width_max": None}
    found = one(verdicts(gpu_copies_slow, slower(healthy(), 0.4, "host_to_device", **blind)), Status.UNKNOWN)
    assert "NVML does not show what card and slot support" in found.message
    assert statuses(verdicts(gpu_copies_slow, slower(healthy(), 1.0, **blind))) == {"pass"}


def test_copies_to_a_peer_are_judged_by_the_links_that_are_up() -> None:
    def with_peer(rate: float, links: int | None) -> GpuReport:
        base = healthy()
        return replace(base, speeds=[*base.speeds, Speed("peer", rate, rate, 1 << 27, 9)], peer="0:7", peer_links=links)

    assert statuses(verdicts(gpu_copies_slow, with_peer(380.0, 18))) == {"pass"}
    found = one(verdicts(gpu_copies_slow, with_peer(45.0, 18)), Status.FAIL)
    assert "45 GB/s in copies to the next GPU, expected at least 225" in found.message
    assert "18 NVLinks are up" in found.message
    for links in (0, None):
        assert statuses(verdicts(gpu_copies_slow, with_peer(20.0, links))) == {"pass"}


def test_a_missing_figure_is_unknown() -> None:
    base = healthy()
    part = replace(base, speeds=[s for s in base.speeds if s.what != "fp8"], notes={"fp8": "no time was left"})
    assert "products in fp8: no time was left" in one(verdicts(gpu_slow, part), Status.UNKNOWN).message


def test_one_wrong_bit_names_the_card_and_the_repetition() -> None:
    wrong = WrongProduct("bf16", 7, 17, 4000, "1296.0", "1288.0", "0x1", 1, 16777216)
    odd = replace(healthy(), exact=ExactCompute({"fp32": 40, "bf16": 40}, 1000, [wrong]))
    found = verdicts(gpu_wrong, healthy(), odd)
    assert statuses(found) == {"pass", "fail"}
    (fault,) = (item for item in found if item.status is Status.FAIL)
    assert fault.nodes == ("node1",) and gpu_wrong.meta.severity is Severity.ERROR
    assert "in repetition 7 of 40 of a product in bf16, element (17, 4000) is 1296.0, expected exactly 1288.0" in (
        fault.message
    )
    assert "1 of 16777216 elements are wrong" in fault.message


def test_a_busy_card_with_wrong_bits_is_still_wrong() -> None:
    wrong = WrongProduct("fp32", 1, 0, 0, "nan", "3.0", "0x7fc00000", 5, 100)
    busy = replace(healthy(), exact=ExactCompute({"fp32": 3}, 300, [wrong]), before=OtherUse(99, 1))
    assert one(verdicts(gpu_wrong, busy), Status.FAIL)


def test_a_precision_that_could_not_run_is_unknown() -> None:
    partial = replace(healthy(), exact=ExactCompute({"fp32": 40}, 1000, [], {"bf16": "CUBLAS_STATUS_NOT_SUPPORTED"}))
    assert "bf16: CUBLAS_STATUS_NOT_SUPPORTED" in one(verdicts(gpu_wrong, partial), Status.UNKNOWN).message


def test_processors_and_older_recordings_are_not_applicable() -> None:
    for check in (gpu_slow, gpu_copies_slow, gpu_wrong):
        assert statuses(verdicts(check, GpuReport(skipped="the rank computes on the processor"), device="cpu")) == {
            "not-applicable"
        }
        assert statuses(verdicts(check, None)) == {"not-applicable"}
