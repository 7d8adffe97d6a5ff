"""Nodes with limits, cores, clocks, disks or data that do not suit the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import JOB, SCRIPT

from .fault import Fault

__all__ = ["FAULTS"]

#: Two ranks on each node, each with loader workers, as most jobs have.
SEVERAL = JOB.replace("--nproc_per_node=1", "--nproc_per_node=2")
LOADING = SCRIPT + "\nfrom torch.utils.data import DataLoader\n\nloader = DataLoader([1, 2, 3], num_workers=2)\n"
#: A rendezvous that compares the clocks of nodes.
DYNAMIC = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=eth0
torchrun --nnodes=4 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=node1:29500 --rdzv_id=42 \\
    train.py --data-path /srv/data/shards
"""
#: A job that saves checkpoints of a hundred million parameters, sharded over the ranks.
SAVING = JOB.replace(
    "--data-path /srv/data/shards",
    "--data-path /srv/data/shards --model llama-0.1b --output_dir /srv/ckpt/run --deepspeed_config ds.json",
)
SAVING_SCRIPT = SCRIPT.replace(
    'parser.add_argument("--data-path")\n',
    "".join(
        f'parser.add_argument("{name}")\n'
        for name in ("--data-path", "--model", "--output_dir", "--deepspeed_config", "--resume_from", "--vocab-file")
    ),
)
ZERO = {"ds.json": '{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 1}\n'}
#: A job that resumes from a checkpoint.
RESUMING = JOB.replace("--data-path /srv/data/shards", "--data-path /srv/data/shards --resume_from /srv/ckpt/old")
#: Root can read everything; without these capabilities permissions apply to it as to other users.
AS_USER = "/srv/python-of-a-user"
_CAPABILITIES = "-dac_override,-dac_read_search"
UNPRIVILEGED = f"""\
#!/bin/sh
exec setpriv --bounding-set={_CAPABILITIES} --inh-caps={_CAPABILITIES} {sys.executable} "$@"
"""

MIB = 2**20
SHARD = "/srv/data/shards/part-00002"


@contextmanager
def together(*faults: AbstractContextManager[object]) -> Iterator[None]:
    """Several faults, or a fault and its precondition."""
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault)
        yield


@contextmanager
def shutdown_planned(cluster: Cluster, name: str) -> Iterator[None]:
    """The files of systemd on a node after `shutdown -r +60`."""
    path = "/run/systemd/shutdown/scheduled"
    at_us = int((time.time() + 3600) * 1e6)
    cluster.node(name).write_text(path, f"USEC={at_us}\nWARN_WALL=1\nMODE=reboot\n")
    try:
        yield
    finally:
        cluster.node(name).must(["rm", "-f", path])


@contextmanager
def tar_files(cluster: Cluster, count: int) -> Iterator[None]:
    """Create this number of tar files of webdataset on every node."""
    for node in cluster.nodes:
        for index in range(count):
            node.write_text(f"/srv/data/tars/{index:03}.tar", "tar" * 100)
    try:
        yield
    finally:
        for node in cluster.nodes:
            node.must(["rm", "-rf", "/srv/data/tars"])


@contextmanager
def vocabulary(cluster: Cluster) -> Iterator[None]:
    """Create the same vocabulary on every node."""
    for node in cluster.nodes:
        node.write_text("/srv/data/vocab.json", '{"a": 1}')
    try:
        yield
    finally:
        for node in cluster.nodes:
            node.must(["rm", "-f", "/srv/data/vocab.json"])


@contextmanager
def held_to_permissions(cluster: Cluster) -> Iterator[None]:
    """Every node gets an interpreter to which file permissions apply."""
    for node in cluster.nodes:
        node.write_text(AS_USER, UNPRIVILEGED)
        node.must(["chmod", "755", AS_USER])
    try:
        yield
    finally:
        for node in cluster.nodes:
            node.must(["rm", "-f", AS_USER])


@contextmanager
def checkpoint_of(cluster: Cluster, ranks: int, *, without: int = -1) -> Iterator[None]:
    """Create on every node a checkpoint written by this number of ranks with ZeRO."""
    for node in cluster.nodes:
        node.must(["mkdir", "-p", "/srv/ckpt/old/global_step10"])
        node.write_text("/srv/ckpt/old/latest", "global_step10")
        node.write_text("/srv/ckpt/old/global_step10/mp_rank_00_model_states.pt", "weights")
        for rank in set(range(ranks)) - {without}:
            node.write_text(f"/srv/ckpt/old/global_step10/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "states")
    try:
        yield
    finally:
        for node in cluster.nodes:
            node.must(["rm", "-rf", "/srv/ckpt/old"])


FAULTS = (
    Fault(
        "small-shared-memory",
        lambda cluster: faults.small_shm(cluster.node("node3"), 64 * MIB),
        "LIM001",
        ("node3",),
        job=SEVERAL,
        script=LOADING,
        words=("64 MiB", "--shm-size"),
    ),
    Fault(
        "few-open-files",
        lambda cluster: faults.low_limits(cluster.node("node2"), nofile=32),
        "LIM003",
        ("node2",),
        words=("32 files", "ulimit -n"),
    ),
    Fault(
        "few-processes-in-the-control-group",
        lambda cluster: faults.process_limit(cluster.node("node4"), 100),
        "LIM004",
        ("node4",),
        job=SEVERAL,
        script=LOADING,
        severity="warning",
        verdict="go",
        words=("pids.max",),
    ),
    Fault(
        "fifth-of-a-core",
        lambda cluster: faults.cpu_quota(cluster.node("node3"), 0.2),
        "CPU001",
        ("node3",),
        severity="warning",
        verdict="go",
        words=("CPU quota", "0.2 of"),
    ),
    Fault(
        "one-core-of-several",
        lambda cluster: faults.cpu_set(cluster.node("node2"), "0"),
        "CPU002",
        ("node2",),
        severity="warning",
        verdict="go",
        words=("affinity mask holds 1 of",),
    ),
    Fault(
        "clock-five-minutes-ahead",
        lambda cluster: faults.clock_offset(cluster.node("node3"), 300),
        "CLK001",
        ("node3",),
        words=("300.0 s ahead",),
    ),
    Fault(
        "clock-two-seconds-behind",
        lambda cluster: faults.clock_offset(cluster.node("node2"), -2),
        "CLK001",
        ("node2",),
        severity="warning",
        verdict="go",
        words=("2.0 s behind",),
    ),
    Fault(
        "clock-too-far-for-the-rendezvous",
        lambda cluster: faults.clock_offset(cluster.node("node4"), -20),
        "CLK001",
        ("node4",),
        job=DYNAMIC,
        words=("declares a node that is 15 s behind dead",),
    ),
    Fault(
        "missing-shard",
        lambda cluster: faults.missing_file(cluster.node("node3"), SHARD),
        "DAT012",
        ("node3",),
        words=("part-00002 is missing",),
    ),
    Fault(
        "short-shard",
        lambda cluster: faults.file_content(cluster.node("node1"), SHARD, "shard 2\n"),
        "DAT012",
        ("node1",),
        words=("part-00002 (8 instead of 80 bytes)",),
    ),
    Fault(
        "shard-with-other-content",
        lambda cluster: faults.file_content(cluster.node("node4"), SHARD, "shard X\n" * 10),
        "DAT013",
        ("node4",),
        words=("part-00002",),
    ),
    Fault(
        "shard-that-links-to-nothing",
        lambda cluster: faults.dangling_link(cluster.node("node2"), SHARD),
        "DAT012",
        ("node2",),
        words=("part-00002", "cannot be read"),
    ),
    Fault(
        "data-folder-that-links-to-nothing",
        lambda cluster: faults.dangling_link(cluster.node("node2"), "/srv/data/shards"),
        "DAT011",
        ("node2",),
        words=("dangling link", "/srv/gone"),
    ),
    Fault(
        "folder-in-the-place-of-a-shard",
        lambda cluster: faults.folder_instead(cluster.node("node3"), SHARD),
        "DAT012",
        ("node3",),
        words=("part-00002",),
    ),
    Fault(
        "data-folder-is-empty",
        lambda cluster: faults.folder_instead(cluster.node("node3"), "/srv/data/shards"),
        "DAT012",
        ("node3",),
        words=("a mount may be missing",),
    ),
    Fault(
        "data-folder-missing",
        lambda cluster: faults.missing_file(cluster.node("node4"), "/srv/data/shards"),
        "DAT011",
        ("node4",),
        words=("does not exist",),
    ),
    Fault(
        "shard-nobody-may-read",
        lambda cluster: together(held_to_permissions(cluster), faults.closed_file(cluster.node("node3"), SHARD)),
        "DAT012",
        ("node3",),
        options=("--python", AS_USER),
        words=("part-00002", "cannot be read"),
    ),
    Fault(
        "data-folder-nobody-may-read",
        lambda cluster: together(
            held_to_permissions(cluster), faults.closed_file(cluster.node("node2"), "/srv/data/shards")
        ),
        "DAT011",
        ("node2",),
        options=("--python", AS_USER),
        words=("may not be read",),
    ),
    Fault(
        "data-on-a-hung-mount",
        lambda cluster: faults.hung_mount(cluster.node("node2"), "/srv/data/shards"),
        "DAT011",
        ("node2",),
        status="unknown",
        verdict="incomplete",
        words=("/srv/data/shards",),
    ),
    Fault(
        "checkpoint-disk-full",
        lambda cluster: faults.full_disk(cluster.node("node3"), "/srv"),
        "CKP011",
        ("node3",),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        words=("is full",),
    ),
    Fault(
        "checkpoint-disk-without-inodes",
        lambda cluster: faults.no_inodes(cluster.node("node1"), "/srv/ckpt"),
        "CKP011",
        ("node1",),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        words=("no free inodes",),
    ),
    Fault(
        "checkpoint-disk-read-only",
        lambda cluster: faults.read_only(cluster.node("node2"), "/srv/ckpt"),
        "CKP011",
        ("node2",),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        words=("mounted read-only",),
    ),
    Fault(
        "checkpoint-does-not-fit",
        lambda cluster: faults.small_disk(cluster.node("node4"), "/srv/ckpt", 64 * MIB),
        "CKP012",
        ("node4",),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        words=("64 MiB", "first checkpoint"),
    ),
    Fault(
        "checkpoint-folder-on-a-hung-mount",
        lambda cluster: faults.hung_mount(cluster.node("node3"), "/srv/ckpt"),
        "CKP011",
        ("node3",),
        status="unknown",
        verdict="incomplete",
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    Fault(
        "checkpoint-disk-refuses-files",
        lambda cluster: faults.small_disk(cluster.node("node1"), "/srv/ckpt", 2 * MIB),
        "CKP012",
        ("node1",),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        options=("--allow", "write"),
    ),
    Fault(
        "resumed-with-another-number-of-ranks",
        lambda cluster: checkpoint_of(cluster, 8),
        "CKP014",
        ("node1", "node2", "node3", "node4"),
        job=RESUMING,
        script=SAVING_SCRIPT,
        words=("written by 8 data-parallel ranks, and the job has 4",),
    ),
    Fault(
        "checkpoint-that-lacks-a-piece",
        lambda cluster: checkpoint_of(cluster, 4, without=2),
        "CKP014",
        ("node1", "node2", "node3", "node4"),
        job=RESUMING,
        script=SAVING_SCRIPT,
        words=("ranks 2 are missing",),
    ),
    Fault(
        "checkpoint-on-all-nodes-but-one",
        lambda cluster: together(
            checkpoint_of(cluster, 4), faults.missing_file(cluster.node("node3"), "/srv/ckpt/old")
        ),
        "CKP014",
        ("node3",),
        job=RESUMING,
        script=SAVING_SCRIPT,
        words=("but on node1",),
    ),
    Fault(
        "temporary-folder-full",
        lambda cluster: faults.full_disk(cluster.node("node2"), "/tmp"),
        "DSK001",
        ("node2",),
        severity="warning",
        verdict="go",
        words=("/tmp is full",),
    ),
    Fault(
        "no-temporary-folder-at-all",
        lambda cluster: together(
            *(faults.small_disk(cluster.node("node4"), name, 4096) for name in ("/var/tmp", "/usr/tmp")),
            faults.full_disk(cluster.node("node4"), "/var/tmp"),
            faults.full_disk(cluster.node("node4"), "/usr/tmp"),
            faults.full_disk(cluster.node("node4"), "/tmp"),
            faults.read_only(cluster.node("node4"), "/run/home/root"),
        ),
        "DSK001",
        ("node4",),
        words=("no other folder that Python tries",),
    ),
    Fault(
        "home-not-writable",
        lambda cluster: faults.read_only(cluster.node("node3"), "/run/home/root"),
        "DSK002",
        ("node3",),
        severity="warning",
        verdict="go",
        words=("/run/home/root", "read-only"),
    ),
    Fault(
        "little-memory-for-ranks",
        lambda cluster: faults.memory_limit(cluster.node("node2"), 512 * MIB),
        "MEM011",
        ("node2",),
        severity="warning",
        verdict="go",
        words=("left",),
    ),
    Fault(
        "some-other-mount-hangs",
        lambda cluster: faults.hung_mount(cluster.node("node4"), "/srv/nas"),
        "SYS004",
        ("node4",),
        severity="warning",
        verdict="go",
        words=("/srv/nas", "does not answer"),
    ),
    Fault(
        "restart-is-planned",
        lambda cluster: shutdown_planned(cluster, "node3"),
        "SYS003",
        ("node3",),
        severity="warning",
        verdict="go",
        words=("will restart in",),
    ),
    Fault(
        "tar-files-for-some-ranks-only",
        lambda cluster: tar_files(cluster, 3),
        "DAT014",
        ("node1", "node2", "node3", "node4"),
        severity="warning",
        verdict="go",
        job=JOB.replace("/srv/data/shards", "'/srv/data/tars/{000..002}.tar'"),
        words=("3 data files", "4 ranks"),
    ),
    Fault(
        "tar-file-that-a-pattern-names-is-not-there",
        lambda cluster: together(
            tar_files(cluster, 8), faults.missing_file(cluster.node("node2"), "/srv/data/tars/005.tar")
        ),
        "DAT012",
        ("node2",),
        job=JOB.replace("/srv/data/shards", "'/srv/data/tars/{000..007}.tar'"),
        words=("names 005.tar",),
    ),
    Fault(
        "vocabulary-of-another-version",
        lambda cluster: together(
            vocabulary(cluster), faults.file_content(cluster.node("node3"), "/srv/data/vocab.json", '{"b": 1}')
        ),
        "DAT013",
        ("node3",),
        job=JOB.replace("--data-path", "--vocab-file /srv/data/vocab.json --data-path"),
        script=SAVING_SCRIPT,
        words=("vocab.json",),
    ),
    Fault(
        "cpu-time-limited",
        lambda cluster: faults.low_limits(cluster.node("node2"), cpu=3600),
        "LIM006",
        ("node2",),
        severity="warning",
        verdict="go",
        words=("SIGXCPU after 3600 s", "ulimit -t"),
    ),
    Fault(
        "sessions-of-low-priority",
        lambda cluster: faults.priority(cluster.node("node4"), 19),
        "LIM006",
        ("node4",),
        severity="warning",
        verdict="go",
        words=("niceness of 19",),
    ),
)
