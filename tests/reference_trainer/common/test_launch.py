"""Each launcher's variables give the rank of a process; missing variables are reported."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from reference_trainer.common import launcher_environment, rendezvous
from reference_trainer.common.launcher_environment import (
    LAUNCHERS,
    NoMaster,
    NotLaunched,
    is_served,
    launched_rank,
    master,
)
from reference_trainer.common.used_transport import Capture, NcclConnections, Transport, TransportWatcher, parse


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "4000"},
            ("torch", 3, 8, 1, "n1", 4000),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "4"}, ("torch", 0, 1, 0, "127.0.0.1", 4)),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "4"}, ("accelerate", 0, 1, 0, "127.0.0.1", 4)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_JOB_ID": "12",
            },
            ("mpirun (Open MPI)", 3, 4, 0, "n1", 15012),
        ),
        (
            # torchrun's variables override those of the srun that started it.
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "RANK": "9",
                "WORLD_SIZE": "16",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "1",
            },
            ("torch", 9, 16, 1, "n1", 1),
        ),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NODELIST": "gpu[03-04,9],login",
                "SLURM_JOB_ID": "1234567",
            },
            ("srun", 5, 8, 1, "gpu03", 19567),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a,b", "MASTER_PORT": "7"},
            ("srun", 0, 2, 0, "a", 7),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8", "MASTER_ADDR": "x"},
            ("srun", 0, 4, 0, "x", 29500),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("mpirun (Open MPI)", 1, 2, 0, "127.0.0.1", 29500),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "a"},
            ("mpiexec (PMI)", 1, 2, 1, "a", 29500),
        ),
        (
            {
                "PADDLE_TRAINER_ID": "1",
                "PADDLE_TRAINERS_NUM": "2",
                "PADDLE_RANK_IN_NODE": "1",
                "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6170,10.0.0.1:6171",
            },
            ("paddle", 1, 2, 1, "10.0.0.1", 6170),
        ),
    ],
)
def test_rank_size_and_rendezvous(environment: dict[str, str], expected: tuple[str, int, int, int, str, int]) -> None:
    found = launched_rank(environment)
    shown = (found.launcher, found.rank, found.world_size, found.local_rank, found.master_addr, found.master_port)
    assert shown == expected


def test_torchrun_serves_the_store_for_each_attempt() -> None:
    own = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert not launched_rank(own).agent_store
    agent = {**own, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert launched_rank(agent).agent_store
    assert launched_rank(agent).prefix == "preflight/2"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no launcher sets the rank of this process"),
        ({"RANK": "0"}, "no launcher sets the rank of this process"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not a rank of WORLD_SIZE=2"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK='a' is not a number"),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "MASTER_ADDR is not set, and torch does not set a rendezvous address for its 2 ranks",
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "x"}, "MASTER_PORT='x' is not a number"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "MASTER_ADDR is not set"),
    ],
)
def test_missing_variables_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(NotLaunched) as caught:
        launched_rank(environment)
    assert message in str(caught.value)


def test_every_launcher_names_its_source() -> None:
    assert all(launcher.source and launcher.rank and launcher.size for launcher in LAUNCHERS)


# The master's port, tested with plain sockets on loopback.


def test_open_port_is_dialled_with_its_source_address() -> None:
    with rendezvous.listen(0) as listener:
        outcome = rendezvous.dial("127.0.0.1", listener.getsockname()[1])
    assert (outcome.result, outcome.address, outcome.source) == ("open", "127.0.0.1", "127.0.0.1")


def test_port_in_use_is_reported_with_its_number() -> None:
    with rendezvous.listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on port {port}: Address already in use") as raised:
            rendezvous.listen(port)
    assert raised.value.errno == errno.EADDRINUSE


def test_refused_and_unresolved_are_distinguished(free_port: int) -> None:
    refused = rendezvous.dial("127.0.0.1", free_port)
    assert (refused.result, str(free_port) in refused.error) == ("refused", True)
    assert rendezvous.dial("no-such-node.invalid", 1).result == "unresolved"
    assert rendezvous.dial("a" * 300, 1).result == "unresolved"


def test_a_silent_address_times_out() -> None:
    with socket.socket() as full:
        # A listener whose queue is full does not answer another SYN.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        outcome = rendezvous.dial("127.0.0.1", address[1], timeout_s=0.2)
        for one in waiting:
            one.close()
    assert outcome.result == "timed-out"


def test_dialling_continues_and_reports_each_change_once(free_port: int) -> None:
    told: list[str] = []
    pauses = 0
    listeners: list[socket.socket] = []

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            listeners.append(rendezvous.listen(free_port))

    outcome = rendezvous.dial_until(
        "127.0.0.1", free_port, timeout_s=30, on_dialled=lambda dialled: told.append(dialled.result), pause=pause
    )
    listeners[0].close()
    assert (outcome.result, told, pauses) == ("open", ["refused", "open"], 3)


# Ranks of horovodrun meet over its own store of keys.


class _Store(BaseHTTPRequestHandler):
    """What horovodrun serves: PUT and GET of one value for each path."""

    values: dict[str, bytes]

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(200 if value is not None else 404)
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def horovod_environment() -> Iterator[dict[str, str]]:
    """The variables of a process of horovodrun, whose store runs until the end of the test."""
    handler = type("Store", (_Store,), {"values": {}})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        yield {"HOROVOD_GLOO_RENDEZVOUS_ADDR": str(host), "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        server.shutdown()


def ranked(environment: dict[str, str], rank: int) -> dict[str, str]:
    return {**environment, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "2"}


def test_rank_0_leaves_its_address_for_the_others(horovod_environment: dict[str, str]) -> None:
    assert is_served(horovod_environment) and not is_served({})
    first = launched_rank(ranked(horovod_environment, 0))
    assert first.master_addr == "127.0.0.1" and first.master_port > 0
    for rank in (1, 3):
        other = launched_rank(ranked(horovod_environment, rank))
        assert (other.rank, other.master_addr, other.master_port) == (rank, first.master_addr, first.master_port)


def test_a_rank_0_that_never_comes_and_a_store_that_is_gone_are_named(horovod_environment: dict[str, str]) -> None:
    with pytest.raises(NoMaster, match=r"rank 0 stored no address in horovodrun's store at .* within 0.3 s"):
        master(horovod_environment, 1, wait_s=0.3)
    gone = {**horovod_environment, "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    with pytest.raises(NotLaunched, match="does not respond"):
        launched_rank(ranked(gone, 1))


def test_an_address_that_the_job_exports_comes_first(horovod_environment: dict[str, str]) -> None:
    given = launched_rank({**ranked(horovod_environment, 1), "MASTER_ADDR": "n1", "MASTER_PORT": "4000"})
    assert (given.master_addr, given.master_port) == ("n1", 4000)


# Ranks that a program starts by itself: their variables, their exit codes, and one that does not end.


PROGRAM = """
import os, sys, time
rank = int(os.environ["RANK"])
print(rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.environ["PREFLIGHT_SPAWNED"], flush=True)
if "hang" in sys.argv and rank == 1:
    time.sleep(60)
sys.exit("fail" in sys.argv and rank == 2)
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The handlers that a run sets are those of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def test_every_rank_gets_its_variables(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher_environment.run(3, [program], 60.0) == 0
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "0 0 3 1", "1 1 3 1", "2 2 3 1"]


def test_the_failure_of_one_rank_is_that_of_all(program: str) -> None:
    assert launcher_environment.run(3, [program, "fail"], 60.0) == 1


def test_a_rank_that_does_not_end_is_named(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_environment, "_GRACE_S", 0.5)
    with pytest.raises(launcher_environment.NoRanks, match=r"rank 1 did not end on its own at its deadline of 2 s"):
        launcher_environment.run(2, [program, "hang"], 2.0)


# The transport record of a rank: counters on one rank per node, NCCL's log from memory.


SENT = 1 << 20


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")


def exchange() -> None:
    """Send a megabyte over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        accepted, _ = server.accept()
        with accepted:
            received = 0
            for _ in range(SENT // 4096):
                out.sendall(bytes(4096))
                received += len(accepted.recv(4096, socket.MSG_WAITALL))
    assert received == SENT


def test_one_rank_per_node_counts_card_traffic() -> None:
    first, second = TransportWatcher(), TransportWatcher()
    for watcher in (first, second):
        watcher.listen("gloo")
        watcher.begin(counts=watcher is first)
    exchange()
    for watcher in (first, second):
        watcher.end()
    found = first.result(77)
    assert found.counted and found.crossing_bytes == 77 and found.nccl == NcclConnections()
    assert all(count >= SENT for count in found.carried.interfaces["lo"])
    assert second.result(77) == Transport(crossing_bytes=77)


def test_no_counts_without_a_measurement() -> None:
    watcher = TransportWatcher()
    watcher.begin(counts=True)
    assert watcher.result(0) == Transport()


def test_nccl_log_is_kept_and_its_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = TransportWatcher()
    watcher.print_warnings()
    watcher.listen("nccl")
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as log:
        log.write("NCCL version 2.27.5+cuda12.9\nx:1:1 [0] NCCL INFO Using network Socket\n")
        log.write("x:1:1 [0] socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n")
    assert watcher.result(0).nccl.network == "Socket"
    watcher.print_warnings()
    assert capsys.readouterr().err == "NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n"


def test_other_backends_write_no_log() -> None:
    TransportWatcher().listen("gloo")
    assert os.environ["NCCL_DEBUG_FILE"] == ""


# NCCL's log in the format of several versions, from public reports: network, devices, transports, warnings.


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
