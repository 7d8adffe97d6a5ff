"""RDMA devices, GPUDirect and PCI bridges, read from folders made up like those of the kernel."""

from __future__ import annotations

import stat
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import devices as pci
from preflight_checks.probes import rdma
from preflight_checks.probes import rdma as probe
from preflight_checks.probes import rdma as rdma_access
from preflight_checks.probes.devices import acs_control
from preflight_checks.probes.rdma import (
    Gid,
    RailSpeed,
    after_number,
    parse_bandwidth,
    parse_latency,
    parse_rate,
    rdma_speed,
    serve,
)
from tests.checks.probes.test_links import fake, listening
from tests.cluster.devices import Hca, files_of, hcas, roce_gids


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
    assert "did not respond" in found[1].problem


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


# RDMA writes by perftest: real tables of its versions, and runs of both ends over loopback with a stand-in for it.


#: The layout that perftest 4.5 and later print.
GBITS = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Mtu             : 4096[B]
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x0108 PSN 0x8d2ea4 RKey 0x17fe00 VAddr 0x007f1a9c400000
 remote address: LID 0x02 QPN 0x0109 PSN 0x3d5a01 RKey 0x17fd00 VAddr 0x007f5b0c400000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    1000             196.41             {average}   \t\t   0.023411
---------------------------------------------------------------------------------------
"""
MEGABYTES = """ #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             11015.79            11014.43\t\t   0.176231
"""
LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% percentile[usec]   99.9% percentile[usec]\n"
    " 8       1000          0.97           3.36         1.02     \t       1.03        \t0.05   \t\t1.12    \t\t3.36\n"
)
RAIL = ["mlx5_0", 1, -1, "mlx5_1", 1, 3]
#: Behaves as perftest: without a host it waits for one client on the port, and both print the table.
STAND_IN = """#!{python}
import socket, sys, time
words = sys.argv[1:]
if "--version" in words:
    print("Version: 6.16"); sys.exit(0)
folder = {folder!r}
port = int(words[words.index("-p") + 1])
def say(name, default=""):
    try:
        return open(folder + "/" + name).read().strip()
    except OSError:
        return default
hosts = [word for word in words[-1:] if word[0].isdigit() and "." in word]
open(folder + "/log", "a").write(" ".join(words) + "\\n")
if say("broken"):
    print("Couldn't connect to mlx5_0", file=sys.stderr); sys.exit(1)
if not hosts:
    with socket.socket() as listener:
        listener.bind(("", port)); listener.listen(); listener.settimeout(10); listener.accept()
else:
    if say("hangs"):
        time.sleep(60)
    with socket.create_connection((hosts[0], port), 2):
        pass
print(open(folder + ("/latency" if words[words.index("-s") + 1] == "8" else "/bandwidth")).read())
"""


@pytest.fixture
def perftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH with stand-ins for both tools."""
    for name in (probe.BANDWIDTH, probe.LATENCY):
        path = tmp_path / name
        path.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "bandwidth").write_text(GBITS.format(average="196.38"))
    (tmp_path / "latency").write_text(LATENCY)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def measured(event: dict[str, Any], *rails: list[Any]) -> probe.RdmaSpeeds:
    return rdma_speed({"peer": "b", "host": "127.0.0.1", "rails": list(rails), "listening": {"b": event}})


def test_tables_of_its_versions_are_read() -> None:
    assert parse_bandwidth(GBITS.format(average="196.38")) == 196.38
    assert parse_bandwidth(MEGABYTES) == pytest.approx(92.396, abs=0.01)
    assert parse_latency(LATENCY) == 1.02
    # Titles with a blank before the unit, as some versions print them.
    assert parse_bandwidth(GBITS.format(average="7.5").replace("average[", "average [")) == 7.5


@pytest.mark.parametrize("text", ["", "#bytes", "Couldn't connect to 10.0.0.2:18515", GBITS.format(average="nothing")])
def test_other_output_has_no_figure(text: str) -> None:
    assert parse_bandwidth(text) is None and parse_latency(text) is None


def test_both_ends_run_and_the_figures_return(perftest: Path) -> None:
    with listening() as event:
        found = measured(event, RAIL, ["mlx5_2", 2, 5, "mlx5_3", 1, -1])
    assert found.rails[0] == RailSpeed("mlx5_0", 1, "mlx5_1", 1, 196.38, 1.02)
    assert found.rails[1].device == "mlx5_2" and found.rails[1].gbps == 196.38 and found.left_out == 0
    assert found.rails[1].latency_us is None
    log = (perftest / "log").read_text().splitlines()
    # The peer waits on its own device with its own GID, and this node writes from its own.
    assert sum("-d mlx5_1 -i 1" in line and "-x 3" in line for line in log) == 2
    assert sum("-d mlx5_0 -i 1" in line and "-x" not in line.split() for line in log) == 2
    assert sum("-d mlx5_2 -i 2" in line and "-x 5" in line for line in log) == 1


def test_a_tool_that_fails_gives_its_message(perftest: Path) -> None:
    (perftest / "broken").write_text("1")
    with listening() as event:
        (rail,) = measured(event, RAIL).rails
    assert rail.gbps is None and "the peer: ib_write_bw exited with code 1" in rail.problem
    assert "Couldn't connect to mlx5_0" in rail.problem


def test_writes_that_do_not_end_are_ended_and_leave_both_causes_open(
    perftest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "RUN_S", 0.5)
    (perftest / "hangs").write_text("1")
    with listening() as event:
        (rail,) = measured(event, RAIL).rails
    assert rail.gbps is None
    assert "did not finish within 0.5 s (slow writes, or a filtered TCP port)" in rail.problem


def test_rails_beyond_the_budget_are_left_out(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BUDGET_S", 0.0)
    with listening() as event:
        found = measured(event, RAIL, RAIL, RAIL)
    assert not found.rails and found.left_out == 3


def test_without_perftest_or_a_connection_there_is_a_reason(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProbeUnavailable, match="was lost"):
        measured(fake(1), RAIL)
    with pytest.raises(ProbeUnavailable, match="out of processes"):
        rdma_speed({"peer": "b", "host": "x", "rails": [], "unheard": {"b": "out of processes"}})
    (perftest / probe.BANDWIDTH).unlink()
    with listening() as event, pytest.raises(ProbeUnavailable, match="ib_write_bw` was not found") as caught:
        measured(event, RAIL)
    assert caught.value.kind == "missing"


@pytest.mark.parametrize(
    "words",
    [
        {"tool": "rm", "device": "mlx5_0"},
        {"tool": "ib_write_bw", "device": "../mlx5_0"},
        {"tool": "ib_write_bw", "device": "-d mlx5_0"},
        {"tool": "ib_write_bw", "device": ""},
    ],
)
def test_the_listener_starts_nothing_else(words: dict[str, Any], perftest: Path) -> None:
    assert serve({**words, "port": 1, "gid": -1}) == {"error": "unknown tool or device"}
    assert not (perftest / "log").exists()
