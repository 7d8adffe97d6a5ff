"""The gate is deterministic: none of its tests sleeps, looks at a clock or starts a server, but those listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.suite.effort import is_thorough

TESTS = Path(__file__).parents[1]
#: Calls by which a test depends on time or on a server.
_CALLS = {
    *("time.sleep", "time.monotonic", "time.time", "time.perf_counter", "time.process_time"),
    *("anyio.sleep", "asyncio.sleep", "socket.create_server", "subprocess.Popen"),
    *("http.server.HTTPServer", "http.server.ThreadingHTTPServer"),
    *("tests.cluster.Cluster", "tests.suite.measured.measured"),
}
#: Methods by which an object becomes a server, and fixtures that start several.
_METHODS = {"listen", "serve_forever"}
_FIXTURES = {"cluster", "gpu_cluster"}
#: Modules of the gate that do, and why a busy machine does not change their outcome.
ALLOWED = {
    "_util/test_budget.py": "spends processor time until the budget under test is spent",
    "agent/test_process.py": "looks at processes of its own, which wait for their standard input",
    "checks/probes/test_host.py": "gives files an age; looks at a process of its own that waits for its input",
    "checks/probes/test_links.py": "listens on loopback",
    "checks/probes/test_network.py": "takes ports of loopback, and listens there",
    "checks/probes/test_node_facts.py": "a task that hangs is what is tested",
    "cli/test_main.py": "interrupts commands after they have said that they wait",
    "commands/act/test_act.py": "virtual nodes for its thorough tests",
    "commands/test_pull_requests.py": "a stub of the service that takes comments, on loopback",
    "end_to_end/test_thin_slice.py": "the thin slice of the real thing",
    "hostile/test_limits.py": "measures what its thorough tests spend",
    "reference_trainer/collective/test_gpu_speed.py": "stands for the clock of a GPU",
    "reference_trainer/common/test_launch.py": "listens on loopback; a rendezvous server there",
    "reference_trainer/ps/test_pull_replies.py": "takes a port of loopback",
    "reference_trainer/ps/test_strangers.py": "strangers hold the connections of a server on loopback",
    "runner/test_observer.py": "gives the observer its clock; nodes measure in turn; an interrupt ends a wait",
    "services/admission/test_chart.py": "a stub of the API server on loopback",
}

#: Files of both tiers that sleep, and why an event cannot take its place.
SLEEPING = {
    "agent/shipped/probes.py": "probes that hang, and one that takes longer than its deadline",
    "agent/test_session.py": "the process of the head stands still, as if it were suspended",
    "checks/probes/test_host.py": "a snapshot grows old",
    "checks/probes/test_links.py": "a far end that takes bytes slowly, and one that answers late",
    "checks/probes/test_node_facts.py": "a task that hangs",
    "checks/probes/test_rdma.py": "a measurement that hangs",
    "cluster/faults/services.py": "a program that holds a lock until it is ended",
    "cluster/test_cluster.py": "a program that runs until it is ended",
    "cluster/test_faults.py": "a false clock must go on",
    "commands/as_launched/test_execution.py": "programs of the job: one waits for a step, one never ends",
    "commands/diagnose/hanging.py": "ranks that hang",
    "commands/diagnose/stalling.py": "ranks that hang",
    "end_to_end/test_run_faults.py": "a head or rank that is stopped for a while",
    "executors/test_bridge.py": "the far end of a bridge that is slow to answer, to start and to close",
    "reference_trainer/common/test_devices.py": "the clock under test tells sleep from starvation",
    "reference_trainer/common/test_launch.py": "a rank that hangs",
    "reference_trainer/ps/test_strangers.py": "a far end that sends byte by byte; strangers that hold connections",
    "runner/test_nodes.py": "a head that is busy or stuck for longer than a lease",
    "services/admission/test_server.py": "the server must not take up a certificate without its key",
    "services/test_http_protocol.py": "a far end that sends one byte at a time; a kept connection grows old",
    "sources/discovery/test_parallel.py": "a reader that hangs, and processes that must not end",
    "suite/alone.py": "waits for the lock of the machine",
    "waiting.py": "the one place that polls",
    "warm_python/test_warm_python.py": "a program that runs until it is ended",
}


def test_files_that_sleep_say_why() -> None:
    sleeping = re.compile(r"\btime\.sleep\b")
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and sleeping.search(path.read_text(encoding="utf-8"))
    }
    assert found == SLEEPING.keys(), "wait with tests.waiting, or say in SLEEPING why nothing else will do"


def test_modules_of_the_gate_depend_on_no_clock_and_no_server() -> None:
    found = {
        str(path.relative_to(TESTS)): sorted(set(calls_in_gate(path))) for path in sorted(TESTS.rglob("test_*.py"))
    }
    found = {name: calls for name, calls in found.items() if calls}
    new = {name: calls for name, calls in found.items() if name not in ALLOWED}
    assert not new, f"mark these tests `thorough`, wait with tests.waiting, or list them in ALLOWED: {new}"
    assert not ALLOWED.keys() - found.keys(), "these need not be listed any more"


def calls_in_gate(path: Path) -> Iterator[str]:
    """The calls of `_CALLS` in a module, outside of what is marked `thorough`."""
    if is_thorough(path):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    waiting: list[ast.AST] = list(tree.body)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    while waiting:
        node = waiting.pop()
        if any("thorough" in ast.unparse(mark).lower() for mark in getattr(node, "decorator_list", ())):
            continue
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if imported.get(name, name) in _CALLS or name.rpartition(".")[2] in _METHODS:
                yield imported.get(name, name)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from sorted({argument.arg for argument in node.args.args} & _FIXTURES)
        waiting.extend(ast.iter_child_nodes(node))


def test_the_search_finds_calls_and_leaves_thorough_ones_out(tmp_path: Path) -> None:
    module = tmp_path / "test_it.py"
    sleeps = "def test_it():\n    time.sleep(1)\n"
    for text, expected in (
        (sleeps, ["time.sleep"]),
        (f"@pytest.mark.thorough\n{sleeps}", []),
        (f"pytestmark = [pytest.mark.thorough, pytest.mark.timeout(9)]\n{sleeps}", []),
        (f"pytestmark = pytest.mark.timeout(9)\n{sleeps}", ["time.sleep"]),
        ("def test_it():\n    holder.listen()\n", ["holder.listen"]),
        ("def test_it(cluster):\n    assert cluster\n", ["cluster"]),
    ):
        module.write_text(text)
        assert list(calls_in_gate(module)) == expected, text
