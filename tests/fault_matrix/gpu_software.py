"""Drivers and frameworks that are incompatible with each other or with the GPUs, on one node of four."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tests.cluster import Cluster, Node, faults
from tests.cluster.devices import Gpu, Gpus
from tests.cluster.faults.devices import ENVIRONMENT, LIBRARIES, Torch, distribution

from .fault import GPU_SCRIPT, Fault, fault
from .gpus import GPU_JOB, on_gpus

__all__ = ["FAULTS"]

#: The driver of the stub GPUs, 535.183.01, is one for CUDA 12; the torch of the nodes is for CUDA 12.6.
USUAL = Torch()
#: The job exports a folder of libraries, as a module system would.
WITH_LIBRARIES = GPU_JOB.replace("export NCCL", f"export LD_LIBRARY_PATH={LIBRARIES}\nexport NCCL")
CUDNN = "long cudnnGetVersion(void) {{ return {}; }}\n"
NCCL = "int ncclGetVersion(int *version) {{ *version = {}; return 0; }}\n"
Inject = Callable[[Cluster], AbstractContextManager[object]]


def _torch(node: str, torch: Torch | None, *, others: Torch = USUAL, files: dict[str, str] | None = None) -> Inject:
    """One node has another torch than the rest, and these files."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        rest = [one for one in cluster.nodes if one.name != node]
        with faults.installed(rest, others), faults.installed([cluster.node(node)], torch, files=files):
            yield

    return inject


def _library(node: str, name: str, source: str, *, run_path: str = "") -> Inject:
    """torch needs cuDNN and NCCL everywhere; one node has another one in the job's folder of libraries."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        below = f"{ENVIRONMENT}/nvidia"
        with ExitStack() as stack:
            stack.enter_context(faults.installed(cluster.nodes, USUAL))
            for path, own in (
                (f"{below}/cudnn/lib/libcudnn.so.9", CUDNN.format(90501)),
                (f"{below}/nccl/lib/libnccl.so.2", NCCL.format(22602)),
            ):
                stack.enter_context(faults.shared_library(cluster.nodes, path, own))
            needs = ("libcudnn.so.9", "libnccl.so.2")
            place = f"{ENVIRONMENT}/torch/lib/libtorch_cuda.so"
            stack.enter_context(
                faults.shared_library(cluster.nodes, place, "int torch;", needs=needs, run_path=run_path)
            )
            for one in cluster.nodes if not run_path else ():
                # A torch without a run path uses the libraries of the job's folder.
                for path in (f"{below}/cudnn/lib/libcudnn.so.9", f"{below}/nccl/lib/libnccl.so.2"):
                    one.must(["mkdir", "-p", LIBRARIES])
                    one.must(["cp", path, LIBRARIES])
            stack.callback(lambda: [one.must(["rm", "-rf", LIBRARIES]) for one in cluster.nodes])
            stack.enter_context(faults.shared_library([cluster.node(node)], f"{LIBRARIES}/{name}", source))
            yield

    return inject


def _row(name: str, inject: Inject, **job: Any) -> Fault:
    return fault(name, inject, **{"job": GPU_JOB, "script": GPU_SCRIPT, "gpus": True, **job})


def _driver(version: str, cuda: int) -> Callable[[Node], AbstractContextManager[object]]:
    return lambda node: faults.driver_version(node, version, cuda=cuda)


def _cuda(version: str | None, *, empty: bool = False) -> Callable[[Node], AbstractContextManager[object]]:
    return lambda node: faults.cuda_library(node, version, empty=empty)


BLACKWELL = Gpus((Gpu("NVIDIA B200", 180 * 2**30, compute_capability="10.0"),) * 2)
GAMING = Gpus((Gpu("NVIDIA GeForce RTX 3090", 24 * 2**30, compute_capability="8.6"),) * 2, "470.57.02", 11040)


@contextmanager
def _forward_compatibility(cards: Gpus, node: Node) -> Iterator[None]:
    """An old driver on these cards, and a newer user-space driver in front of it."""
    with faults.gpu_config(node, cards), faults.cuda_library(node, "560.35.03"):
        yield


_DRIVERS = (
    _row("driver-left-behind", on_gpus("node2", _driver("535.129.03", 12020))),
    # A driver that is too old also differs from the rest.
    _row("driver-too-old", on_gpus("node2", _driver("470.57.02", 11040))),
    _row("forward-compatibility-on-a-gaming-card", on_gpus("node2", lambda node: _forward_compatibility(GAMING, node))),
    _row("driver-library-missing", on_gpus("node2", _cuda(None))),
    _row("driver-library-of-no-bytes", on_gpus("node2", _cuda("x", empty=True))),
    _row("driver-library-older-than-the-module", on_gpus("node2", _cuda("470.57.02"))),
)

_WHEELS = (
    _row("torch-without-cuda", _torch("node2", replace(USUAL, cuda=None))),
    _row("torch-for-a-newer-cuda", _torch("node3", replace(USUAL, cuda="13.0"))),
    _row("torch-of-another-version", _torch("node4", replace(USUAL, version="2.6.0"))),
    _row("no-code-for-the-card", on_gpus("node2", lambda node: faults.gpu_config(node, BLACKWELL))),
    _row("no-code-for-any-card", _torch("node2", replace(USUAL, architectures=("sm_90", "sm_100")))),
    # The driver is one for CUDA 12.2, and torch for 12.6.
    _row("only-ptx-and-an-older-driver", _torch("node2", replace(USUAL, architectures=("sm_70", "compute_70")))),
    _row("older-cudnn-in-front", _library("node2", "libcudnn.so.9", CUDNN.format(8204)), job=WITH_LIBRARIES),
    _row("earlier-minor-cudnn-in-front", _library("node2", "libcudnn.so.9", CUDNN.format(90100)), job=WITH_LIBRARIES),
    _row("another-nccl-in-front", _library("node3", "libnccl.so.2", NCCL.format(21805)), job=WITH_LIBRARIES),
)

#: A job with an offloaded optimizer, whose operator DeepSpeed compiles when the engine is made.
OFFLOADING = GPU_JOB.replace("    train.py --data-path", "    train.py --deepspeed ds.json --data-path")
DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}
DEEPSPEED = {
    "deepspeed/__init__.py": "",
    "deepspeed/git_version_info_installed.py": "version='0.16.9'\ninstalled_ops={'cpu_adam': True}\n"
    "torch_info={'version': '2.7', 'cuda_version': '12.6'}\n",
    **distribution("deepspeed", "0.16.9"),
}
STALE = {
    **DEEPSPEED,
    "deepspeed/git_version_info_installed.py": DEEPSPEED["deepspeed/git_version_info_installed.py"].replace(
        "2.7", "2.5"
    ),
}


def _deepspeed(node: str, files: dict[str, str]) -> Inject:
    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        rest: Sequence[Node] = [one for one in cluster.nodes if one.name != node]
        mine = [cluster.node(node)]
        with faults.installed(rest, USUAL, files=DEEPSPEED), faults.installed(mine, USUAL, files=files):
            yield

    return inject


_COMPILED = (
    _row(
        "operators-built-for-another-torch",
        _deepspeed("node3", STALE),
        job=OFFLOADING,
        script=GPU_SCRIPT.replace('"--data-path")\n', '"--data-path")\nparser.add_argument("--deepspeed")\n'),
        files={"ds.json": json.dumps(DS_CONFIG)},
    ),
)

#: Four ranks that Horovod starts by itself, over Gloo.
HOROVOD_JOB = f"""\
#!/usr/bin/env bash
export PYTHONPATH={ENVIRONMENT}
horovodrun -np 4 -H node1:1,node2:1,node3:1,node4:1 --gloo python train.py --data-path /srv/data/shards
"""
HOROVOD_SCRIPT = """\
import argparse

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--data-path")
parser.parse_args()
hvd.init()
"""


def _horovod(node: str, *features: str) -> Inject:
    """Every node has a Horovod with Gloo and MPI, and one node another one."""

    def files(*features: str) -> dict[str, str]:
        marks = "".join(f"\0N7horovod6common{mark}E\0" for mark in features)
        binary = "horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
        return {"horovod/__init__.py": "", binary: marks, **distribution("horovod", "0.28.1")}

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        rest = [one for one in cluster.nodes if one.name != node]
        usual = files("12MPIAllreduce", "13GlooAllreduce")
        with faults.installed(rest, files=usual), faults.installed([cluster.node(node)], files=files(*features)):
            yield

    return inject


_HOROVOD = (fault("horovod-without-gloo", _horovod("node3", "12MPIAllreduce"), job=HOROVOD_JOB, script=HOROVOD_SCRIPT),)

FAULTS = (*_DRIVERS, *_WHEELS, *_COMPILED, *_HOROVOD)
