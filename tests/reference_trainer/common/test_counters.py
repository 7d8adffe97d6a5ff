"""Counters of interfaces and RDMA ports are read and compared; unreadable ones are reported."""

from __future__ import annotations

from pathlib import Path

from reference_trainer.common import used_transport
from reference_trainer.common.used_transport import CardCounters, between, count, parse_interfaces

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
    assert between(before, after) == CardCounters({"eth0": [100, 200]}, {"mlx5_0:1": [64, 128]}, "x")


def test_counters_of_this_machine_can_be_read() -> None:
    assert "lo" in used_transport.count().interfaces
