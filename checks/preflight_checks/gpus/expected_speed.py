"""What a healthy GPU, link or fabric reaches: the table of peaks by model, and the share of a peak that is a floor."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from preflight_checks.comparison import table

#: GB/s (10^9 bytes) of one lane in each direction by PCIe generation, after line coding (PCI-SIG).
PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, slots=True)
class Floors:
    """Shares of a peak that healthy hardware exceeds in a short test."""

    products: float
    memory: float
    host: float
    peer: float
    all_reduce_in_node: float
    all_reduce_between_nodes: float
    rdma_write: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _require_share(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class OwnFloors:
    """Shares for one model that replace the common ones, and why."""

    reason: str
    products: float | None = None
    memory: float | None = None
    host: float | None = None
    peer: float | None = None

    def __post_init__(self) -> None:
        for name in ("products", "memory", "host", "peer"):
            _require_share(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class PcieConnector:
    """Generation and lanes of a card's connector."""

    generation: int
    lanes: int

    def __post_init__(self) -> None:
        if self.generation not in PCIE_LANE_GBPS or self.lanes not in (1, 2, 4, 8, 16):
            raise ValueError(f"PCIe generation {self.generation} with {self.lanes} lanes is unknown")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """The peaks of one model; the heading of the table describes each field."""

    names: tuple[str, ...]
    tflops: Mapping[str, float]
    memory: float
    source: str
    date: datetime.date
    pcie: PcieConnector | None = None
    host: float | None = None
    nvlink: float | None = None
    achieved: float | None = None
    floors: OwnFloors | None = None

    def __post_init__(self) -> None:
        peaks = [self.memory, *self.tflops.values(), *(rate for rate in (self.host, self.nvlink) if rate is not None)]
        if not self.names or not self.tflops or min(peaks) <= 0:
            raise ValueError(f"{self.names}: a name is missing, or a peak is not above zero")
        if (self.pcie is None) == (self.host is None):
            raise ValueError(f"{self.names[0]}: expected one connection to the host, by `pcie` or by `host`")
        _require_share("achieved", self.achieved)


@dataclass(frozen=True, slots=True)
class ExpectedSpeeds:
    """The whole table."""

    floors: Floors
    sources: Mapping[str, str]
    gpu: tuple[GpuModel, ...]

    def __post_init__(self) -> None:
        names = [name for row in self.gpu for name in row.names]
        if len(names) != len(set(names)):
            raise ValueError("a model is listed twice")
        for row in self.gpu:
            if row.source not in self.sources:
                raise ValueError(f"{row.names[0]}: unknown source {row.source}")
            if row.achieved is not None and row.achieved < self.share(row, "products") * 1.2:
                raise ValueError(f"{row.names[0]}: the floor of products is too near to what was achieved")

    def share(self, row: GpuModel, kind: str) -> float:
        """The share of the peak of this kind (`products`, `memory`, `host`, `peer`) that is the floor of this model."""
        own = getattr(row.floors, kind) if row.floors is not None else None
        return float(own if own is not None else getattr(self.floors, kind))


def _require_share(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"{name} is {value}; expected a share between 0 and 1")


def read_table(data: Mapping[str, Any]) -> ExpectedSpeeds:
    """The validated table. Raises ValueError or TypeError for an unknown, missing or impossible entry."""
    known = {"schema", "floors", "sources", "gpu"}
    if set(data) != known or data["schema"] != 1:
        raise ValueError(f"expected the keys {sorted(known)} and schema 1")
    return ExpectedSpeeds(
        Floors(**data["floors"]), dict(data["sources"]), tuple(_read_model(dict(row)) for row in data["gpu"])
    )


def _read_model(row: dict[str, Any]) -> GpuModel:
    row["names"] = tuple(row["names"])
    row["date"] = datetime.date.fromisoformat(row["date"])
    for name, kind in (("pcie", PcieConnector), ("floors", OwnFloors)):
        if name in row:
            row[name] = kind(**row[name])
    return GpuModel(**row)


@functools.cache
def expected_speeds() -> ExpectedSpeeds:
    """The validated table."""
    return read_table(table("expected_speed"))


@functools.cache
def _by_name() -> dict[str, GpuModel]:
    return {name: row for row in expected_speeds().gpu for name in row.names}


def model_of(name: str) -> GpuModel | None:
    """The row of the card that NVML calls `name`; None if it is not listed. Parts of a card (MIG) are not listed."""
    return _by_name().get(name.strip().removeprefix("NVIDIA "))


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a healthy device reaches, the peak that it is a share of, and where the peak comes from."""

    least: float
    peak: float
    source: str

    @property
    def share(self) -> float:
        """The floor as a share of the peak."""
        return self.least / self.peak


def product_floor(row: GpuModel, precision: str) -> Floor | None:
    """TFLOP/s of products in this precision; None if the card does not have it."""
    peak = row.tflops.get(precision)
    return _floor(row, "products", peak) if peak is not None else None


def memory_floor(row: GpuModel) -> Floor:
    """GB/s of a copy within the card's memory, bytes read and written."""
    return _floor(row, "memory", row.memory)


def host_floor(row: GpuModel, generation: int | None, lanes: int | None) -> Floor:
    """GB/s of copies to or from the host.

    Args:
        generation, lanes: the most that card and slot support together, as NVML reports; None if unknown.
    """
    if row.host is not None:
        return _floor(row, "host", row.host)
    assert row.pcie is not None
    peak = pcie_gbps(
        min(row.pcie.generation, generation or row.pcie.generation), min(row.pcie.lanes, lanes or row.pcie.lanes)
    )
    return _floor(row, "host", peak)


def peer_floor(row: GpuModel, links: int) -> Floor | None:
    """GB/s of copies to a peer over this many NVLinks; None without links, because PCIe's topology decides then."""
    return _floor(row, "peer", row.nvlink * links) if row.nvlink is not None and links else None


def pcie_gbps(generation: int, lanes: int) -> float:
    """GB/s each way of a PCIe link; of the newest known generation if it is newer."""
    return PCIE_LANE_GBPS[min(max(1, generation), max(PCIE_LANE_GBPS))] * lanes


def _floor(row: GpuModel, kind: str, peak: float) -> Floor:
    whole = expected_speeds()
    return Floor(peak * whole.share(row, kind), peak, whole.sources[row.source])
