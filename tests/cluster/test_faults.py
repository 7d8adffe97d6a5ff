"""Every fault has its effect, and is undone at its end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import faults
from .cluster import Cluster
from .devices import Gpu, Gpus, hcas
from .namespace import ClusterError
from .node import Node

pytestmark = pytest.mark.thorough

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=0.4)
    print("connected")
except Exception as error:
    print({"TimeoutError": "timed out", "ConnectionRefusedError": "refused"}.get(type(error).__name__, error))
"""
# Answers every connection with the number of bytes it was sent, once it has them all.
COUNT = """
import socket, threading
def serve(connection):
    connection.settimeout(3)
    wanted, seen = int(connection.recv(8)), 0
    try:
        while seen < wanted:
            seen += len(connection.recv(65536))
        connection.sendall(b"%d" % seen)
    except TimeoutError:
        pass
listener = socket.create_server(("0.0.0.0", 5001))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Counts datagrams until none has come for 0.3 s.
DATAGRAMS = """
import socket
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("0.0.0.0", 5002))
receiver.settimeout(5)
print("listening", flush=True)
seen = 0
try:
    while receiver.recv(100):
        seen += 1
        receiver.settimeout(0.3)
except TimeoutError:
    print(seen)
"""
SEND_DATAGRAMS = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(400):
    sender.sendto(b"x", (sys.argv[1], 5002))
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001), timeout=0.8)
start = time.monotonic()
try:
    connection.sendall(b"%08d" % int(sys.argv[2]) + bytes(int(sys.argv[2])))
    print("answered", int(connection.recv(16)), time.monotonic() - start)
except TimeoutError:
    print("stalled")
"""
NVML = """
import json, pynvml
try:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps({
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
        "names": [pynvml.nvmlDeviceGetName(h) for h in handles],
        "uuids": [pynvml.nvmlDeviceGetUUID(h) for h in handles],
        "total": [pynvml.nvmlDeviceGetMemoryInfo(h).total for h in handles],
        "capability": [pynvml.nvmlDeviceGetCudaComputeCapability(h) for h in handles],
        "bus": [pynvml.nvmlDeviceGetPciInfo(h).busId for h in handles],
        "ecc": [pynvml.nvmlDeviceGetTotalEccErrors(h, 1, 0) for h in handles],
    }))
except pynvml.NVMLError as error:
    print(json.dumps(type(error).__name__))
"""


def python(node: Node, program: str, *arguments: object) -> str:
    """The output of the program on the node."""
    done = node.run([sys.executable, "-I", "-S", "-c", program, *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def connect(origin: Node, target: str, port: int) -> str:
    """How a TCP connect ends: connected, refused, timed out, or the error."""
    return python(origin, CONNECT, target, port)


def ssh(cluster: Cluster, command: str, node: str = "node3") -> str:
    """The output of a command in an ssh session, with 1 s to connect."""
    done = cluster.head.run(["ssh", "-o", "ConnectTimeout=1", node, command])
    return done.stdout if done.returncode == 0 else done.stderr


@contextmanager
def counting(node: Node) -> Iterator[None]:
    """A server on port 5001 that returns the number of received bytes."""
    with node.popen([sys.executable, "-I", "-S", "-c", COUNT]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill_session()


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[dict[str, Node]]:
    """All nodes by name; afterwards the broken node must work again."""
    yield {node.name: node for node in [*cluster.nodes, cluster.head]}
    # A link that was down comes back with the kernel's own route: right, but without quickack.
    left = ssh(cluster, "hostname; nft list ruleset; ip route").replace("quickack 1 ", "")
    assert left == (
        "node3\n10.77.0.0/16 dev eth0 proto kernel scope link src 10.77.0.3 \n"
        "10.78.0.0/16 dev eth1 proto kernel scope link src 10.78.0.3 \n"
    )


def test_dropped_port_times_out_and_rejected_port_is_refused(nodes: dict[str, Node]) -> None:
    one, two, three = nodes["node1"], nodes["node2"], nodes["node3"]
    with faults.port_in_use(three, 29500):
        assert connect(one, "node3", 29500) == "connected"
        with faults.drop_port(three, 29500):
            assert connect(one, "node3", 29500) == "timed out"
            assert connect(three, "node3", 29500) == "connected"
            assert connect(one, "node3", 22) == "connected"
        with faults.reject_port(three, 29500):
            assert connect(one, "node3", 29500) == "refused"
        with faults.drop_port(three, 29500, source=one):
            assert connect(one, "node3", 29500) == "timed out"
            assert connect(two, "node3", 29500) == "connected"
        with faults.drop_port(one, 29500, direction="out"):
            assert connect(one, "node3", 29500) == "timed out"
            assert connect(two, "node3", 29500) == "connected"
        with faults.reject_port(one, 29500, direction="out"):
            assert connect(one, "node3", 29500) == "refused"
        assert connect(one, "node3", 29500) == "connected"
    assert connect(one, "node3", 29500) == "refused"


def test_only_some_ports_open(nodes: dict[str, Node]) -> None:
    with faults.port_in_use(nodes["node3"], 29500), faults.only_ports(nodes["node3"], [22, 29400]):
        assert connect(nodes["node1"], "node3", 29500) == "timed out"
        assert connect(nodes["node1"], "node3", 29400) == "refused"
        assert connect(nodes["node1"], "node3", 22) == "connected"
        assert connect(nodes["node3"], "node1", 22) == "connected"


def test_blocked_one_way_between_two_nodes(nodes: dict[str, Node]) -> None:
    with faults.drop_between(nodes["node3"], nodes["node2"]):
        assert connect(nodes["node3"], "node2", 22) == "timed out"
        assert connect(nodes["node3"], "node2-mgmt", 22) == "timed out"
        assert connect(nodes["node2"], "node3", 22) == "connected"
        assert connect(nodes["node3"], "node1", 22) == "connected"


def test_mtu_black_hole_stalls_bulk_and_nothing_else(nodes: dict[str, Node]) -> None:
    one, two, three = nodes["node1"], nodes["node2"], nodes["node3"]
    with counting(three), counting(two):
        with faults.mtu_black_hole(three):
            assert python(one, SEND, "node3", 500).startswith("answered 500 ")
            assert python(one, SEND, "node3", 100_000) == "stalled"
            assert python(three, SEND, "node2", 100_000) == "stalled"
            assert python(one, SEND, "node2", 1_000_000).startswith("answered 1000000 ")
            assert three.read_text("/sys/class/net/eth0/mtu") == "9000\n"
        assert python(one, SEND, "node3", 1_000_000).startswith("answered 1000000 ")
    assert three.read_text("/sys/class/net/eth0/mtu") == "1500\n"


def test_packet_loss_of_half(nodes: dict[str, Node]) -> None:
    with (
        faults.packet_loss(nodes["node3"], 50),
        nodes["node3"].popen([sys.executable, "-I", "-S", "-c", DATAGRAMS]) as receiver,
    ):
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        python(nodes["node1"], SEND_DATAGRAMS, "node3")
        assert 100 < int(receiver.stdout.read()) < 300  # ten standard deviations each way


def test_slow_link_slows(nodes: dict[str, Node]) -> None:
    with counting(nodes["node1"]):
        try:
            with faults.slow_link(nodes["node3"], 20):
                seconds = float(python(nodes["node3"], SEND, "node1", 1_000_000).split()[-1])
        except faults.FaultUnavailable as error:
            pytest.skip(str(error))
    assert 0.2 < seconds < 0.8  # 8 Mbit at 20 Mbit/s, less the first burst


def test_interface_renamed_or_of_another_mtu(nodes: dict[str, Node]) -> None:
    three = nodes["node3"]
    with faults.rename_interface(three, "eth0", "ens5"):
        assert three.path("/sys/class/net/ens5").exists()
        assert not three.path("/sys/class/net/eth0").exists()
        assert connect(nodes["node1"], "node3", 22) == "connected"
        assert connect(three, "node1", 22) == "connected"
    with faults.interface_mtu(three, "eth0", 1400):
        assert three.read_text("/sys/class/net/eth0/mtu") == "1400\n"


def test_link_down_unplugged_and_node_down(nodes: dict[str, Node]) -> None:
    one, three = nodes["node1"], nodes["node3"]
    with faults.link_down(three, "eth0"):
        assert connect(one, "node3", 22) == "timed out"
        assert connect(one, "node3-mgmt", 22) == "connected"
        assert "unreachable" in connect(three, "node1", 22)
    with faults.unplugged(three, "eth0"):
        assert three.read_text("/sys/class/net/eth0/carrier") == "0\n"
        assert connect(one, "node3", 22) == "timed out"
    with faults.node_down(three):
        assert connect(one, "node3", 22) == "timed out"
        assert connect(one, "node3-mgmt", 22) == "timed out"


def test_sshd_stopped_is_refused_and_frozen_is_accepted(cluster: Cluster, nodes: dict[str, Node]) -> None:
    with faults.sshd_stopped(nodes["node3"]):
        assert "Connection refused" in ssh(cluster, "true")
    with faults.sshd_frozen(nodes["node3"]):
        assert connect(nodes["head"], "node3", 22) == "connected"
        assert "timed out during banner exchange" in ssh(cluster, "true")


def test_names_resolve_wrongly_or_not_at_all(cluster: Cluster, nodes: dict[str, Node]) -> None:
    with faults.hosts_entry(nodes["node3"], "node3", "127.0.1.1"):
        assert ssh(cluster, "getent ahostsv4 node3").split()[0] == "127.0.1.1"
        assert ssh(cluster, "getent hosts node3", "node1").split()[0] == "10.77.0.3"
    with faults.hosts_missing(nodes["node3"], "node1"):
        assert ssh(cluster, "getent hosts node1; echo $?") == "2\n"
    assert ssh(cluster, "getent hosts node1").split()[0] == "10.77.0.1"


def test_limits_noise_and_clock_in_sessions(cluster: Cluster, nodes: dict[str, Node]) -> None:
    three = nodes["node3"]
    usual = ssh(cluster, "ulimit -Sn; ulimit -Sl")
    with faults.low_limits(three, nofile=64, memlock=65536):
        assert ssh(cluster, "ulimit -Sn; ulimit -Sl") == "64\n64\n"
    assert ssh(cluster, "ulimit -Sn; ulimit -Sl") == usual
    with faults.login_noise(three, "Welcome to 'node3'!"):
        assert ssh(cluster, "echo it") == "Welcome to 'node3'!\nit\n"
    with faults.clock_offset(three, 300):
        program = "import time; a = time.monotonic(); time.sleep(0.05); print(time.time(), time.monotonic() - a)"
        shown, slept = map(float, ssh(cluster, f"python3 -c '{program}'").split())
        assert 299 < shown - time.time() < 301
        assert 0.04 < slept < 1
        assert 299 < float(ssh(cluster, "date +%s")) - time.time() < 301
    assert abs(float(ssh(cluster, "date +%s")) - time.time()) < 2


def test_control_groups_limit_sessions_and_are_removed(cluster: Cluster, nodes: dict[str, Node]) -> None:
    held = {
        "cpu:": faults.cpu_quota(cluster.node("node3"), 0.2),
        "cpuset:": faults.cpu_set(cluster.node("node3"), "0"),
        "pids:": faults.process_limit(cluster.node("node3"), 100),
        "memory:": faults.memory_limit(cluster.node("node3"), 2**28),
    }
    usual = nodes["head"].must(["ssh", "node3", "cat", "/proc/self/cgroup"])
    for controller, fault in held.items():
        with fault:
            lines = nodes["head"].must(["ssh", "node3", "cat", "/proc/self/cgroup"]).splitlines()
            assert [line for line in lines if "fault-node3" in line and controller in line], lines
            assert "fault-" not in nodes["head"].must(["ssh", "node2", "cat", "/proc/self/cgroup"])
    assert nodes["head"].must(["ssh", "node3", "cat", "/proc/self/cgroup"]) == usual
    # The groups belong to the machine: another cluster may have a node3 with its own.
    assert not list(Path("/sys/fs/cgroup").glob(f"*/fault-node3-{cluster.node('node3').pid}-*"))


def test_port_in_use(nodes: dict[str, Node]) -> None:
    with faults.port_in_use(nodes["node3"], 29500):
        bind = "import socket\ntry: socket.create_server(('', 29500))\nexcept OSError as e: print(e.errno)"
        assert python(nodes["node3"], bind) == "98"
        assert python(nodes["node1"], bind) == ""
        with pytest.raises(ClusterError, match="in use"), faults.port_in_use(nodes["node3"], 29500):
            pass


def test_files_differ_on_only_one_node(nodes: dict[str, Node]) -> None:
    two, three = nodes["node2"], nodes["node3"]
    shared = str(Path(__file__).with_name("packages.txt"))
    before = Path(shared).read_bytes()
    with faults.missing_file(three, shared):
        assert not three.path(shared).exists()
        assert two.path(shared).exists()
    with faults.file_content(three, shared, "changed"):
        assert three.read_text(shared) == "changed"
        assert Path(shared).read_bytes() == before
    for node in (two, three):
        node.write_text("/srv/data/shard-0", node.name)
    with faults.missing_file(three, "/srv/data/shard-0"):
        assert three.run(["ls", "/srv/data"]).stdout == ""
        assert two.run(["ls", "/srv/data"]).stdout == "shard-0\n"
    assert three.read_text("/srv/data/shard-0") == "node3"


def test_small_shm_and_full_disk(nodes: dict[str, Node]) -> None:
    three = nodes["node3"]
    write = ["dd", "if=/dev/zero", "of=/dev/shm/x", "bs=65536", "count=32"]
    with faults.small_shm(three, 2**20):
        assert "No space left" in three.run(write).stderr
    assert three.run(write).returncode == 0
    with faults.full_disk(three, "/srv"):
        assert "No space left" in three.run(["sh", "-c", "dd if=/dev/zero of=/srv/data/y bs=512 count=1"]).stderr
    assert three.run(["sh", "-c", "dd if=/dev/zero of=/srv/data/y bs=512 count=1"]).returncode == 0


def test_gpus_are_what_their_configuration_says(gpu_cluster: Cluster) -> None:
    def nvml(node: str) -> object:
        return json.loads(ssh(gpu_cluster, f"python3 -c '{NVML}'", node))

    if gpu_cluster.head.run([sys.executable, "-c", "import pynvml"]).returncode != 0:
        pytest.skip("the distribution nvidia-ml-py is not installed")
    usual, other, three = nvml("node3"), nvml("node1"), gpu_cluster.node("node3")
    assert isinstance(usual, dict) and isinstance(other, dict)
    assert (usual["driver"], usual["cuda"]) == ("535.183.01", 12020)
    assert usual["names"] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert usual["bus"] == ["00000000:10:00.0", "00000000:11:00.0"]
    assert usual["capability"] == [[8, 0], [8, 0]]
    assert len({*usual["uuids"], *other["uuids"]}) == 4
    with faults.driver_version(three, "470.57.02", cuda=11040):
        assert nvml("node3") == usual | {"driver": "470.57.02", "cuda": 11040}
        assert nvml("node1") == other
    with faults.gpu_config(three, Gpus((Gpu(name="Tesla V100", more={"ecc_uncorrected": 3}),))):
        changed = nvml("node3")
        assert isinstance(changed, dict)
        assert (changed["names"], changed["ecc"]) == (["Tesla V100"], [3])
    with faults.gpu_config(three, Gpus()):
        assert nvml("node3") == {**{key: [] for key in usual}, "driver": "535.183.01", "cuda": 12020}
    with faults.gpu_config(three, Gpus(init_error=18)):
        assert nvml("node3") == "NVMLError_LibRmVersionMismatch"
    with faults.gpu_lost(three, 1):
        assert nvml("node3") == "NVMLError_GpuIsLost"
    with faults.nvml_absent(three):
        assert nvml("node3") == "NVMLError_LibraryNotFound"
    assert nvml("node3") == usual


def test_gpu_faults_need_gpus(cluster: Cluster) -> None:
    with (
        pytest.raises(faults.FaultUnavailable, match="gpus=2"),
        faults.driver_version(cluster.node("node1"), "470.57.02"),
    ):
        pass


def test_fault_is_undone_after_an_exception(nodes: dict[str, Node]) -> None:
    with pytest.raises(subprocess.TimeoutExpired), faults.drop_port(nodes["node3"], 22):
        nodes["head"].run(["ssh", "node3", "true"], timeout=0.2)
    assert connect(nodes["head"], "node3", 22) == "connected"


def test_folders_that_are_full_closed_read_only_or_hung(cluster: Cluster, nodes: dict[str, Node]) -> None:
    three, data = nodes["node3"], "/srv/data"
    three.write_text(f"{data}/file", "text")

    def output_of(command: str) -> str:
        return three.run(["sh", "-c", f"timeout 1 {command} 2>&1; echo $?"]).stdout

    with faults.read_only(three, data):
        assert "Read-only" in output_of(f"touch {data}/new")
    with faults.no_inodes(three, "/srv/few"):
        assert "No space left" in output_of("touch /srv/few/new")
    with faults.small_disk(three, "/srv/small", 65536):
        assert output_of("df --output=size -B1 /srv/small").split()[1] == "65536"
    with faults.hung_mount(three, "/srv/hung"):
        assert output_of("ls /srv/hung").strip() == "124"
    assert output_of("ls /srv/hung").strip() == "0"
    with faults.dangling_link(three, f"{data}/file"):
        assert "No such file" in output_of(f"cat {data}/file")
    with faults.folder_instead(three, f"{data}/file"):
        assert "Is a directory" in output_of(f"cat {data}/file")
    with faults.closed_file(three, f"{data}/file"):
        assert output_of(f"stat -c %a {data}/file").split()[0] == "0"
    assert output_of(f"cat {data}/file") == "text0\n"


def test_kernel_file_differs_on_one_node(cluster: Cluster) -> None:
    node, other = cluster.node("node1"), cluster.node("node2")
    path = "/sys/class/net/eth0/speed"
    before = node.must(["cat", path])
    with faults.kernel_file(node, path, "1000\n"):
        assert node.must(["cat", path]) == "1000\n" and other.must(["cat", path]) == before
    assert node.must(["cat", path]) == before
    with pytest.raises(faults.FaultUnavailable), faults.kernel_file(node, "/proc/sys/net/no-such-thing", ""):
        pass


def test_rdma_devices_are_visible_and_other_classes_remain(cluster: Cluster) -> None:
    node = cluster.node("node1")
    classes = node.must(["ls", "/sys/class"])
    memory = node.must(["stat", "-f", "-c", "%t", "/dev/shm"])
    with faults.rdma_devices([node], hcas(2)):
        assert node.must(["ls", "/sys/class/infiniband"]).split() == ["mlx5_0", "mlx5_1"]
        assert node.must(["ls", "/dev/infiniband"]).split() == ["uverbs0", "uverbs1"]
        assert node.must(["cat", "/sys/class/net/eth0/operstate"]) == "up\n"
        assert node.must(["stat", "-f", "-c", "%t", "/dev/shm"]) == memory
        assert set(node.must(["ls", "/sys/class"]).split()) >= set(classes.split())
    assert node.must(["ls", "/sys/class"]) == classes
    assert node.run(["test", "-e", "/dev/infiniband"]).returncode == 1
    assert node.must(["stat", "-f", "-c", "%t", "/dev/shm"]) == memory
    with faults.rdma_devices([node], hcas(1), opened=False):
        assert node.must(["ls", "/dev/infiniband"]) == ""


def test_extra_interfaces_and_addresses(cluster: Cluster) -> None:
    node = cluster.node("node1")
    before = node.must(["ip", "-br", "addr"]), node.must(["ip", "route"])
    with faults.extra_interface([node], "docker0", "172.17.0.1/16"):
        assert "172.17.0.1/16" in node.must(["ip", "-br", "addr", "show", "docker0"])
        assert node.read_text("/sys/class/net/docker0/carrier") == "1\n"
    with faults.extra_address(node, "eth1", "10.77.9.1/16"):
        assert "10.77.9.1/16" in node.must(["ip", "-br", "addr", "show", "eth1"])
    with faults.moved_address(node, "eth0", "10.99.0.1/24"):
        shown = node.must(["ip", "-br", "addr", "show", "eth0"])
        assert "10.99.0.1/24" in shown and "10.77." not in shown
    with faults.no_address(node, "eth0"):
        assert "10." not in node.must(["ip", "-br", "addr", "show", "eth0"])
    assert (node.must(["ip", "-br", "addr"]), node.must(["ip", "route"])) == before


def test_own_file_is_restored(cluster: Cluster) -> None:
    node = cluster.node("node1")
    before = node.read_text("/etc/resolv.conf")
    with faults.own_file(node, "/etc/resolv.conf", "nameserver 10.77.250.250\n"):
        assert node.must(["cat", "/etc/resolv.conf"]) == "nameserver 10.77.250.250\n"
    assert node.read_text("/etc/resolv.conf") == before
