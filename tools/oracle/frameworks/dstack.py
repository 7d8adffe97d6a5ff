"""dstack's YAML of a task: one node and several, with resources in short and in long form."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "0.22.5"

_SUBMIT = "#!/bin/bash\npip install -r requirements.txt\ndstack apply -f train.dstack.yml\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = yaml_text(settings)
    files = {"train.dstack.yml": text, "requirements.txt": f"dstack=={_VERSION}\n", "submit.sh": _SUBMIT}
    return Case("dstack", form, files, ("train.dstack.yml",), lines={"train.dstack.yml": lines})


_TORCHRUN = (
    "torchrun --nproc-per-node=$DSTACK_GPUS_PER_NODE --node-rank=$DSTACK_NODE_RANK --nnodes=$DSTACK_NODES_NUM"
    " --master-addr=$DSTACK_MASTER_NODE_IP --master-port=12345 train.py"
)
_NODES: dict[str, Any] = {
    "type": "task",
    "name": "train-distrib",
    "nodes": 2,
    "python": "3.12",
    "env": ["NCCL_DEBUG=INFO", "HF_TOKEN"],
    "commands": ["pip install -r requirements.txt", _TORCHRUN],
    "resources": {"gpu": "A100:80GB:8", "shm_size": "24GB", "disk": "500GB.."},
    "spot_policy": "auto",
    "max_duration": "12h",
    "retry": True,
}
_IMAGE = {
    "type": "task",
    "name": "pretrain",
    "nodes": 4,
    "image": "nvcr.io/nvidia/pytorch:26.09-py3",
    "privileged": True,
    "working_dir": "/workspace",
    "env": {"WANDB_MODE": "offline", "NCCL_IB_HCA": "mlx5"},
    "commands": [_TORCHRUN],
    "resources": {
        "cpu": {"arch": "x86", "count": "32.."},
        "memory": "256GB..",
        "gpu": {"vendor": "nvidia", "name": "H100", "count": 8, "memory": "80GB"},
        "shm_size": "64GB",
    },
    "backends": ["aws", "nebius"],
    "regions": ["us-east-1"],
    "max_price": 80.0,
    "startup_order": "master-first",
    "stop_criteria": "master-done",
    "priority": 50,
}
_ONE = {
    "type": "task",
    "commands": ["torchrun --standalone --nproc-per-node=4 train.py"],
    "ports": [6006],
    "resources": {"gpu": 4, "cpu": 16, "memory": 64, "disk": {"size": "200GB"}},
    "spot_policy": "spot",
    "creation_policy": "reuse",
    "idle_duration": "1h",
    "retry": {"on_events": ["no-capacity", "interruption"], "duration": "4h"},
    "utilization_policy": {"min_gpu_utilization": 10, "time_window": "1h"},
    "volumes": ["data:/data"],
    "tags": {"team": "nlp"},
}
_SPACE: dict[str, tuple[Any, ...]] = {
    "type": ("task", "job", "training"),
    "name": ("train", "Train", "train_run", "1train", "a" * 42),
    "nodes": (1, 8, 0, -1, "4", "two", 2.5),
    "groups": ([],),
    "python": ("3.11", 3.11, "3.8", 3.10, "python3.12", "3.13"),
    "image": ("pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel", "my.registry/train:1"),
    "docker": (True, False),
    "nvcc": (True,),
    "privileged": (True, "yes", "sometimes"),
    "user": ("root", "1000:1000"),
    "entrypoint": ("/bin/bash", ["/bin/bash"]),
    "shell": ("bash", "zsh", "/bin/zsh"),
    "working_dir": ("src", "/workspace"),
    "home_dir": ("/root",),
    "env": (["A"], ["A=1"], {"A": 1}, {"A": "1"}, ["A", "A"], [{"A": 1}], "A=1", {"A": True}),
    "commands": ([], "python train.py", ["python train.py"], [["python", "train.py"]], [1]),
    "ports": ([8000, "80:8080"], ["http"], 8000, [70000], ["*:6006"], [0]),
    "resources.gpu": (
        *("H100:8", "H100:80GB:8", "8", 8, 0, "H100:8:8", "H100:A100", "A100,H100:4", "24GB", "24GB..:2", "1..8"),
        *("8..1", "..", "nvidia:H100:8", "nvidia:amd:8", "H100 : 2", "H100:", "H100x8", "8xH100", "H100:8GPU", 2.5),
        *("tpu:v5p-8", "MI300X:8", ["H100"], {"name": ["A100", "H100"], "count": 2}, {"names": "H100"}, None),
        *({"name": "H100", "count": "2..8"}, {"count": "8..2"}, {"vendor": "intel"}, {"vendor": "nvda"}),
    ),
    "resources.gpu.count": (4, "2..", "eight", -1, 0),
    "resources.gpu.memory": ("24GB..", "80G", 80, "lots"),
    "resources.gpu.name": ("A100", ["A100", "L40S"], 100),
    "resources.gpu.vendor": ("amd", "AMD", "nvda"),
    "resources.gpu.compute_capability": ("8.0", 8.0, "8", "sm_80"),
    "resources.gpus": ("H100:8",),
    "resources.cpu": (4, "arm:8..", "x86:8:16", "8..4", "many", "arm64:8"),
    "resources.cpu.count": (8, "8.."),
    "resources.cpus": (8,),
    "resources.memory": ("512GB..", 128, "64GiB", "64 GB", "1TB", "128", "256G", "16GB..8GB"),
    "resources.mem": ("64GB",),
    "resources.disk": ("1TB", 500, {"size": "100GB"}, {"sizes": "100GB"}, "big"),
    "resources.shm_size": ("16GB", 16, "16g", "all"),
    "resources": ("gpu", None, {}),
    "backends": (["aws", "gcp"], ["lambda"], ["amazon"], "aws", ["kubernetes"], ["AWS"]),
    "regions": (["eu-west-1"], "eu-west-1"),
    "instance_types": (["p5.48xlarge"],),
    "spot_policy": ("spot", "on-demand", "auto", "ondemand", "always"),
    "retry": (True, False, {"on_events": ["error"]}, {"on_events": ["oom"]}, {"duration": "1h"}, 3, {"on_events": []}),
    "retry.duration": ("1h", 3600, "soon", "-1h"),
    "max_duration": ("6h", "off", 3600, "1day", "90m", "5", "forever", -1, False, "2w"),
    "stop_duration": ("5m", "off", "x"),
    "idle_duration": ("5m", "off", -1, 0, "1 hour"),
    "max_price": (2.0, 0, -1, "3", "cheap"),
    "creation_policy": ("reuse", "reuse-or-create", "create"),
    "startup_order": ("any", "workers-first", "master-first", "master"),
    "stop_criteria": ("all-done", "master-done", "any-done"),
    "utilization_policy": ({"min_gpu_utilization": 5, "time_window": "30m"}, {"min_gpu_utilization": 5}),
    "utilization_policy.min_gpu_utilization": (0, 100, 101, -1),
    "utilization_policy.time_window": ("5m", "1m", "2h"),
    "priority": (0, 100, 101, -1, "high"),
    "volumes": (["v:/d"], ["/host:/d"], ["v"], [{"name": "v", "path": "/d"}], ["v:d"], "v:/d"),
    "fleets": (["my-fleet"], "my-fleet"),
    "tags": ({"a": "b"}, {"a b": "c"}, {"a": 1}, ["a"]),
    "repos": ([], ["."], [".:/w", "a"]),
    "files": (["a.txt"], "a.txt", [".:/x"]),
    "registry_auth": ({"username": "me", "password": "x"}, {"user": "me"}),
    "schedule": ({"cron": "0 1 * * *"}, {"cron": "daily"}),
    "gpu": ("H100:8",),
    "num_nodes": (2,),
    "envs": (["A=1"],),
    "command": ("python train.py",),
    "setup": (["pip install x"],),
    "run": ("python train.py",),
    "ide": ("vscode",),
    "replicas": (2,),
}
FRAMEWORK = Framework(
    name="dstack",
    distribution="dstack",
    version=_VERSION,
    requirements=(f"dstack=={_VERSION}",),
    needs_torch=False,
    validator="dstack_validator.py",
    seeds=tuple(Seed("yaml", settings) for settings in (_NODES, _IMAGE, _ONE)),
    space={"yaml": _SPACE},
    render=_render,
)
