"""Control groups of both versions, nested, in containers, and absent, in folders like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight_checks.probes.cgroups import Cgroups, cgroups, parse_mounts, unescaped


class Tree:
    """A made-up /proc/self and its hierarchies, below one folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.mounts: list[str] = ["21 1 8:1 / / rw - ext4 /dev/sda1 rw"]
        self.groups: list[str] = []

    def v2(self, group: str, *, root: str = "/") -> None:
        self.mounts.append(f"30 21 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
        self.groups.append(f"0::{group}")

    def v1(self, controllers: str, group: str, *, root: str = "/") -> None:
        self.mounts.append(f"33 31 0:30 {root} /sys/fs/cgroup/{controllers} rw - cgroup cgroup rw,{controllers}")
        self.groups.append(f"{len(self.groups) + 2}:{controllers}:{group}")

    def write(self, path: str, text: str) -> None:
        file = self.base / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def read(self) -> Cgroups:
        self.write("/proc/self/cgroup", "\n".join(self.groups))
        self.write("/proc/self/mountinfo", "\n".join(self.mounts))
        return cgroups(str(self.base / "proc"), str(self.base))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_tightest_of_all_groups_above_counts(tree: Tree) -> None:
    tree.v2("/kubepods.slice/pod1/box")
    tree.write("/sys/fs/cgroup/kubepods.slice/cpu.max", "6400000 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/cpu.max", "200000 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/cpu.stat", "usage_usec 9\nnr_periods 200\nnr_throttled 50")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/cpu.max", "max 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/memory.max", "34359738368")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/memory.current", "1000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/memory.max", "max")
    tree.write("/sys/fs/cgroup/kubepods.slice/pids.max", "1024")
    tree.write("/sys/fs/cgroup/kubepods.slice/pids.current", "77")
    seen = tree.read()
    assert seen.versions == "v2"
    assert seen.cpu_quota_cores == 2.0 and seen.cpu_quota_at.endswith("pod1") and seen.throttled == 0.25
    assert seen.memory_limit_bytes == 34359738368 and seen.memory_used_bytes == 1000
    assert seen.processes_limit == 1024 and seen.processes_used == 77


def test_version_1_and_its_unlimited_value(tree: Tree) -> None:
    tree.v1("cpu,cpuacct", "/slurm/job_1/step_0")
    tree.v1("memory", "/slurm/job_1/step_0")
    tree.v1("pids", "/slurm")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/step_0/cpu.cfs_quota_us", "-1")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us", "20000")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/step_0/memory.limit_in_bytes", "9223372036854771712")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "4096")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "1024")
    tree.write("/sys/fs/cgroup/pids/slurm/pids.max", "max")
    seen = tree.read()
    assert seen.versions == "v1" and seen.cpu_quota_cores == pytest.approx(0.2)
    assert seen.memory_limit_bytes == 4096 and seen.memory_used_bytes == 1024
    assert seen.processes_limit is None and seen.processes_limit_at == ""


def test_both_versions_side_by_side(tree: Tree) -> None:
    tree.v1("cpu", "/a")
    tree.v2("/b")
    tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000")
    tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/b/cpu.max", "300000 100000")
    seen = tree.read()
    assert seen.versions == "v1+v2" and seen.cpu_quota_cores == 3.0


def test_a_container_without_its_own_namespace_sees_the_mount(tree: Tree) -> None:
    tree.v1("memory", "/docker/abc", root="/docker/abc")
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2048")
    assert tree.read().memory_limit_bytes == 2048


def test_a_group_outside_the_mount_uses_the_mount_point(tree: Tree) -> None:
    tree.v2("/../../other")
    tree.write("/sys/fs/cgroup/memory.max", "512")
    tree.write("/other/memory.max", "1")
    assert tree.read().memory_limit_bytes == 512


def test_missing_groups_and_malformed_values_are_not_limits(tree: Tree) -> None:
    assert tree.read() == Cgroups()
    tree.v2("/x")
    tree.write("/sys/fs/cgroup/x/cpu.max", "lots")
    tree.write("/sys/fs/cgroup/x/memory.max", "")
    assert tree.read() == Cgroups("v2")


def test_blanks_in_mount_points() -> None:
    assert unescaped("/a\\040b") == "/a b"
    (mount,) = parse_mounts("1 2 0:1 / /a\\040b rw - cgroup2 none rw")
    assert mount.point == "/a b" and mount.controllers == ()


def test_this_machine_answers() -> None:
    assert cgroups().versions in ("", "v1", "v2", "v1+v2")
