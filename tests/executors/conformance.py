"""The behaviour that all executors share, tested for real: a test module subclasses `Conformance` and provides `world`.

    class TestSsh(Conformance):
        @pytest.fixture(scope="class")
        @classmethod
        def world(cls, cluster: Cluster) -> Iterator[World]: ...

A world is a head, nodes that the executor reaches from it, and ways to break one of them. `unsupported` names the tests
that a world cannot run, with the reason; they are skipped.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.agent import bootstrap
from tests.cluster import Cluster, Node, NodeProcess
from tests.executors.trial import HOSTILE
from tests.processes import network_of, pids_where
from tests.waiting import scaled, until

ROOT = Path(__file__).parents[2]
PATHS = ":".join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules", ROOT / "tests/agent"))
#: How long processes of a run may outlive their head.
GONE_WITHIN_S = 5.0
#: A trial that takes longer hangs.
HARD_LIMIT_S = 60.0
#: An agent and all its forks carry the loader on their command line.
_LOADER = bootstrap.packed_loader()


@dataclass(frozen=True)
class Broken:
    """A broken node (empty: any one of them), and what its record must contain.

    `arguments` are extra arguments of the trial, `kinds` the accepted kinds, `words` the expected parts of the problem.
    """

    node: str = ""
    arguments: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


Break = Callable[[], AbstractContextManager[Broken]]


@dataclass(frozen=True)
class World:
    """An environment in which an executor is tested.

    Args:
        head: where the program runs. `nodes` are the names it must reach, in order, each with its host name.
        arguments: `--on` and its options; `environment` is that of the head's program.
        noisy, without_python, old_python, silent, failing: context managers that break one node in this manner.
        unsupported: test name -> why it cannot run here.
    """

    cluster: Cluster
    head: Node
    nodes: Mapping[str, str]
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    noisy: Break | None = None
    without_python: Break | None = None
    old_python: Break | None = None
    silent: Break | None = None
    failing: Break | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)

    def start(self, what: str, *arguments: str) -> NodeProcess:
        """Start a trial on the head."""
        command = [sys.executable, "-m", "tests.executors.trial", what, *self.arguments, *arguments]
        environment = {"PYTHONPATH": PATHS, **self.environment}
        return self.head.popen(command, env=environment, cwd=str(ROOT), stdin=subprocess.PIPE)

    def trial(self, what: str, *arguments: str) -> dict[str, Any]:
        """Run a trial to its end; its output as one mapping."""
        process = self.start(what, *arguments)
        try:
            output, errors = process.communicate(timeout=HARD_LIMIT_S)
        except BaseException:
            process.kill_session()
            raise
        assert process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return _merged(output)

    def leftovers(self, run: str = "") -> dict[int, str]:
        """Every process of preflight on any node or the head: agents, and processes with the variable of this run."""
        return {**self._find_processes(lambda process: _LOADER in " ".join(process.cmdline())), **self.ranks(run)}

    def ranks(self, run: str) -> dict[int, str]:
        """Every process on any node that has the variable of this run."""
        return self._find_processes(lambda process: process.environ().get("RUN") == run) if run else {}

    def _find_processes(self, ours: Callable[[psutil.Process], bool]) -> dict[int, str]:
        """The command lines, by pid, of the cluster's processes that are `ours`."""
        here = {network_of(node.pid) for node in (*self.cluster.nodes, self.cluster.head)}
        found: dict[int, str] = {}
        for pid in pids_where(lambda process: network_of(process.pid) in here and ours(process)):
            with suppress(psutil.NoSuchProcess):
                found[pid] = " ".join(psutil.Process(pid).cmdline())[:200]
        return found

    def wait_for_leftovers(self, deadline_s: float, run: str = "") -> dict[int, str]:
        """The processes left after at most `deadline_s`; returns early once there are none."""
        with suppress(TimeoutError):
            until(lambda: not self.leftovers(run), within_s=deadline_s)
        return self.leftovers(run)


def _merged(output: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in output.splitlines():
        said.update(json.loads(line))
    return said


class Conformance:
    """The suite. Each test covers one promise of `preflight.executors.base`."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls) -> Iterator[World]:
        """The environment; provided by a subclass."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _skip_unsupported(self, request: pytest.FixtureRequest, world: World) -> None:
        name = request.node.originalname
        if name in world.unsupported:
            pytest.skip(world.unsupported[name])

    def test_every_node_answers_under_its_own_name(self, world: World) -> None:
        said = world.trial("look")
        assert said["nodes"] == list(world.nodes)
        assert [(r["node"]["name"], r["problem"]) for r in said["records"]] == [(name, "") for name in world.nodes]
        assert {r["node"]["name"]: r["host"] for r in said["records"]} == dict(world.nodes)

    def test_a_megabyte_goes_both_ways(self, world: World) -> None:
        assert world.trial("look")["carried"] == dict.fromkeys(world.nodes, True)

    def test_noise_before_the_agent_is_skipped(self, world: World) -> None:
        assert world.noisy is not None
        with world.noisy() as broken:
            said = world.trial("look", *broken.arguments)
        assert [r["problem"] for r in said["records"]] == [""] * len(world.nodes)
        assert all(said["carried"].values())

    @pytest.mark.parametrize("fault", ["without_python", "old_python"])
    def test_node_without_a_usable_python_is_reported(self, world: World, fault: str) -> None:
        self._one_is_broken(world, getattr(world, fault))

    def test_deadline_holds_for_a_silent_node(self, world: World) -> None:
        said = self._one_is_broken(world, world.silent, "--deadline", f"{scaled(3.0):g}")
        (record,) = [record for record in said["records"] if record["problem"]]
        assert record["problem_kind"] == "timeout", record

    def test_failing_node_does_not_affect_others(self, world: World) -> None:
        self._one_is_broken(world, world.failing)

    def _one_is_broken(self, world: World, fault: Break | None, *arguments: str) -> dict[str, Any]:
        assert fault is not None
        with fault() as broken:
            said = world.trial("look", *broken.arguments, *arguments)
        problems = {r["node"]["name"]: r for r in said["records"] if r["problem"]}
        assert len(problems) == 1, said["records"]
        ((name, record),) = problems.items()
        assert broken.node in ("", name)
        assert record["problem_kind"] in broken.kinds, record
        assert all(word in record["problem"] for word in (name, *broken.words)), record
        assert said["carried"] == {other: True for other in world.nodes if other != name}
        return said

    def test_nothing_is_left_after_closing(self, world: World) -> None:
        world.trial("look")
        assert world.wait_for_leftovers(1.0) == {}

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGSTOP], ids=lambda n: n.name)
    def test_nothing_outlives_the_head(self, world: World, number: signal.Signals) -> None:
        run = f"conformance-{number.name}"
        with self._training(world, run) as head:
            head.send_signal(number)
            left = world.wait_for_leftovers(GONE_WITHIN_S, run)
            mine = _below(head) if number is signal.SIGSTOP else set()
            assert {pid: command for pid, command in left.items() if pid not in mine} == {}

    @contextmanager
    def _training(self, world: World, run: str) -> Iterator[NodeProcess]:
        """A head with a stubborn rank on every node, each with descendants that try to outlive it."""
        head = world.start("train", "--run", run)
        try:
            assert head.stdout is not None
            training: set[str] = set()
            while len(training) < len(world.nodes):
                line = head.stdout.readline()
                assert line and "answer" not in line, line
                training |= {json.loads(line)["training"]} if "training" in line else set()
            until(lambda: len(world.ranks(run)) >= 3 * len(world.nodes))
            yield head
        finally:
            head.kill_session()
            head.wait(timeout=10)

    def test_cancelling_silent_nodes_returns_at_once(self, world: World) -> None:
        assert world.silent is not None
        with world.silent() as broken:
            head = world.start("give-up", *broken.arguments)
            try:
                assert head.stdout is not None
                said: dict[str, Any] = {}
                while "gave_up_s" not in said:
                    line = head.stdout.readline()
                    assert line, "the trial ended"
                    said |= json.loads(line)
                assert "opened" not in said
                assert _below(head) == set()
            finally:
                head.kill_session()
                head.wait(timeout=10)

    def test_invalid_host_name_is_rejected(self, world: World) -> None:
        trap = "/run/trap"
        refused = world.trial("refuse", "--trap", trap)["refused"]
        assert len(refused) == len(HOSTILE)
        for name, (kind, message) in refused.items():
            assert kind == "denied", (name, kind, message)
            assert re.search(r"is not a valid (host|pod) name", message)
        for node in (*world.cluster.nodes, world.head):
            assert not list(node.path("/run").glob("trap*")), node


def _below(head: NodeProcess) -> set[int]:
    """The processes below the trial itself, which the machine sees below an `nsenter`."""
    from preflight.agent.process import children_of, descendants

    inner = children_of(head.pid)
    return set(descendants(inner[0])) if inner else set()


# --- breaking the Python of a virtual node, whatever reaches it ---


@contextmanager
def python_replaced(node: Node, script: str) -> Iterator[None]:
    """On this node `script` replaces every interpreter; `$REAL` in it is a working one."""
    from tests.cluster.namespace import base_environment

    folders = [Path(folder) for folder in base_environment()["PATH"].split(":")]
    tried = [folder / name for name in bootstrap.INTERPRETERS if "/" not in name for folder in folders]
    tried += [Path(name) for name in bootstrap.INTERPRETERS if "/" in name]
    covered = sorted({str(path.resolve()) for path in tried if path.exists()})
    place = "/run/replaced"
    node.must(["mkdir", "-p", f"{place}/real/bin"])
    home = Path(sys.base_prefix) / "bin"
    node.must(["cp", str(Path(sys.executable).resolve()), f"{place}/real/bin/python3"])
    node.write_text(f"{place}/real/pyvenv.cfg", f"home = {home}\n")
    node.write_text(f"{place}/python", f"#!/bin/sh\nREAL={place}/real/bin/python3\n{script}\n")
    node.must(["chmod", "755", f"{place}/python"])
    for path in covered:
        node.must(["mount", "--bind", f"{place}/python", path])
    try:
        yield
    finally:
        for path in covered:
            # Running interpreters keep the mount busy.
            node.must(["umount", "--lazy", path])
        node.must(["rm", "-r", place])


#: What the interpreter of a broken node does, and what its record must contain.
SCRIPTS: Mapping[str, tuple[str, Broken]] = {
    "noisy": ('echo "Welcome!"; echo preflight-; echo "quota: 93 %" >&2; exec "$REAL" "$@"', Broken()),
    "old_python": ("exit 97", Broken(kinds=("missing",), words=("Python",))),
    "silent": ("exec sleep 600", Broken(kinds=("timeout",))),
    "failing": ("echo the disk is on fire >&2; exit 3", Broken(kinds=("crashed",), words=("the disk is on fire",))),
}


def broken_python(node: Node, name: str, how: str, **more: Any) -> Break:
    """A context manager that breaks a node's Python; `name` is the node's name for the executor."""
    from dataclasses import replace

    script, broken = SCRIPTS[how]

    @contextmanager
    def inject() -> Iterator[Broken]:
        with python_replaced(node, script):
            yield replace(broken, node=name, **more)

    return inject


@contextmanager
def no_python(node: Node) -> Iterator[None]:
    """On this node no interpreter can be run."""
    with python_replaced(node, "exit 127"):
        yield


def without_python(node: Node, name: str) -> Break:
    """A context manager that leaves a node without any Python."""

    @contextmanager
    def inject() -> Iterator[Broken]:
        with no_python(node):
            yield Broken(name, kinds=("missing",), words=("no Python",))

    return inject


def python_faults(node: Node, name: str) -> dict[str, Break]:
    """All faults of one virtual node that are independent of the transport, as arguments of `World`."""
    ways = {how: broken_python(node, name, how) for how in SCRIPTS}
    return {**ways, "without_python": without_python(node, name)}


def names(nodes: Sequence[Node]) -> dict[str, str]:
    """Nodes whose names are their host names."""
    return {node.name: node.name for node in nodes}
