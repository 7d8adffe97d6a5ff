"""RDMA writes by perftest: real tables of its versions, and runs of both ends over loopback with a stand-in for it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import rdma_speed as probe
from preflight_checks.probes.rdma_speed import RailSpeed, parse_bandwidth, parse_latency, rdma_speed, serve

from .test_links import fake, listening

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
    assert rail.gbps is None and "the peer: ib_write_bw ended with exit code 1" in rail.problem
    assert "Couldn't connect to mlx5_0" in rail.problem


def test_writes_that_do_not_end_are_ended_and_leave_both_causes_open(
    perftest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "RUN_S", 0.5)
    (perftest / "hangs").write_text("1")
    with listening() as event:
        (rail,) = measured(event, RAIL).rails
    assert rail.gbps is None
    assert "did not end within 0.5 s (slow writes, or a filtered TCP port)" in rail.problem


def test_rails_beyond_the_budget_are_left_out(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BUDGET_S", 0.0)
    with listening() as event:
        found = measured(event, RAIL, RAIL, RAIL)
    assert not found.rails and found.left_out == 3


def test_without_perftest_or_a_connection_there_is_a_reason(perftest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProbeUnavailable, match="broke off"):
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
