"""Workloads that xpk creates."""

from __future__ import annotations

import pytest

from preflight.model.job import Strength
from tests.sources.launchers.reading_lines import only, read, why


@pytest.mark.parametrize(
    ("device", "slices", "hosts"),
    [
        ("v6e-256", 1, 64),
        ("v6e-256", 2, 128),
        ("v6e-1", 1, 1),
        ("v6e-4", 1, 1),
        ("v5litepod-16", 1, 4),
        ("v5p-128", 1, 16),
        ("v4-8", 1, 1),
        ("tpu7x-4x4x8", 2, 64),
        ("tpu7x-8", 1, 1),
    ],
)
def test_hosts_of_slices(device: str, slices: int, hosts: int) -> None:
    found = read(
        f"python3 ~/xpk/xpk.py workload create --cluster=c --device-type={device} --num-slices={slices} \\\n"
        ' --workload=w --command="python3 -m MaxText.train base.yml steps=10"'
    )
    assert [launch.launcher for launch in found.launches] == ["xpk"]
    assert only(found, "nodes").alternatives == (hosts,)
    assert only(found, "processes_per_node").strength is Strength.DEFAULT


def test_a_slice_that_the_caller_names() -> None:
    found = read("xpk workload create --tpu-type $TPU_TYPE --num-slices 2 --workload w --command 'python x.py'")
    assert "$TPU_TYPE" in why(only(found, "nodes"))


def test_nodes_of_gpus() -> None:
    found = read("xpk workload create --device-type=h100-mega-80gb-8 --num-nodes=4 --command 'python x.py'")
    assert only(found, "nodes").alternatives == (4,)


def test_an_unknown_device_has_unknown_hosts() -> None:
    found = read("xpk workload create --device-type=b200-8 --command 'python x.py'")
    assert "b200-8" in why(only(found, "nodes"))


def test_a_launcher_in_the_command_is_the_launch() -> None:
    found = read(
        "xpk workload create --device-type=h100-80gb-8 --num-nodes=2"
        ' --command="torchrun --nnodes=2 --nproc_per_node=8 t.py"'
    )
    assert [launch.launcher for launch in found.launches] == ["torchrun"]


@pytest.mark.parametrize("line", ["xpk workload list --cluster c", "xpk cluster create --device-type=v6e-4", "xpk"])
def test_other_commands_start_nothing(line: str) -> None:
    assert read(line).launches == ()


def test_a_command_for_the_hosts_of_a_tpu() -> None:
    found = read("gcloud compute tpus tpu-vm ssh n --worker=all --command='torchrun --nproc_per_node=4 t.py'")
    assert [launch.launcher for launch in found.launches] == ["torchrun"]
