"""The gate is deterministic: none of its tests sleeps, looks at a clock or starts a server, but those listed here."""

from __future__ import annotations

import ast
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
    "agent/test_procfs.py": "looks at processes of its own, which wait for their standard input",
    "checks/probes/test_free_ports.py": "takes ports of loopback",
    "checks/probes/test_isolated.py": "a task that hangs is what is tested",
    "checks/probes/test_leftovers.py": "gives files an age; looks at a process of its own that waits for its input",
    "checks/probes/test_link_quality.py": "listens on loopback",
    "checks/probes/test_links.py": "listens on loopback",
    "checks/probes/test_ports.py": "listens on loopback",
    "cli/test_main.py": "interrupts commands after they have said that they wait",
    "commands/test_comment.py": "a stub of the service that takes comments, on loopback",
    "end_to_end/test_thin_slice.py": "the thin slice of the real thing",
    "reference_trainer/collective/test_gpu_speed.py": "stands for the clock of a GPU",
    "reference_trainer/common/test_endpoint.py": "listens on loopback",
    "reference_trainer/common/test_horovod_rendezvous.py": "a rendezvous server on loopback",
    "reference_trainer/common/test_transport.py": "takes a port of loopback",
    "reference_trainer/ps/test_strangers.py": "strangers hold the connections of a server on loopback",
    "reference_trainer/ps/test_waits.py": "takes a port of loopback",
    "runner/test_observer.py": "gives the observer its clock; nodes that are asked at the same time",
    "runner/test_observer_links.py": "nodes that take part in one measurement at a time",
    "runner/test_preparation.py": "an interrupt ends a wait",
    "services/admission/test_cluster.py": "a stub of the API server on loopback",
}


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
