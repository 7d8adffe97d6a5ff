"""The demo: bring up a small cluster on this machine, check a good job to `go` and broken ones to `no-go`.

Where the machine allows network namespaces (Linux, root), the nodes are virtual: each with its own host name,
interfaces and sshd. Elsewhere they are plain local processes. Either way it says which. Exits 0 when every
verdict is the expected one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from tests.cluster import Cluster, faults, needs  # noqa: E402

GOOD = HERE / "torchrun-two-nodes" / "good"
BROKEN = HERE / "torchrun-two-nodes" / "broken"
#: A run of the demo that takes longer than this is stuck.
DEADLINE_S = 300.0

Run = Callable[[Sequence[str]], int]


def main() -> int:
    """Run all scenes; the number of unexpected verdicts is not the exit code, only whether there were any."""
    reasons = needs()
    if reasons:
        print("The nodes of this demo are local processes, because virtual nodes are not possible here:")
        for reason in reasons:
            print(f"  - {reason}")
        return _scenes(_here, ["--on", "local"], None)
    print("The nodes of this demo are virtual: network namespaces with their own sshd, node1 and node2.")
    with Cluster(2) as cluster:

        def in_head(arguments: Sequence[str]) -> int:
            process = cluster.head.popen(list(arguments), cwd=str(ROOT), stdin=None, stdout=None, stderr=None)
            return process.wait(timeout=DEADLINE_S)

        return _scenes(in_head, ["--hosts", "node1,node2"], cluster)


def _scenes(run: Run, where: Sequence[str], cluster: Cluster | None) -> int:
    check = [sys.executable, "-m", "preflight", "check"]
    told = ["--trust-job", "--python", sys.executable, *where]
    unexpected = 0
    unexpected += _scene(
        "A good job: two nodes, torchrun, a short real training run",
        [*check, str(GOOD / "run.sh"), *told],
        run,
        expected=0,
    )
    unexpected += _scene(
        "The same job with faults in its files",
        [*check, str(BROKEN / "run.sh"), *told],
        run,
        expected=1,
    )
    if cluster is not None:
        with faults.drop_port(cluster.node("node1"), 29500):
            unexpected += _scene(
                "The good job again, while a firewall on node1 drops the master port",
                [*check, str(GOOD / "run.sh"), *told],
                run,
                expected=1,
            )
    print()
    print("demo: every verdict was the expected one" if not unexpected else f"demo: {unexpected} unexpected verdicts")
    return 1 if unexpected else 0


def _scene(title: str, command: Sequence[str], run: Run, *, expected: int) -> int:
    shown = " ".join(_short(word) for word in command)
    print(f"\n=== {title}\n$ {shown}\n", flush=True)
    code = run(command)
    print(f"\nexit code {code}, expected {expected}", flush=True)
    return int(code != expected)


def _short(word: str) -> str:
    """A word of the command line as a person would type it."""
    if word == sys.executable:
        return "python"
    path = Path(word)
    return str(path.relative_to(ROOT)) if path.is_absolute() and ROOT in path.parents else word


def _here(arguments: Sequence[str]) -> int:
    return subprocess.run(list(arguments), cwd=ROOT, timeout=DEADLINE_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
