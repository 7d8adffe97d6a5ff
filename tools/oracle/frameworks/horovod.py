"""horovodrun's command line: its own parser, and the hosts with their slots."""

from __future__ import annotations

import shlex
from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, Seed


def _render(form: str, settings: dict[str, Any]) -> Case:
    rows = ["#!/bin/bash", "pip install horovod==0.28.1", "horovodrun \\"]
    lines, words = dict[str, int](), ["horovodrun"]
    for key, value in settings.items():
        if value is None or value is False:
            continue
        option = [f"--{key}"] if value is True else [f"--{key}", str(value)]
        rows.append(f"  {shlex.join(option)} \\")
        lines[key] = len(rows)
        words.extend(option)
    rows.append("  python train.py")
    files = {"run.sh": "\n".join(rows) + "\n", "train.py": "import horovod.torch as hvd\n\nhvd.init()\n"}
    return Case("horovod", form, files, command=(*words, "python", "train.py"), lines={"run.sh": lines})


_COUNTS = (0, 1, 2, 4, 8, 16, -1, "x", 2.5)
_FLAG = (True, None)
_SPACE: dict[str, tuple[Any, ...]] = {
    "num-proc": (1, 4, 8, 16, 17, 64, 0, "eight", 2.5, ""),
    "hosts": (
        "n1:8,n2:8",
        "n1:4",
        "n1,n2",
        "n1:8 n2:8",
        "n1:x,n2:8",
        "n1:8;n2:8",
        "n1:8,",
        "n1=8",
        "10.0.0.1:8,10.0.0.2:8",
    ),
    "min-num-proc": _COUNTS,
    "max-num-proc": _COUNTS,
    "slots-per-host": _COUNTS,
    "reset-limit": _COUNTS,
    "elastic-timeout": (600, -1, "x"),
    "ssh-port": (22, 2222, "ssh", -1, 70000),
    "start-timeout": (30, 120, "x", 0, -5),
    "network-interfaces": ("eth0", "eth0,ib0"),
    "fusion-threshold-mb": (0, 64, -1, "x", 1.5),
    "cycle-time-ms": (0.0, 3.5, -1, "x"),
    "cache-capacity": (1024, 0, -1, "x"),
    "hierarchical-allreduce": _FLAG,
    "hierarchical-allgather": _FLAG,
    "autotune": _FLAG,
    "autotune-warmup-samples": (3, 0, -1, "x"),
    "autotune-steps-per-sample": (10, -1, "x"),
    "autotune-bayes-opt-max-samples": (20, -3),
    "autotune-gaussian-process-noise": (0.8, 0, 1, 1.5, -0.1, "x"),
    "timeline-mark-cycles": _FLAG,
    "stall-check-warning-time-seconds": (60, -1, "x"),
    "stall-check-shutdown-time-seconds": (0, 600, -1),
    "mpi-threads-disable": _FLAG,
    "num-nccl-streams": (1, 2, -1, "x"),
    "thread-affinity": (0, 1, -1),
    "gloo-timeout-seconds": (30, -1, "x"),
    "log-level": ("INFO", "DEBUG", "info", "LOUD", "WARN", "WARNING"),
    "verbose": _FLAG,
    "disable-cache": _FLAG,
    "gloo": _FLAG,
    "mpi": _FLAG,
    "jsrun": _FLAG,
    "no-stall-check": _FLAG,
    "stall-check": _FLAG,
    "output-filename": ("logs",),
    "tcp-flag": _FLAG,
    "nproc": (8,),
    "num-processes": (8,),
    "host": ("n1:8",),
    "nodes": (2,),
    "np": (8,),
    "log_level": ("INFO",),
    "num_proc": (8,),
    "gpus": (8,),
}

FRAMEWORK = Framework(
    name="horovod",
    distribution="horovod",
    version="0.28.1",
    requirements=("setuptools<70", "wheel", "cloudpickle", "packaging", "psutil", "pyyaml"),
    validator="horovod_validator.py",
    seeds=(
        Seed("flags", {"num-proc": 16, "hosts": "n1:8,n2:8", "start-timeout": 120}),
        Seed(
            "flags", {"num-proc": 8, "min-num-proc": 4, "max-num-proc": 16, "hosts": "n1:8,n2:8", "log-level": "INFO"}
        ),
        Seed("flags", {"num-proc": 8, "fusion-threshold-mb": 32, "cycle-time-ms": 3.5, "gloo": True}),
    ),
    space={"flags": _SPACE},
    render=_render,
    needs_torch=False,
    keep=frozenset(("num-proc",)),
)
