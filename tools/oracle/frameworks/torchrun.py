"""torchrun: its options, up to the configuration of the agent that it makes of them."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import flags_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "2.13.0"
_PROGRAM = """\
import torch.distributed as dist

dist.init_process_group("nccl")
dist.destroy_process_group()
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, found = flags_text("torchrun", settings, "train.py")
    files = {
        "train.py": _PROGRAM,
        "requirements.txt": f"torch=={_VERSION}\n",
        "run.sh": f"#!/bin/bash\npip install -r requirements.txt\n{text}",
    }
    return Case("torchrun", form, files, lines={"run.sh": {key: line + 2 for key, line in found.items()}})


_STATIC: dict[str, Any] = {
    "nnodes": 2,
    "nproc_per_node": 8,
    "node_rank": 0,
    "master_addr": "10.0.0.1",
    "master_port": 29500,
}
_ELASTIC: dict[str, Any] = {
    "nnodes": "2:4",
    "nproc_per_node": 8,
    "max_restarts": 3,
    "rdzv_id": 17,
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "10.0.0.1:29500",
}
_ALONE: dict[str, Any] = {"standalone": True, "nnodes": 1, "nproc_per_node": 4}
_SPACE: dict[str, tuple[Any, ...]] = {
    "nnodes": (1, 2, "1:2", "2:1", "two", "1:2:3", "0", "2-4"),
    "nproc_per_node": (1, 8, "gpu", "cpu", "auto", "gpus", "8.0"),
    "node_rank": (0, 1, "first", "1.0"),
    "max_restarts": (0, 3, "x", "1.5"),
    "monitor_interval": (0.1, 5, "5s"),
    "rdzv_backend": ("c10d", "static", "etcd-v2"),
    "rdzv_conf": ("timeout=900", "timeout=900,read_timeout=60", "timeout", "timeout="),
    "start_method": ("spawn", "fork", "forkserver", "exec"),
    "master_port": (29500, 29501, "port"),
    "tee": (3, "0:3", "all"),
    "redirects": (3, "0:1,1:2", "both"),
    "local_ranks_filter": ("0", "0,1", "zero"),
    "log_dir": ("logs",),
    "role": ("trainer",),
    "standalone": (True,),
    "module": (True,),
    "no_python": (True,),
    "run_path": (True,),
    "num_nodes": (2,),
    "num_processes": (8,),
    "use_env": (True,),
    "nodes": (2,),
    "num_gpus": (8,),
    "hostfile": ("hosts",),
    "rdzv_timeout": (900,),
    "logs_specs": ("default",),
    "signals_to_handle": ("SIGTERM,SIGINT", "TERM"),
}
FRAMEWORK = Framework(
    name="torchrun",
    distribution="torch",
    version=_VERSION,
    requirements=("numpy",),
    validator="torchrun_validator.py",
    seeds=(Seed("flags", _STATIC), Seed("flags", _ELASTIC), Seed("flags", _ALONE)),
    space={"flags": _SPACE},
    render=_render,
)
