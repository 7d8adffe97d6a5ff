"""The table of expected speeds: valid, one row a card, and floors that leave a margin below what was achieved."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from preflight_checks.comparison import table
from preflight_checks.gpus.expected_speed import (
    expected_speeds,
    host_floor,
    memory_floor,
    model_of,
    pcie_gbps,
    peer_floor,
    product_floor,
    read_table,
)


def test_names_are_those_of_nvml_with_or_without_the_maker() -> None:
    for name in ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "Tesla V100-SXM2-32GB", "AMD Instinct MI300X"):
        assert model_of(name) is not None, name
    for name in ("", "NVIDIA H100", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GeForce GTX 1080"):
        assert model_of(name) is None, name


@pytest.mark.parametrize("row", expected_speeds().gpu, ids=lambda row: row.names[0])
def test_every_card_has_a_source_and_floors_below_its_peaks(row: Any) -> None:
    assert expected_speeds().sources[row.source].startswith("https://")
    for precision, peak in row.tflops.items():
        floor = product_floor(row, precision)
        assert floor is not None and 0 < floor.least < peak
    assert 0 < memory_floor(row).least < row.memory
    assert host_floor(row, None, None).least < (row.host or 130)


def test_products_of_a_precision_that_a_card_lacks_have_no_floor() -> None:
    row = model_of("Tesla V100-SXM2-16GB")
    assert row is not None and product_floor(row, "bf16") is None


def test_the_floor_of_copies_follows_the_slot() -> None:
    row = model_of("NVIDIA H200")
    assert row is not None
    assert host_floor(row, 5, 16).least == pytest.approx(31.5, abs=0.1)
    assert host_floor(row, 4, 16).least == pytest.approx(15.75, abs=0.1)
    assert host_floor(row, 3, 8).least == pytest.approx(3.94, abs=0.1)
    assert host_floor(row, 6, 16).least == host_floor(row, 5, 16).least
    assert pcie_gbps(9, 16) == pcie_gbps(6, 16) and pcie_gbps(0, 1) == 0.25
    assert peer_floor(row, 0) is None and peer_floor(row, 4).least == 50  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["gpu"].append(data["gpu"][0]),
        lambda data: data["gpu"][0].update(source="nowhere"),
        lambda data: data["gpu"][0].update(memory=-1),
        lambda data: data["gpu"][0].update(colour="green"),
        lambda data: data["gpu"][0].pop("pcie"),
        lambda data: data["gpu"][0].pop("memory"),
        lambda data: data["gpu"][0]["pcie"].update(lanes=17),
        lambda data: data["gpu"][3]["floors"].pop("reason"),
        lambda data: data.update(schema=2),
        lambda data: data["floors"].update(products=1.5),
        lambda data: data["floors"].update(products=0.8),
        lambda data: data["gpu"][0].update(date="yesterday"),
    ],
)
def test_a_damaged_table_is_rejected(change: Any) -> None:
    data = copy.deepcopy(table("expected_speed"))
    change(data)
    with pytest.raises((ValueError, TypeError)):
        read_table(data)
