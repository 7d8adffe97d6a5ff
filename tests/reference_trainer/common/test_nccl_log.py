"""NCCL's log in the format of several versions, from public reports: network, devices, transports, warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_trainer.common.used_transport import Capture, NcclConnections, parse

LOGS = Path(__file__).parents[1] / "nccl_logs"


def read(name: str) -> NcclConnections:
    return parse((LOGS / name).read_text())


def test_infiniband_with_gpu_direct() -> None:
    # After NVIDIA/nccl-tests#133 and NVIDIA/nccl#1357.
    assert read("infiniband.log") == NcclConnections(
        "2.20.5",
        "IB",
        ["mlx5_0:1", "mlx5_1:1"],
        {"NET/IB": 2, "P2P/CUMEM": 2},
        True,
    )
    assert not read("infiniband.log").sockets


def test_sockets_without_an_rdma_device() -> None:
    # After NVIDIA/nccl#952, NVIDIA/nccl#1267 and NVIDIA/nccl-tests#166.
    said = read("socket.log")
    assert (said.version, said.network, said.direct) == ("2.19.3", "Socket", False)
    assert said.devices == ["ens7", "ens8"]
    assert said.via == {"P2P/IPC": 1, "NET/Socket": 1, "SHM/direct": 1}
    assert said.sockets


def test_the_wording_of_newer_versions() -> None:
    # After logs of NCCL 2.27 (Initialized, Assigned; a list of no devices) and NVIDIA/nccl#2428.
    said = read("newest.log")
    assert (said.version, said.network) == ("2.27.5", "Socket")
    assert said.devices == ["eth0", "veth37669ca"]
    assert said.warnings == ["Call to bind failed: Address already in use"]


def test_a_plugin_that_joins_ports() -> None:
    # After NVIDIA/nccl-tests#373.
    said = read("plugin.log")
    assert said.network == "IBext_v8" and not said.sockets
    assert said.devices == ["mlx5_2:1", "mlx5_3:1", "mlx5_0:1", "mlx5_1:1"]
    assert said.via == {"NET/IBext_v8": 2}


def test_the_wording_of_old_versions() -> None:
    # After NVIDIA/nccl#302.
    said = read("old.log")
    assert (said.version, said.network) == ("2.5.6", "IB")
    assert said.devices == ["mlx5_1:1", "mlx5_3:1", "mlx5_0:1", "mlx5_2:1"]
    assert said.via == {"P2P/IPC": 2}


@pytest.mark.parametrize("text", ["", "no such thing\n", "NCCL INFO\n\x00\n"])
def test_empty_log_gives_empty_fields(text: str) -> None:
    assert parse(text) == NcclConnections()


def test_captured_log_can_be_read() -> None:
    environment: dict[str, str] = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/var/log/mine"}
    capture = Capture(environment)
    assert environment["NCCL_DEBUG"] == "INFO" and environment["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    # Like NCCL: open the file by name, write line by line, and leave it open.
    with Path(environment["NCCL_DEBUG_FILE"]).open("w", buffering=1) as file:
        file.write("NCCL version 2.28.3+cuda13.0\n")
        file.write("x:1:1 [0] NCCL INFO Using network Socket\n")
        said = parse(capture.text())
    assert (said.version, said.network) == ("2.28.3", "Socket")
    assert not Path("/var/log/mine").exists()


def test_two_ranks_on_one_h100() -> None:
    # Recorded on 2026-11-27: rank 0 of two with a NCCL_HOSTID each, torch 2.11.0+cu130, driver 580.159.04.
    assert read("shared-gpu.log") == NcclConnections("2.28.9", "Socket", ["eth0"], {"NET/Socket": 4}, False)
