"""RDMA devices, GPUDirect and PCI bridges, read from folders made up like those of the kernel."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import pci, rdma, rdma_access
from preflight_checks.probes.pci import acs_control
from preflight_checks.probes.rdma import Gid, after_number, parse_rate
from tests.cluster.rdma import Hca, files_of, hcas, roce_gids


def write_tree(folder: Path, devices: Sequence[Hca]) -> None:
    for name, text in files_of(devices).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def infiniband(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "infiniband"
    monkeypatch.setattr(rdma, "INFINIBAND", str(folder))
    return folder


def test_no_rdma_is_no_devices(infiniband: Path) -> None:
    assert rdma.rdma({}).devices == []


def test_a_folder_that_may_not_be_read(infiniband: Path) -> None:
    infiniband.write_text("not a folder")
    with pytest.raises(ProbeUnavailable) as caught:
        rdma.rdma({})
    assert caught.value.kind == "denied"


def test_devices_in_the_order_of_their_numbers(infiniband: Path) -> None:
    write_tree(
        infiniband,
        [Hca("mlx5_10"), Hca("mlx5_2", state="1: DOWN", physical="3: Disabled", counters={"link_downed": 7})],
    )
    two, ten = rdma.rdma({}).devices
    assert (two.name, ten.name) == ("mlx5_2", "mlx5_10")
    (port,) = two.ports
    assert (port.state, port.physical, port.active, port.rate_gbps) == ("DOWN", "Disabled", False, 200.0)
    assert port.counters["link_downed"] == 7 and port.link_layer == "InfiniBand"
    assert ten.ports[0].active and ten.firmware == "28.39.1002" and ten.board == "MT_0000000838"


def test_the_table_of_a_roce_port(infiniband: Path) -> None:
    write_tree(infiniband, [Hca("mlx5_0", link_layer="Ethernet", gids=roce_gids("10.0.0.4", "ens1"))])
    gids = rdma.rdma({}).devices[0].ports[0].gids
    assert [(gid.index, gid.version) for gid in gids] == [(0, 1), (1, 2), (2, 1), (3, 2)]
    assert gids[3] == Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0004", 2, "ens1")


def test_the_driver_and_the_place_on_the_bus(infiniband: Path, tmp_path: Path) -> None:
    write_tree(infiniband, hcas(1))
    (tmp_path / "0000:86:00.0").mkdir()
    (tmp_path / "mlx5_core").mkdir()
    (tmp_path / "0000:86:00.0" / "driver").symlink_to(tmp_path / "mlx5_core")
    (infiniband / "mlx5_0" / "device").symlink_to(tmp_path / "0000:86:00.0")
    (device,) = rdma.rdma({}).devices
    assert (device.driver, device.pci) == ("mlx5_core", "0000:86:00.0")


def test_a_hung_card_does_not_hide_the_others(infiniband: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(infiniband, hcas(3))
    release = threading.Event()
    read = rdma._device

    def hanging(name: str) -> rdma.RdmaDevice:
        if name == "mlx5_1":
            release.wait(20)
        return read(name)

    monkeypatch.setattr(rdma, "_device", hanging)
    try:
        found = rdma.rdma({"device_s": 0.3}).devices
    finally:
        release.set()
    assert [bool(device.problem) for device in found] == [False, True, False]
    assert "did not answer" in found[1].problem


def test_a_device_without_ports(infiniband: Path) -> None:
    (infiniband / "odd0").mkdir(parents=True)
    assert "ports cannot be listed" in rdma.rdma({}).devices[0].problem


@pytest.mark.parametrize(
    ("text", "rate"), [("400 Gb/sec (4X NDR)", 400.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), ("unknown", None)]
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


def test_states() -> None:
    assert (after_number("4: ACTIVE"), after_number("5: LinkUp"), after_number("")) == ("ACTIVE", "LinkUp", "")


def test_devices_that_a_rank_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_access, "NODES", str(tmp_path))
    monkeypatch.setattr(rdma_access, "VERBS", "libsuch-a-thing-does-not-exist.so.9")
    (tmp_path / "uverbs0").write_text("")
    (tmp_path / "uverbs1").symlink_to(tmp_path / "gone")
    (tmp_path / "rdma_cm").write_text("")
    found = rdma_access.rdma_access({})
    assert found.nodes == ["uverbs0", "uverbs1"] and list(found.refused) == ["uverbs1"]
    assert "libsuch-a-thing" in found.missing_library
    monkeypatch.setattr(rdma_access, "NODES", str(tmp_path / "nothing"))
    assert rdma_access.rdma_access({}).nodes == []


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12.3.0"


def test_gpudirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(OPEN)
    (tmp_path / "module").write_text("570.86.15")
    monkeypatch.setattr(rdma_access, "DRIVER", str(tmp_path / "version"))
    monkeypatch.setattr(rdma_access, "PEER_MEMORY", (str(tmp_path / "nv_mem"), str(tmp_path / "module")))
    found = rdma_access.gpudirect({})
    assert found.open_modules and found.peer_memory.endswith("module") and found.kernel
    monkeypatch.setattr(rdma_access, "DRIVER", str(tmp_path / "nothing"))
    assert rdma_access.gpudirect({}).driver == ""


def config(*capabilities: tuple[int, int]) -> bytes:
    """An extended configuration space with these capabilities and the word at +6 of each."""
    data = bytearray(4096)
    at = 0x100
    for index, (kind, word) in enumerate(capabilities):
        following = at + 0x20 if index + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", data, at, kind | 1 << 16 | following << 20, 0, word)
        at = following
    return bytes(data)


def test_acs_control_bits_are_read_from_the_capability_list() -> None:
    assert acs_control(config((0x0001, 0), (0x000D, 0x1D))) == 0x1D
    assert acs_control(config((0x0001, 0))) == 0
    assert acs_control(config()) == 0
    assert acs_control(b"\xff" * 4096) == 0
    assert acs_control(b"\0" * 64) is None and acs_control(b"\0" * 256) is None and acs_control(b"") is None
    endless = bytearray(config((0x0001, 0)))
    struct.pack_into("<I", endless, 0x100, 0x0001 | 0x100 << 20)
    assert acs_control(bytes(endless)) == 0


def test_bridges_above_gpus_and_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "devices" / "pci0000:00"
    names = {
        "0000:00:01.0": ("0x060400", "0x8086", config((0x000D, 0x1D))),
        "0000:00:01.0/0000:01:00.0": ("0x030200", "0x10de", b""),
        "0000:00:02.0": ("0x060400", "0x8086", b"\0" * 64),
        "0000:00:02.0/0000:02:00.0": ("0x020700", "0x15b3", b""),
        "0000:00:03.0": ("0x060400", "0x8086", config((0x000D, 0x1D))),
        "0000:00:03.0/0000:03:00.0": ("0x010802", "0x144d", b""),
    }
    bus = tmp_path / "bus"
    bus.mkdir()
    for path, (kind, vendor, data) in names.items():
        folder = real / path
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "config").write_bytes(data)
        (bus / folder.name).symlink_to(folder)
    (real / "0000:00:02.0/0000:02:00.0/infiniband").mkdir()
    (real / "0000:00:01.0/0000:01:00.0/iommu_group").mkdir()
    (real / "0000:00:01.0/0000:01:00.0/iommu_group/type").write_text("DMA-FQ\n")
    (tmp_path / "cmdline").write_text("root=/dev/sda1 intel_iommu=on quiet\n")
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu sse2\n")
    for constant, value in (("DEVICES", bus), ("CMDLINE", tmp_path / "cmdline"), ("CPUINFO", tmp_path / "cpuinfo")):
        monkeypatch.setattr(pci, constant, str(value))
    found = pci.pci({})
    assert found.gpus == ["0000:01:00.0"] and found.cards == ["0000:02:00.0"]
    assert found.bridges == ["0000:00:01.0", "0000:00:02.0"]
    assert found.redirecting == ["0000:00:01.0"] and found.unreadable == ["0000:00:02.0"]
    assert found.iommu == ["DMA-FQ"] and found.virtual is False and found.kernel_options == ["intel_iommu=on"]
    monkeypatch.setattr(pci, "DEVICES", str(tmp_path / "nothing"))
    with pytest.raises(ProbeUnavailable):
        pci.pci({})


def test_generated_devices_may_differ_in_one_property() -> None:
    assert files_of([replace(hcas(1)[0], firmware="1.2.3")])["mlx5_0/fw_ver"] == "1.2.3\n"
