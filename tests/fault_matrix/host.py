"""Nodes with limits, cores, clocks, disks, data or held ports that do not suit the job."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import JOB, SCRIPT

from .fault import fault, on_node

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
    on_node("master-port-in-use", "node1", lambda node: faults.port_in_use(node, 29500)),
    on_node(
        "another-run-of-preflight-on-the-master-port",
        "node1",
        lambda node: faults.port_in_use(node, 29500, last=["preflight-0123456789abcdef01234567"]),
    ),
    on_node("small-shared-memory", "node3", lambda node: faults.small_shm(node, 64 * MIB), job=SEVERAL, script=LOADING),
    on_node("few-open-files", "node2", lambda node: faults.low_limits(node, nofile=32)),
    on_node(
        "few-processes-in-the-control-group",
        "node4",
        lambda node: faults.process_limit(node, 100),
        job=SEVERAL,
        script=LOADING,
    ),
    on_node("fifth-of-a-core", "node3", lambda node: faults.cpu_quota(node, 0.2)),
    on_node("one-core-of-several", "node2", lambda node: faults.cpu_set(node, "0")),
    on_node("clock-five-minutes-ahead", "node3", lambda node: faults.clock_offset(node, 300)),
    on_node("clock-two-seconds-behind", "node2", lambda node: faults.clock_offset(node, -2)),
    on_node("clock-too-far-for-the-rendezvous", "node4", lambda node: faults.clock_offset(node, -20), job=DYNAMIC),
    on_node("missing-shard", "node3", lambda node: faults.missing_file(node, SHARD)),
    on_node("short-shard", "node1", lambda node: faults.file_content(node, SHARD, "shard 2\n")),
    on_node("shard-with-other-content", "node4", lambda node: faults.file_content(node, SHARD, "shard X\n" * 10)),
    on_node("shard-that-links-to-nothing", "node2", lambda node: faults.dangling_link(node, SHARD)),
    on_node("data-folder-that-links-to-nothing", "node2", lambda node: faults.dangling_link(node, "/srv/data/shards")),
    on_node("folder-in-the-place-of-a-shard", "node3", lambda node: faults.folder_instead(node, SHARD)),
    on_node("data-folder-is-empty", "node3", lambda node: faults.folder_instead(node, "/srv/data/shards")),
    on_node("data-folder-missing", "node4", lambda node: faults.missing_file(node, "/srv/data/shards")),
    fault(
        "shard-nobody-may-read",
        lambda cluster: together(held_to_permissions(cluster), faults.closed_file(cluster.node("node3"), SHARD)),
        options=("--python", AS_USER),
    ),
    fault(
        "data-folder-nobody-may-read",
        lambda cluster: together(
            held_to_permissions(cluster), faults.closed_file(cluster.node("node2"), "/srv/data/shards")
        ),
        options=("--python", AS_USER),
    ),
    on_node("data-on-a-hung-mount", "node2", lambda node: faults.hung_mount(node, "/srv/data/shards")),
    on_node(
        "checkpoint-disk-full",
        "node3",
        lambda node: faults.full_disk(node, "/srv"),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    on_node(
        "checkpoint-disk-without-inodes",
        "node1",
        lambda node: faults.no_inodes(node, "/srv/ckpt"),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    on_node(
        "checkpoint-disk-read-only",
        "node2",
        lambda node: faults.read_only(node, "/srv/ckpt"),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    on_node(
        "checkpoint-does-not-fit",
        "node4",
        lambda node: faults.small_disk(node, "/srv/ckpt", 64 * MIB),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    on_node(
        "checkpoint-folder-on-a-hung-mount",
        "node3",
        lambda node: faults.hung_mount(node, "/srv/ckpt"),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
    ),
    on_node(
        "checkpoint-disk-refuses-files",
        "node1",
        lambda node: faults.small_disk(node, "/srv/ckpt", 2 * MIB),
        job=SAVING,
        script=SAVING_SCRIPT,
        files=ZERO,
        options=("--allow", "write"),
    ),
    fault(
        "resumed-with-another-number-of-ranks",
        lambda cluster: checkpoint_of(cluster, 8),
        job=RESUMING,
        script=SAVING_SCRIPT,
    ),
    fault(
        "checkpoint-that-lacks-a-piece",
        lambda cluster: checkpoint_of(cluster, 4, without=2),
        job=RESUMING,
        script=SAVING_SCRIPT,
    ),
    fault(
        "checkpoint-on-all-nodes-but-one",
        lambda cluster: together(
            checkpoint_of(cluster, 4), faults.missing_file(cluster.node("node3"), "/srv/ckpt/old")
        ),
        job=RESUMING,
        script=SAVING_SCRIPT,
    ),
    on_node("temporary-folder-full", "node2", lambda node: faults.full_disk(node, "/tmp")),
    on_node(
        "no-temporary-folder-at-all",
        "node4",
        lambda node: together(
            *(faults.small_disk(node, name, 4096) for name in ("/var/tmp", "/usr/tmp")),
            faults.full_disk(node, "/var/tmp"),
            faults.full_disk(node, "/usr/tmp"),
            faults.full_disk(node, "/tmp"),
            faults.read_only(node, "/run/home/root"),
        ),
    ),
    on_node("home-not-writable", "node3", lambda node: faults.read_only(node, "/run/home/root")),
    on_node("little-memory-for-ranks", "node2", lambda node: faults.memory_limit(node, 512 * MIB)),
    on_node("some-other-mount-hangs", "node4", lambda node: faults.hung_mount(node, "/srv/nas")),
    fault("restart-is-planned", lambda cluster: shutdown_planned(cluster, "node3")),
    fault(
        "tar-files-for-some-ranks-only",
        lambda cluster: tar_files(cluster, 3),
        job=JOB.replace("/srv/data/shards", "'/srv/data/tars/{000..002}.tar'"),
    ),
    fault(
        "tar-file-that-a-pattern-names-is-not-there",
        lambda cluster: together(
            tar_files(cluster, 8), faults.missing_file(cluster.node("node2"), "/srv/data/tars/005.tar")
        ),
        job=JOB.replace("/srv/data/shards", "'/srv/data/tars/{000..007}.tar'"),
    ),
    fault(
        "vocabulary-of-another-version",
        lambda cluster: together(
            vocabulary(cluster), faults.file_content(cluster.node("node3"), "/srv/data/vocab.json", '{"b": 1}')
        ),
        job=JOB.replace("--data-path", "--vocab-file /srv/data/vocab.json --data-path"),
        script=SAVING_SCRIPT,
    ),
    on_node("cpu-time-limited", "node2", lambda node: faults.low_limits(node, cpu=3600)),
    on_node("sessions-of-low-priority", "node4", lambda node: faults.priority(node, 19)),
)
