"""SkyPilot's task YAML: nodes, resources with choices, mounts, variables."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "0.14.1"

_SUBMIT = "#!/bin/bash\npip install -r requirements.txt\nsky launch -c train train.yaml\n"


def _render(form: str, settings: dict[str, Any]) -> Case:
    text, lines = yaml_text(settings)
    files = {"train.yaml": text, "requirements.txt": f"skypilot=={_VERSION}\n", "submit.sh": _SUBMIT}
    return Case("skypilot", form, files, ("train.yaml",), lines={"train.yaml": lines})


_RUN = (
    "torchrun --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE"
    ' --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master_port=29500 train.py'
)
_NODES: dict[str, Any] = {
    "name": "train",
    "num_nodes": 2,
    "resources": {
        "infra": "aws/us-east-1",
        "accelerators": "H100:8",
        "cpus": "32+",
        "memory": "256+",
        "disk_size": 512,
        "disk_tier": "best",
        "use_spot": False,
        "network_tier": "best",
    },
    "envs": {"EPOCHS": 3, "MODEL": "llama"},
    "setup": "pip install -r requirements.txt",
    "run": _RUN,
}
_CHOICES = {
    "num_nodes": 4,
    "resources": {
        "accelerators": {"A100-80GB": 8},
        "any_of": [{"infra": "gcp"}, {"infra": "lambda"}],
        "use_spot": True,
        "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 3},
        "autostop": {"idle_minutes": 10, "down": True},
        "labels": {"team": "nlp"},
        "image_id": "docker:nvcr.io/nvidia/pytorch:26.09-py3",
    },
    "file_mounts": {"/data": "s3://bucket/data", "/ckpt": {"name": "my-ckpt", "store": "gcs", "mode": "MOUNT"}},
    "secrets": {"HF_TOKEN": "x"},
    "run": _RUN,
}
_CLOUD = {
    "name": "sft",
    "resources": {
        "cloud": "gcp",
        "region": "us-central1",
        "accelerators": ["A100:8", "H100:8"],
        "instance_type": None,
        "ports": [8080, "6006"],
        "priority": 100,
        "autostop": 10,
    },
    "config": {"docker": {"run_options": ["--shm-size=16g"]}},
    "run": "torchrun --standalone --nproc_per_node 8 train.py",
}
_OF_RESOURCES: dict[str, tuple[Any, ...]] = {
    "accelerators": (
        *("H100:8", "H100", "A100:0.5", "H100:0", "H100:-1", "H100:eight", "H100:8:1", "8", {"H100": 8}, {"H100": "8"}),
        *({"H100": 8, "A100": 8}, ["H100:8", "A100:8"], [], "", 8, {"H100": 0}, {"L4": 1, "T4": 2}, "tpu-v5p-8"),
        *("A100-80GB:8", "80GB+", "H100 8", "gh200:1", ["H100:8", 8]),
    ),
    "infra": ("aws", "gcp/us-central1", "k8s", "kubernetes", "k8s/ctx", "aws/us-east-1/us-east-1a", "amazon", "*"),
    "cloud": ("aws", "AWS", "amazon", "kubernetes", "k8s", "azure"),
    "region": ("us-east-1", "mars", 1),
    "zone": ("us-east-1a",),
    "cpus": (8, "8+", "8", "8x", "+8", "4+4", 0, -1, 7.5, "eight"),
    "memory": (64, "64+", "8x", "64GB", "64GB+", "16gb", 0, -1, "lots", "64Gi"),
    "instance_type": ("p5.48xlarge",),
    "use_spot": (True, False, "true", 1),
    "spot_recovery": ("FAILOVER",),
    "job_recovery": ("FAILOVER", "none", {"strategy": "FAILOVER"}, {"max_restarts_on_errors": -1}, {"retries": 2}),
    "disk_size": (100, "1TB", "500GB", "100G", 20, 10, -1, 2.5, "big", "500"),
    "disk_tier": ("low", "medium", "high", "ultra", "best", "none", "fast"),
    "network_tier": ("standard", "best", "premium"),
    "ports": (8080, "8080", "10000-10010", [8080], "http", 0, 70000, "20-10", [], -1),
    "image_id": ("docker:ubuntu:24.04", "docker:", {"us-east-1": "ami-1"}, 3),
    "labels": ({"a": "b"}, {"a": 1}, ["a"]),
    "autostop": (True, 10, "10m", "2h", "soon", {"idle_minutes": 5}, {"minutes": 5}, {"idle_minutes": -1}),
    "any_of": ([{"accelerators": "H100:8"}], [{"accelerator": "H100:8"}], {"infra": "aws"}, []),
    "ordered": ([{"infra": "aws"}, {"infra": "gcp"}], [{"infra": "amazon"}]),
    "priority": (0, 1000, -1000, 1001, "high"),
    "max_hourly_cost": (30, 0, "30"),
    "accelerator_args": ({"tpu_vm": True}, {"runtime": "x"}),
    "gpus": ("H100:8",),
    "accelerator": ("H100:8",),
    "num_nodes": (2,),
    "spot": (True,),
    "gpu": (8,),
    "volumes": ([{"path": "/mnt"}],),
    "local_disk": ("nvme:500", "ssd", "nvme"),
    "hooks": ([],),
}
_SPACE: dict[str, tuple[Any, ...]] = {
    **{f"resources.{key}": values for key, values in _OF_RESOURCES.items()},
    "resources": (None, "H100:8", [{"accelerators": "H100:8"}], {}),
    "name": ("train-1", "Train_1", "train job", "1train", "", 3, "a/b"),
    "num_nodes": (1, 16, 0, -1, "2", 2.0, 2.5, None),
    "envs": ({"A": None}, {"A": 1}, {"A-B": "1"}, {"1A": "x"}, ["A=1"], {"SKYPILOT_X": "1"}, {"A": True}),
    "secrets": ({"TOKEN": None}, {"A-B": "x"}, ["secrets:HF_TOKEN"], ["HF_TOKEN"]),
    "setup": (["pip install x"], "", None),
    "run": (["python train.py"], "", None, 3),
    "workdir": (None, 3, {"url": "https://github.com/a/b"}, {"url": "https://github.com/a/b", "branch": "x"}),
    "file_mounts": (
        {"/data": "s3://bucket/data"},
        {"/data/": "s3://bucket/data"},
        {"s3://bucket": "s3://other"},
        {"/data": {"source": "s3://bucket", "mode": "MOUNT"}},
        {"/data": {"source": "s3://bucket", "mode": "READ"}},
        {"/data": {"name": "my-bucket", "store": "nfs"}},
        {"/data": {"name": "My_Bucket"}},
        {"/data": {"path": "s3://bucket"}},
        ["/data"],
        {"/data": 3},
    ),
    "file_mounts./ckpt": ({"name": "b-1", "store": "s3"}, {"name": "b-1", "stores": "s3"}, "gs://bucket/x"),
    "config": (
        {"docker": {"run_options": "--privileged"}},
        {"nvidia_gpus": {"disable_ecc": True}},
        {"docker": 1},
        {"x": 1},
    ),
    "service": ({"readiness_probe": "/"}, {"replicas": 2}),
    "event_callback": ("echo done", 3),
    "inputs": ({"s3://b": 10}, {"a": 1, "b": 2}),
    "experimental": ({"config_overrides": {}}, {"x": 1}),
    "volumes": ({"/mnt": "pvc-1"}, {"/mnt": {"name": "pvc-1"}}, ["/mnt"], {"mnt": "pvc-1"}),
    "env": ({"A": "1"},),
    "nodes": (2,),
    "command": ("python train.py",),
    "commands": (["python train.py"],),
    "type": ("task",),
    "image": ("ubuntu",),
    "accelerators": ("H100:8",),
    "num_gpus": (8,),
}
FRAMEWORK = Framework(
    name="skypilot",
    distribution="skypilot",
    version=_VERSION,
    requirements=(f"skypilot=={_VERSION}",),
    needs_torch=False,
    validator="skypilot_validator.py",
    seeds=tuple(Seed("yaml", settings) for settings in (_NODES, _CHOICES, _CLOUD)),
    space={"yaml": _SPACE},
    render=_render,
    keep=frozenset({"file_mounts./data"}),
)
