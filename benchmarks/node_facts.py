"""Facts of many ssh nodes: `preflight check --until node` against `ansible -m setup` and pyinfra's facts.

`python -m benchmarks node_facts [NODES...]`, on virtual nodes of one machine (tests/cluster). Both peers are installed
into a separate folder (`$PREFLIGHT_PEERS`, or a temporary one) at the versions below. Ansible runs twice: as it comes
(five nodes at a time, each module copied to the node), and tuned as those who know it do (all nodes at once,
pipelining). Each contestant has a first round and a few more behind it. Both peers keep their connections
(ControlPersist) for those; of preflight that is only asked where the table says so (`--on-option keep=60`), for it logs
in anew otherwise. A virtual node has no processor of its own: what is compared is the work of head and nodes together,
as wall time and as CPU time of all of it.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.end_to_end.head_command import ROOT, THIS_CHECKOUT, give_shards, write_job

PEERS = ("ansible-core==2.19.14", "pyinfra==3.10.0")
#: pyinfra's facts that take no argument and report about a Linux host what `setup` also reports.
PYINFRA = (
    *(f"server.{name}" for name in ("Hostname", "Kernel", "KernelVersion", "Os", "OsRelease", "Arch", "Date", "Users")),
    *(f"server.{name}" for name in ("LinuxDistribution", "Mounts", "KernelModules", "Sysctl", "Groups", "Selinux")),
    *(f"hardware.{name}" for name in ("Cpus", "Memory", "BlockDevices", "NetworkDevices", "Ipv4Addrs", "Ipv6Addrs")),
)
COUNTS = (16, 64)
#: Rounds after the first; their medians count.
WARM_ROUNDS = 3
LIMIT_S = 600


@dataclass(frozen=True)
class Took:
    """One run: wall and processor seconds, and the number of values from each node."""

    wall_s: float
    cpu_s: float
    values: int


def main() -> int:
    """Print a table for each number of nodes."""
    counts = [int(word) for word in sys.argv[1:]] or COUNTS
    _enter_group()
    with tempfile.TemporaryDirectory(prefix="preflight-facts-") as folder:
        peers = Path(os.environ.get("PREFLIGHT_PEERS", f"{folder}/peers"))
        if not (peers / "bin" / "ansible").exists():
            venv.create(peers, with_pip=True)
            subprocess.run([peers / "bin" / "pip", "install", "-q", *PEERS], check=True)
        with tempfile.TemporaryDirectory(dir=ROOT, prefix=".node-facts-") as jobs:
            for count in counts:
                with Cluster(count) as cluster, tempfile.TemporaryDirectory(prefix="facts-", dir="/tmp") as sockets:
                    give_shards(cluster.nodes)
                    compare(cluster, count, Path(folder), Path(jobs), peers / "bin", sockets)
    return 0


def compare(cluster: Cluster, count: int, folder: Path, jobs: Path, peers: Path, sockets: str) -> None:
    """Run every contestant for some rounds, in turns; `sockets` is a folder with a short name."""

    def of_preflight(_: str) -> int:
        return _of_preflight(jobs / "saved.json", count)

    names = [node.name for node in cluster.nodes]
    inventory = folder / "inventory"
    inventory.write_text("".join(f"{name} ansible_python_interpreter={sys.executable}\n" for name in names))
    (folder / "inventory.py").write_text(f"hosts = {names!r}\n")
    job = write_job(jobs)
    job.write_text(job.read_text().replace("--nnodes=4", f"--nnodes={count}"))
    setup = [str(peers / "ansible"), "all", "-i", str(inventory), "-m", "setup"]
    check = [str(Path(sys.executable).with_name("preflight")), "check", str(job), "--hosts", ",".join(names)]
    check += ["--until", "node", "--save", str(jobs / "saved.json"), "--node-deadline", "60", "--open-deadline", "30"]
    contestants: dict[str, tuple[dict[str, str], list[str], Callable[[str], int]]] = {
        "ansible -m setup": ({"ANSIBLE_SSH_CONTROL_PATH_DIR": f"{sockets}/plain"}, setup, _of_ansible),
        "ansible -m setup, tuned": (
            {
                "ANSIBLE_FORKS": str(count),
                "ANSIBLE_PIPELINING": "True",
                "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{sockets}/tuned",
            },
            setup,
            _of_ansible,
        ),
        f"pyinfra, {len(PYINFRA)} facts": (
            {},
            [str(peers / "pyinfra"), str(folder / "inventory.py"), "fact", *PYINFRA],
            lambda text: _of_pyinfra(text, count),
        ),
        "preflight, node alone": (THIS_CHECKOUT, check, of_preflight),
        "preflight, kept connections": (
            {**THIS_CHECKOUT, "XDG_RUNTIME_DIR": sockets},
            [*check, "--on-option", "keep=60"],
            of_preflight,
        ),
        "preflight, job context too": (
            THIS_CHECKOUT,
            [*check, "--trust-job", "--python", sys.executable],
            of_preflight,
        ),
    }
    found: dict[str, list[Took]] = {name: [] for name in contestants}
    for name, (environment, command, values) in contestants.items():
        for _ in range(1 + WARM_ROUNDS):
            began, spent = time.perf_counter(), _busy_s()
            done = cluster.head.run(command, cwd=str(ROOT), timeout=LIMIT_S, env={**environment, "LC_ALL": "C.UTF-8"})
            wall_s, cpu_s = time.perf_counter() - began, _busy_s() - spent
            if done.returncode not in (0, 1, 3):
                raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-500:]}")
            # pyinfra writes its facts to standard error.
            found[name].append(Took(wall_s, cpu_s, values(done.stdout or done.stderr)))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nfacts of {count} nodes (load average at the end {load}; {os.cpu_count()} processors)")
    print(f"  {'':<29}{'cold s':>8}{'again s':>9}{'cpu s':>8}{'values':>8}{'ansible is':>13}{'again':>8}{'tuned':>8}")
    rounds = {name: (cold, _median(later)) for name, (cold, *later) in found.items()}
    plain, tuned = rounds["ansible -m setup"], rounds["ansible -m setup, tuned"]
    for name, (cold, again) in rounds.items():
        ratios = (plain[0].wall_s / cold.wall_s, plain[1].wall_s / again.wall_s, tuned[1].wall_s / again.wall_s)
        shown = "".join(f"{ratio:>{width}.1f} x" for ratio, width in zip(ratios, (11, 6, 6), strict=True))
        print(f"  {name:<29}{cold.wall_s:>8.2f}{again.wall_s:>9.2f}{again.cpu_s:>8.1f}{again.values:>8}{shown}")
    print(
        f"  again: median of {WARM_ROUNDS} rounds after the first; values: scalars brought from one node, on average;"
    )
    print("  ansible is: its time to this one, as it comes in the first round and again, and tuned again")


def _median(rounds: Sequence[Took]) -> Took:
    return Took(
        statistics.median(took.wall_s for took in rounds),
        statistics.median(took.cpu_s for took in rounds),
        rounds[-1].values,
    )


_GROUP = Path("/sys/fs/cgroup/cpuacct") / f"preflight-facts-{os.getpid()}"


def _enter_group() -> None:
    """Put this process and its future children into a control group that counts CPU time."""
    if _GROUP.parent.is_dir():
        _GROUP.mkdir(exist_ok=True)
        (_GROUP / "cgroup.procs").write_text(str(os.getpid()))


def _busy_s() -> float:
    """CPU seconds of the started processes; of the whole machine if they have no control group."""
    if (_GROUP / "cpuacct.usage").exists():
        return int((_GROUP / "cpuacct.usage").read_text()) / 1e9
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return (sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))) / os.sysconf("SC_CLK_TCK")


def _of_ansible(text: str) -> int:
    hosts = [json.loads("{" + part) for part in re.split(r"^\S+ \| SUCCESS => \{", text, flags=re.MULTILINE)[1:]]
    return sum(map(_scalars, hosts)) // max(1, len(hosts))


def _of_pyinfra(text: str, count: int) -> int:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    blocks = re.split(r"^--> Fact data for: .*$", plain, flags=re.MULTILINE)[1:]
    return sum(_scalars(json.loads(re.split(r"^-->", block, flags=re.MULTILINE)[0])) for block in blocks) // count


def _of_preflight(saved: Path, count: int) -> int:
    from preflight.model.recording_io import load

    recording = load(saved.read_bytes())
    return sum(_scalars(fact.value) for fact in recording.facts if fact.unavailable is None) // count


def _scalars(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_scalars, value.values()))
    return sum(map(_scalars, value)) if isinstance(value, list) else 1


if __name__ == "__main__":
    sys.exit(main())
