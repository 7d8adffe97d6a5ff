"""The real ssh client and real daemons on virtual nodes: nodes are reached, and each failure is explained."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from preflight.agent import bootstrap
from preflight.agent.process import descendants
from preflight.executors.base import ExecutorError
from preflight.executors.ssh import KeptFolder, PrivateFolder, explain, is_target
from tests.cluster import Cluster, Node, NodeProcess, faults
from tests.processes import network_of, pids_of_run
from tests.waiting import until

Look = Callable[..., Any]
#: A head with one stubborn rank on each node, as in tests/agent/test_session.py.
TRAIN = """
import sys
import anyio
from shipped import SHIPPED
from preflight.executors.ssh import SshExecutor
from preflight.runner.session import open_fleet
from tests.executors.trial import SHIPPED
from preflight.agent.wire import AgentRequest, Context
from preflight.model.recording import Node

async def main():
    nodes = [Node("node1", 0), Node("node2", 1)]
    async with open_fleet(SshExecutor(keep_s=int(sys.argv[2])), nodes, extra=SHIPPED) as fleet:
        running = []
        for session in fleet.sessions.values():
            def on_event(event, name=session.node.name):
                if event.origin == "child":
                    print("training", name, flush=True)
            context = Context(sys.executable, environment={"RUN": sys.argv[1]})
            request = AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, context)
            running.append(session.start(request, on_event))
        async def finish(one):
            print("answer", repr(await one.result()), flush=True)
        async with anyio.create_task_group() as group:
            for one in running:
                group.start_soon(finish, one)

anyio.run(main)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="sockets-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.thorough
def test_every_node_answers_and_no_process_remains(cluster: Cluster, look: Look) -> None:
    before = sorted(cluster.node("node1").path("/tmp").iterdir())
    seen = look("node1", "node2", "node3", "root@node4")
    assert [record["problem"] for record in seen["records"].values()] == [""] * 4
    assert [record["host"] for record in seen["records"].values()] == ["node1", "node2", "node3", "node4"]
    for record in seen["records"].values():
        assert abs(record["clock_offset_s"]) < 0.5
    assert seen["answers"]["node1"]["value"]["variable"] == "root"
    assert sorted(cluster.node("node1").path("/tmp").iterdir()) == before


@pytest.mark.thorough
def test_a_clock_that_is_ahead_is_measured(cluster: Cluster, look: Look) -> None:
    with faults.clock_offset(cluster.node("node2"), 300):
        seen = look("node1", "node2")
    assert abs(seen["records"]["node2"]["clock_offset_s"] - 300) < 0.5
    assert abs(seen["records"]["node1"]["clock_offset_s"]) < 0.5


@pytest.mark.thorough
def test_each_failure_is_explained(cluster: Cluster, look: Look) -> None:
    with ExitStack() as stack:
        stack.enter_context(faults.sshd_frozen(cluster.node("node1")))
        stack.enter_context(faults.sshd_stopped(cluster.node("node2")))
        stack.enter_context(faults.node_down(cluster.node("node3")))
        stack.enter_context(faults.login_noise(cluster.node("node4"), "Welcome!\npreflight-\nquota: 93 %"))
        seen = look("node1", "node2", "node3", "node4", "nosuch", "stranger@node4", "-oProxyCommand=true")
    problems = {name: (r["problem_kind"], r["problem"]) for name, r in seen["records"].items()}
    assert problems.pop("node4") == ("", "")
    expected = {
        "node1": ("timeout", "frozen or overloaded"),
        "node2": ("unreachable", "Connection refused"),
        "node3": ("timeout", "does not answer"),
        "nosuch": ("unreachable", "Could not resolve hostname nosuch"),
        "stranger@node4": ("denied", "Permission denied"),
        "-oProxyCommand=true": ("denied", "is not a valid host name"),
    }
    for name, (kind, words) in expected.items():
        assert problems[name][0] == kind and words in problems[name][1], problems[name]
        assert problems[name][1].startswith(f"{name}: ")


@pytest.mark.thorough
def test_link_that_drops_bulk_data_is_recognised(cluster: Cluster, look: Look) -> None:
    with faults.mtu_black_hole(cluster.node("node2")):
        records = look("node1", "node2")["records"]
    assert records["node1"]["problem"] == ""
    assert records["node2"]["problem_kind"] == "timeout"
    assert "bulk data stalls" in records["node2"]["problem"]


@pytest.mark.thorough
def test_unknown_host_key_is_not_accepted(cluster: Cluster, look: Look) -> None:
    path = cluster.head.path("/run/home/root/.ssh/known_hosts")
    kept = path.read_text()
    path.write_text("")
    try:
        record = look("node1")["records"]["node1"]
    finally:
        path.write_text(kept)
    assert record["problem_kind"] == "denied"
    assert "host key" in record["problem"] and "ssh node1 true" in record["problem"]


@pytest.mark.thorough
def test_node_without_python_lists_what_was_tried(cluster: Cluster, look: Look) -> None:
    node = cluster.node("node1")
    with _only_old_pythons(node):
        record = look("node1")["records"]["node1"]
    assert record["problem_kind"] == "missing", record
    assert "no Python >= 3.8 on node1: tried python3" in record["problem"]
    assert look("node1")["records"]["node1"]["problem"] == ""


@contextmanager
def _only_old_pythons(node: Node) -> Iterator[None]:
    """Every interpreter on the login shell's PATH answers the loader as Python 3.6 does."""
    bash = "/run/home/root/.bashrc"
    node.must(["sh", "-c", "mkdir -p /run/old; cp /bin/sh /run/old/sh"])
    places = [path for path in bootstrap.INTERPRETERS if path.startswith("/") and Path(path).exists()]
    covered = sorted({str(Path(path).resolve()) for path in places})
    for path in ("/run/old/python3", "/run/old/python"):
        node.write_text(path, "#!/bin/sh\nexit 97\n")
        node.must(["chmod", "755", path])
    node.write_text(bash, "export PATH=/run/old\n")
    for path in covered:
        node.must(["mount", "--bind", "/run/old/python3", path])
    try:
        yield
    finally:
        for path in covered:
            node.must(["umount", path])
        node.must(["rm", "-r", "/run/old", bash])


@pytest.mark.thorough
def test_master_connection_of_the_user_is_not_used(cluster: Cluster, look: Look) -> None:
    head, socket = cluster.head, "/run/mine"
    config = head.read_text("/run/home/root/.ssh/config")
    head.must(["ssh", "-o", "ControlPersist=yes", "-M", "-S", socket, "-N", "-f", "node1"])
    try:
        head.write_text("/run/home/root/.ssh/config", f"ControlPath {socket}\nControlMaster auto\n{config}")
        before = head.must(["ssh", "-O", "check", "node1"])
        assert look("node1")["records"]["node1"]["problem"] == ""
        assert head.must(["ssh", "-O", "check", "node1"]) == before
    finally:
        head.run(["ssh", "-S", socket, "-O", "exit", "node1"])
        head.write_text("/run/home/root/.ssh/config", config)


@pytest.mark.thorough
def test_keep_option_reuses_connections(cluster: Cluster, look: Look, short: Path) -> None:
    """A repeated run need not log in again; without the option each run logs in anew."""
    kept = {"KEEP": "4", "XDG_RUNTIME_DIR": str(short)}
    folder = short / f"preflight-kept-{os.getuid()}"
    assert look("node1", "node2", **kept)["records"]["node1"]["problem"] == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    sockets = list(folder.iterdir())
    assert len(sockets) == 2
    with faults.sshd_stopped(cluster.node("node1")):
        again = look("node1", "node2", **kept)
        assert [record["problem"] for record in again["records"].values()] == ["", ""]
        assert again["answers"]["node1"]["value"]["variable"] == "root"
        anew = look("node1", XDG_RUNTIME_DIR=str(short))
        assert "Connection refused" in anew["records"]["node1"]["problem"]
    until(lambda: not any(socket.exists() for socket in sockets))
    assert not list(folder.iterdir()), "each connection ends by itself"


@pytest.mark.thorough
def test_broken_kept_connection_is_replaced(cluster: Cluster, look: Look, short: Path) -> None:
    kept = {"KEEP": "30", "XDG_RUNTIME_DIR": str(short)}
    look("node1", **kept)
    (socket,) = (short / f"preflight-kept-{os.getuid()}").iterdir()
    try:
        # The owner of the other end was killed and did not remove the socket.
        cluster.head.must(["kill", "-KILL", _master(cluster, socket)])
        assert look("node1", **kept)["records"]["node1"]["problem"] == ""
    finally:
        cluster.head.run(["ssh", "-S", str(socket), "-O", "exit", "node1"])


def _master(cluster: Cluster, socket: Path) -> str:
    """The pid, on the head, of the process that holds a kept connection."""
    said = cluster.head.run(["ssh", "-S", str(socket), "-O", "check", "node1"]).stderr
    found = re.search(r"pid=(\d+)", said)
    assert found, said
    return found[1]


def test_shared_folder_is_not_used_for_sockets(short: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    monkeypatch.setattr("preflight.executors.ssh._bases", lambda: iter([str(short)]))
    mine = short / f"preflight-kept-{os.getuid()}"
    assert KeptFolder().path == mine == KeptFolder().path
    mine.chmod(0o750)
    with pytest.raises(ExecutorError, match=f"{mine} exists but is not a folder that only you can access"):
        KeptFolder()
    mine.rmdir()
    mine.symlink_to(short)
    with pytest.raises(ExecutorError, match="not a folder that only you can access"):
        KeptFolder()


@pytest.mark.parametrize("given", ["", "run", None])
def test_sockets_are_never_in_the_working_directory(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    folder = PrivateFolder()
    try:
        assert folder.path.parent == Path("/tmp")
    finally:
        folder.release()


@contextmanager
def _training(cluster: Cluster, environment: dict[str, str], run: str, keep_s: int = 0) -> Iterator[NodeProcess]:
    head = cluster.head.popen([sys.executable, "-c", TRAIN, run, str(keep_s)], env=environment)
    assert head.stdout is not None
    try:
        assert sorted(head.stdout.readline() for _ in range(2)) == ["training node1\n", "training node2\n"]
        until(lambda: len(pids_of_run(run)) >= 6)
        yield head
    finally:
        head.kill_session()
        head.wait(timeout=10)


@pytest.mark.thorough
@pytest.mark.parametrize("keep_s", [0, 20], ids=["anew", "kept"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGSTOP], ids=lambda n: n.name)
def test_nothing_outlives_the_head_on_any_node(
    cluster: Cluster, head_environment: dict[str, str], number: signal.Signals, keep_s: int, short: Path
) -> None:
    run = f"head-{number.name}-{keep_s}"
    with _training(cluster, {**head_environment, "XDG_RUNTIME_DIR": str(short)}, run, keep_s) as head:
        head.send_signal(number)
        until(lambda: not pids_of_run(run))


@pytest.mark.thorough
def test_the_folder_of_a_killed_run_is_removed_by_the_next(
    cluster: Cluster, head_environment: dict[str, str], look: Look
) -> None:
    with _training(cluster, head_environment, "killed") as head:
        mine = _control_folders(head)
        assert len(mine) == 1
        look("node3")
        assert all(folder.is_dir() for folder in mine)
        head.send_signal(signal.SIGKILL)
        head.wait(timeout=5)
    look("node3")
    assert not any(folder.exists() for folder in mine)


def _control_folders(head: NodeProcess) -> set[Path]:
    """The folders of the control sockets of a head's ssh processes. /tmp is the machine's, and others use it too."""
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in descendants(head.pid)]
    return {Path(path).parent for line in lines for path in re.findall(r"ControlPath=([^\0]+)", line)}


@pytest.mark.thorough
def test_cut_link_ends_the_rank_and_names_the_node(cluster: Cluster, head_environment: dict[str, str]) -> None:
    run = "cut"
    with _training(cluster, head_environment, run) as head, faults.node_down(cluster.node("node2")):
        assert head.stdout is not None
        network = network_of(cluster.node("node2").pid)

        def on_node2() -> list[int]:
            return [pid for pid in pids_of_run(run) if network_of(pid) == network]

        assert on_node2()
        until(lambda: not on_node2())
        assert len(pids_of_run(run)) >= 3, "node1 trains on"
        answer = head.stdout.readline()
        assert "kind='unreachable'" in answer and "node2 was lost" in answer


@pytest.mark.parametrize("text", ["node1", "me@node1", "m.e-1@10.0.0.1", "::1", "me@fe80::1"])
def test_valid_targets(text: str) -> None:
    assert is_target(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-v",
        "-oProxyCommand=x@y",
        "a b",
        "a;b",
        "$(x)",
        "@node1",
        "me@",
        "-me@node1",
        "a@b@c",
        "me@-v",
        "a/b",
    ],
)
def test_invalid_targets(text: str) -> None:
    assert not is_target(text)


@pytest.mark.parametrize("error", toml.beside(__file__, "errors.toml")["ssh"])
def test_ssh_errors_are_explained(error: dict[str, Any]) -> None:
    found = explain("n2", "me@n2", error.get("code"), error["words"], deadline_s=5)
    assert found.kind == error["kind"] and error["message"] in found.message, found.message
    assert "n2" in found.message
