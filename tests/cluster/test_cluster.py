"""The virtual cluster itself: start, stop, private files of nodes, and an unchanged machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import until

from . import fixtures
from .cluster import Cluster
from .namespace import ClusterError
from .needs import needs

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def _possible() -> None:
    fixtures.require_virtual_nodes()


def test_ssh_reaches_every_node_by_name_address_and_management_name(cluster: Cluster) -> None:
    for node in cluster.nodes:
        for target in (node.name, node.data_address, f"{node.name}-mgmt"):
            done = cluster.head.run(["ssh", target, "hostname"])
            assert (done.stdout, done.stderr) == (f"{node.name}\n", "")


def test_nodes_reach_each_other_by_ssh(cluster: Cluster) -> None:
    assert cluster.node("node2").run(["ssh", "node3", "ssh", "head-mgmt", "true"]).returncode == 255
    assert cluster.node("node2").run(["ssh", "node3", "hostname"]).stdout == "node3\n"


def test_a_node_has_two_interfaces_on_two_networks(cluster: Cluster) -> None:
    said = cluster.head.run(["ssh", "node2", "ip -json address"])
    found = {
        link["ifname"]: [a["local"] for a in link["addr_info"] if a["family"] == "inet"]
        for link in json.loads(said.stdout)
    }
    assert found == {"lo": ["127.0.0.1"], "eth0": ["10.77.0.2"], "eth1": ["10.78.0.2"]}
    assert cluster.node("node2").read_text("/sys/class/net/eth0/operstate") == "up\n"


def test_files_written_by_a_node_are_private(cluster: Cluster) -> None:
    places = ["/tmp", "/run", "/dev/shm", "/srv/data", "/etc", "$HOME"]
    name = f"only-here-{os.getpid()}"
    written = cluster.head.run(["ssh", "node1", " && ".join(f"echo 1 >{place}/{name}" for place in places)])
    assert written.returncode == 0, written.stderr
    for node in (cluster.node("node1"), cluster.node("node2"), cluster.head):
        seen = node.run(["sh", "-c", f"ls {' '.join(f'{place}/{name}' for place in places)} 2>/dev/null | wc -l"])
        assert seen.stdout.strip() == ("6" if node.name == "node1" else "0")
    assert not [place for place in places[:-1] if Path(place, name).exists()]


def test_processes_and_python_on_a_node(cluster: Cluster) -> None:
    node = cluster.node("node1")
    assert node.run(["cat", "/proc/1/comm"]).stdout == "sleep\n"
    same = cluster.head.run(["ssh", "node1", "python3 -c 'import sys; print(sys.prefix)'"])
    assert same.stdout.strip() == sys.prefix


def test_run_reports_status_output_and_time_limit(cluster: Cluster) -> None:
    done = cluster.head.run(["sh", "-c", "cat; echo $WORD >&2; exit 7"], input="in", env={"WORD": "err"})
    assert (done.returncode, done.stdout, done.stderr) == (7, "in", "err\n")
    assert "PYTEST_CURRENT_TEST" not in cluster.head.run(["env"]).stdout
    spaces = {str(Path(f"/proc/{cluster.node('node1').pid}/ns/net").readlink())}
    before = _processes_in(spaces)
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.node("node1").run(["sh", "-c", "sleep 60; true"], timeout=0.2)
    # A killed process leaves the process table a moment later.
    until(lambda: _processes_in(spaces) == before)


def test_signals_reach_the_command_and_its_status_comes_back(cluster: Cluster) -> None:
    command = ["sh", "-c", "trap 'echo cleaned; exit 130' INT; echo ready; while :; do sleep 0.02; done"]
    with cluster.head.popen(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 130
        assert process.stdout.read() == "cleaned\n"


def test_sixteen_nodes_start() -> None:
    with Cluster(16) as cluster:
        assert cluster.head.run(["ssh", "node16", "hostname"]).stdout == "node16\n"


def test_a_thread_may_own_a_cluster() -> None:
    seen: list[str] = []

    def own() -> None:
        with Cluster(1, names=["gpu-a"]) as cluster:
            seen.append(cluster.head.run(["ssh", "gpu-a", "hostname"]).stdout)

    thread = threading.Thread(target=own)
    thread.start()
    thread.join(timeout=20)
    assert seen == ["gpu-a\n"]


def test_shared_folders_stay_visible_on_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    with Cluster(1, shared=[tmp_path]) as cluster:
        assert cluster.node("node1").run(["cat", f"{tmp_path}/train.py"]).stdout == "print('hello')"
    assert (tmp_path / "train.py").exists()


def test_invalid_arguments_are_rejected_at_once() -> None:
    with pytest.raises(ValueError, match="/run/data cannot be shared"):
        Cluster(1, shared=[Path("/run/data")])
    with pytest.raises(ValueError, match="'-oProxy' cannot be the host name"):
        Cluster(1, names=["-oProxy"])
    with pytest.raises(ValueError, match="different names"):
        Cluster(2, names=["a", "a"])


def test_failed_start_gives_the_reason_and_leaves_nothing() -> None:
    before = _machine()
    with pytest.raises(ClusterError, match="did not come up"), Cluster(2, mtu=12):
        pass
    assert _machine() == before


def test_machine_is_unchanged_during_and_after() -> None:
    before = _machine()
    with Cluster(3, gpus=1) as cluster:
        assert cluster.head.run(["ssh", "node3", "true"]).returncode == 0
        during = _machine()
    assert during == before
    assert _machine() == before


@pytest.mark.parametrize("in_thread", ["no", "yes"])
def test_nothing_is_left_two_seconds_after_the_owner_is_killed(in_thread: str) -> None:
    before = _machine()
    program = (
        "import threading, time\n"
        "from tests.cluster import Cluster\n"
        "def own():\n"
        "    with Cluster(8) as c:\n"
        "        c.node('node1').popen(['sleep', '600'])\n"
        "        print(c.fabric.pid, *(n.pid for n in [c.head, *c.nodes]), flush=True)\n"
        "        time.sleep(600)\n"
        f"threading.Thread(target=own).start() if {in_thread!r} == 'yes' else own()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 10
        spaces = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
        owner.kill()
        owner.wait(timeout=5)
    until(lambda: not _processes_in(spaces))
    assert _machine() == before


def test_impossible_cluster_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "needs", lambda: ["no namespaces today"])
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no namespaces today"):
        fixtures.require_virtual_nodes()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no namespaces today"):
        fixtures.require_virtual_nodes()


def test_needs_names_the_package_of_a_missing_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert "nft is missing (Debian package: nftables)" in needs()


def test_the_command_line_runs_in_the_head_and_keeps_the_status() -> None:
    command = ["-n", "2", "--fault", "hosts_missing:node2:node1", "--"]
    check = "ssh node1 getent hosts node2 && ssh node2 getent hosts node1; exit 3"
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster", *command, "sh", "-c", check],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (3, ["10.77.0.2", "node2"])


def _machine() -> dict[str, str]:
    """The state of this machine that a cluster could change."""
    commands = {
        "links": ["ip", "-brief", "link"],
        "addresses": ["ip", "-brief", "address"],
        "routes": ["ip", "route", "show", "table", "all"],
        "rules": ["nft", "list", "ruleset"],
        "namespaces": ["ip", "netns", "list"],
        "mounts": ["cat", "/proc/self/mountinfo"],
        "files": ["ls", "-la", "/srv", "/etc/hosts", "/etc/passwd", "/etc/resolv.conf", "/etc/ssh"],
        "home": ["ls", "-A", str(Path.home() / ".ssh")],
        "name": ["cat", "/proc/sys/kernel/hostname"],
    }
    seen = {}
    for key, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        seen[key] = done.stdout
    return seen


def _processes_in(network_namespaces: set[str]) -> list[str]:
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str((folder / "ns/net").readlink()) in network_namespaces:
                left.append(folder.name)
        except OSError:
            continue
    return left
