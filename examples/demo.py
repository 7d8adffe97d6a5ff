"""The demo: bring up a small cluster on this machine, check a good job to `go` and broken ones to `no-go`.

Where the machine allows network namespaces (Linux, root), the nodes are virtual: each with its own host name,
interfaces and sshd. Elsewhere they are plain local processes. It prints which of the two it uses. Exits with 0 if every
verdict is the expected one.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from tests.cluster import Cluster, faults, needs  # noqa: E402

JOBS = HERE / "torchrun-two-nodes"
#: A run of the demo that takes longer than this is stuck.
DEADLINE_S = 300.0

Run = Callable[[Sequence[str]], int]


def main() -> int:
    """Run all scenes; return 1 if any verdict was unexpected."""
    reasons = ["--local was given"] if "--local" in sys.argv[1:] else needs()
    if reasons:
        print("The nodes of this demo are two local processes; virtual nodes were not used because:")
        for reason in reasons:
            print(f"  - {reason}")
        with tempfile.TemporaryDirectory(prefix="preflight-demo-") as folder:
            return _scenes(_in_this_process, ["--on", "local"], None, _for_this_machine(Path(folder)))
    print("The nodes of this demo are virtual: network namespaces with their own sshd, node1 and node2.")
    with Cluster(2) as cluster:

        def in_head(arguments: Sequence[str]) -> int:
            process = cluster.head.popen(list(arguments), cwd=str(ROOT), stdin=None, stdout=None, stderr=None)
            return process.wait(timeout=DEADLINE_S)

        return _scenes(in_head, ["--hosts", "node1,node2"], cluster, JOBS)


def _for_this_machine(folder: Path) -> Path:
    """The same jobs in `folder`, with this machine's address and interface instead of the nodes'."""
    interface, address = _own_address()
    for job in ("good", "broken"):
        shutil.copytree(JOBS / job, folder / job)
        script = folder / job / "run.sh"
        script.write_text(script.read_text().replace("=node1", f"={address}").replace("=eth0", f"={interface}"))
    return folder


def _own_address() -> tuple[str, str]:
    """An interface of this machine that is up, and its IPv4 address; loopback only if there is no other."""
    up = psutil.net_if_stats()
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up and up[name].isup
    ]
    return min(found, key=lambda pair: pair[1].startswith("127."), default=("lo", "127.0.0.1"))


def _scenes(run: Run, where: Sequence[str], cluster: Cluster | None, jobs: Path) -> int:
    check = [sys.executable, "-m", "preflight", "check"]
    told = ["--trust-job", "--python", sys.executable, *where]
    unexpected = 0
    unexpected += _scene(
        "A good job: two nodes, torchrun, a short real training run",
        [*check, str(jobs / "good" / "run.sh"), *told],
        run,
        expected=0,
    )
    unexpected += _scene(
        "The same job with faults in its files",
        [*check, str(jobs / "broken" / "run.sh"), *told],
        run,
        expected=1,
    )
    if cluster is not None:
        with faults.drop_port(cluster.node("node1"), 29500):
            unexpected += _scene(
                "The good job again, while a firewall on node1 drops the master port",
                [*check, str(jobs / "good" / "run.sh"), *told],
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


def _in_this_process(arguments: Sequence[str]) -> int:
    return subprocess.run(list(arguments), cwd=ROOT, timeout=DEADLINE_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
