"""PaddlePaddle: the launcher's arguments, `DistributedStrategy` with `fleet.init`, and the role maker's variables."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, Seed

_HEAD = """\
import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
"""
_TAIL = """\
fleet.init(is_collective=True, strategy=strategy)
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
"""
_COLLECTIVE = """\
import paddle
from paddle.distributed import fleet

fleet.init(is_collective=True)
"""
_SERVERS = """\
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
"""
_LAUNCH = "python -m paddle.distributed.launch"


def _literal(section: dict[str, Any], above: str, indent: str, rows: list[str], lines: dict[str, int]) -> None:
    for key, value in section.items():
        path = f"{above}.{key}"
        lines[path] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f'{indent}"{key}": {{')
            _literal(value, path, indent + "    ", rows, lines)
            rows.append(f"{indent}}},")
        else:
            rows.append(f'{indent}"{key}": {value!r},')


def _strategy(settings: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The script that fills a strategy, and the line of each key."""
    rows, lines = _HEAD.splitlines(), dict[str, int]()
    for key, value in settings.items():
        lines[key] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f"strategy.{key} = {{")
            _literal(value, key, "    ", rows, lines)
            rows.append("}")
        else:
            rows.append(f"strategy.{key} = {value!r}")
    return "\n".join(rows) + "\n" + _TAIL, lines


def _run(rows: list[str], variables: dict[str, Any], line: str, options: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """A shell script that exports variables and starts a line with options, and the line of each key."""
    lines: dict[str, int] = {}
    rows = list(rows)
    for name, value in variables.items():
        lines[f"env.{name}"] = len(rows) + 1
        rows.append(f'export {name}="{_text(value)}"')
    words = [line]
    for key, value in options.items():
        if value is None:
            continue
        lines[key] = len(rows) + 1 + len(words)
        words.append(f'--{key} "{_text(value)}"')
    return "\n".join([*rows, " \\\n  ".join([*words, "train.py"])]) + "\n", lines


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def framework(name: str, version: str, *, more: tuple[Seed, ...] = ()) -> Framework:
    """PaddlePaddle in one release."""
    top = ["#!/bin/bash", f"pip install paddlepaddle-gpu=={version}"]

    def render(form: str, settings: dict[str, Any]) -> Case:
        variables = settings.get("env") if isinstance(settings.get("env"), dict) else {}
        own = {key: value for key, value in settings.items() if key not in ("env", "ranks")}
        lines: dict[str, dict[str, int]] = {}
        if form == "strategy":
            program, lines["train.py"] = _strategy(own)
            run, found = _run(top, {}, _LAUNCH, {"nproc_per_node": settings.get("ranks")})
            lines["run.sh"] = {"ranks": found["nproc_per_node"]} if found else {}
        elif form == "roles":
            program = _SERVERS
            run, lines["run.sh"] = _run(top, variables or {}, "python", {})
        else:
            program = _COLLECTIVE if form == "collective" else _SERVERS
            run, lines["run.sh"] = _run(top, variables or {}, _LAUNCH, own)
        return Case(name, form, {"train.py": program, "run.sh": run}, lines=lines)

    return Framework(
        name=name,
        distribution="paddlepaddle",
        version=version,
        requirements=(),
        validator="paddle_validator.py",
        seeds=(*_SEEDS, *more),
        space=_SPACE,
        render=render,
        needs_torch=False,
        environment=f".venv/paddle/{version}",
        keep=frozenset(("ranks", "env")),
        # More ranks, servers or ports would take the memory and the ports of the machine that is asked.
        numbers=(0, -1, 1, 3, 7, 64),
        sections=frozenset(("env",)),
    )


_DEGREES = (1, 2, 4, 3, 8, 0, -1, "2", 2.5, None)
_SWITCH = (True, False, "True", 1, None)
_STRATEGY: dict[str, tuple[Any, ...]] = {
    "ranks": (2, 4, 6, 16),
    "hybrid_configs.dp_degree": _DEGREES,
    "hybrid_configs.mp_degree": _DEGREES,
    "hybrid_configs.pp_degree": _DEGREES,
    "hybrid_configs.sharding_degree": _DEGREES,
    "hybrid_configs.sep_degree": _DEGREES,
    "hybrid_configs.tp_degree": (2,),
    "hybrid_configs.ep_degree": (1, 2),
    "hybrid_configs.stage": (2,),
    "hybrid_configs.order": (
        ["dp", "pp", "sharding", "sep", "mp"],
        ["dp", "sharding", "pp", "sep", "mp"],
        ["dp", "pp", "mp"],
        ["data", "pipe", "sharding", "sep", "model"],
        ["dp", "pp", "sharding", "mp"],
    ),
    "hybrid_configs.pp_configs": ({"dp_comm_overlap": True}, {"delay_scale_loss": 1}, {"no_such": True}, [], "x"),
    "hybrid_configs.mp_configs": ({"sync_param": True}, {"sync_mode": "average"}, {"sync_mode": 1}, {"sync": True}),
    "amp": _SWITCH,
    "amp_configs.init_loss_scaling": (1024.0, 1024, "1024", None),
    "amp_configs.use_pure_fp16": _SWITCH,
    "amp_configs.use_pure_bf16": _SWITCH,
    "amp_configs.custom_white_list": (["softmax"], "softmax", [1], None),
    "amp_configs.use_bf16": (True,),
    "amp_configs.level": ("O2",),
    "amp_configs.dtype": ("float16",),
    "recompute": _SWITCH,
    "recompute_configs.checkpoints": (["x"], "x", 3, None),
    "recompute_configs.offload": (True,),
    "recompute_configs.enable_offload": _SWITCH,
    "sharding": _SWITCH,
    "sharding_configs.stage": (1, 2, 3, "2", 4),
    "sharding_configs.sharding_degree": (2, 4, 8, 2.0),
    "sharding_configs.segment_broadcast_MB": (32, 32.0, "32"),
    "sharding_configs.sharding_stage": (2,),
    "sharding_configs.offload": (True,),
    "sharding_configs.optimize_offload": _SWITCH,
    "pipeline": _SWITCH,
    "pipeline_configs.micro_batch_size": (1, 2, 4.0, "4", -1),
    "pipeline_configs.accumulate_steps": (1, 8, 2.5, "8"),
    "pipeline_configs.schedule_mode": ("1F1B", "F-then-B", 1),
    "pipeline_configs.micro_batch": (2,),
    "gradient_merge": _SWITCH,
    "gradient_merge_configs.k_steps": (1, 4, 4.0, "4", None),
    "gradient_merge_configs.avg": _SWITCH,
    "gradient_merge_configs.steps": (4,),
    "tensor_parallel": _SWITCH,
    "tensor_parallel_configs.tensor_parallel_degree": (2, "2"),
    "tensor_parallel_configs.tensor_init_seed": (1, 2.5),
    "localsgd": _SWITCH,
    "localsgd_configs.k_steps": (1, "4"),
    "localsgd_configs.steps": (1,),
    "dgc": _SWITCH,
    "dgc_configs.sparsity": ([0.9, 0.99], 0.9, "0.9"),
    "dgc_configs.rampup": (1,),
    "lamb": _SWITCH,
    "lamb_configs.lamb_weight_decay": (0.01, "0.01", 1),
    "lars": _SWITCH,
    "lars_configs.lars_coeff": (0.01, "0.01"),
    "fp16_allreduce": _SWITCH,
    "find_unused_parameters": _SWITCH,
    "fuse_all_reduce_ops": _SWITCH,
    "fuse_grad_size_in_MB": (32, 32.0, "32", -1),
    "last_comm_group_size_MB": (1, 1.5, 0, -1, "1"),
    "nccl_comm_num": (1, 2, "2"),
    "sync_nccl_allreduce": _SWITCH,
    "sync_batch_norm": _SWITCH,
    "heter_ccl_mode": (True,),
    "qat": _SWITCH,
    "a_sync": _SWITCH,
    "a_sync_configs.k_steps": (0, 100, "100", -1),
    "a_sync_configs.launch_barrier": _SWITCH,
    "a_sync_configs.geo_sgd": (True,),
    "asp": _SWITCH,
    "without_graph_optimization": _SWITCH,
    "gradient_scale_configs.scale_strategy": ("avg", "sum", 1),
    "use_amp": (True,),
    "use_dgc": (True,),
    "fp16": (True,),
    "bf16": (True,),
    "gradient_accumulation": (4,),
    "dp_degree": (2,),
    "sharding_stage": (2,),
    "hybrid_config": ({"dp_degree": 8},),
    "amp_config": ({"init_loss_scaling": 1024.0},),
    "zero": (True,),
    "num_threads": (1,),
}
_COMMON: dict[str, tuple[Any, ...]] = {
    "log_level": ("INFO", "debug", "verbose", "WARNING", "trace"),
    "log_overwrite": ("true", "False", "yes", "maybe", "2"),
    "sort_ip": ("true", "0", "x"),
    "log_dir": ("logs", ""),
    "legacy": ("true", "false", "old"),
    "enable_gpu_log": ("0", "no", "none"),
    "gloo_port": (6767, "x"),
    "with_gloo": ("1", "0", "yes"),
    "start_port": (6170, "6170-6180", "port"),
    "max_restart": (0, 3, "x", "1.5"),
    "elastic_level": (0, 1, -1, "high"),
    "elastic_timeout": (30, "30s", "1.5"),
    "nproc_pernode": (8,),
    "world_size": (16,),
    "nproc": (8,),
    "num_nodes": (2,),
    "node_rank": (0,),
    "master_addr": ("10.0.0.1",),
    "master_port": (29500,),
    "rdzv_backend": ("c10d",),
    "backend": ("nccl", "gloo", "mpi"),
    "host": ("10.0.0.1",),
    "run_mode": ("collective", "ps", "rpc", "ps-heter", "pserver", "heter"),
    "env.PADDLE_NNODES": ("2", "two", "1:2", ""),
    "env.PADDLE_NPROC_PER_NODE": ("4", "x", "4.0"),
    "env.PADDLE_RANK": ("0", "first"),
    "env.PADDLE_TRAINER_ID": ("0", "1", "x"),
    "env.PADDLE_MAX_RESTART": ("3", "many"),
    "env.PADDLE_START_PORT": ("6170", "port"),
    "env.PADDLE_LOG_LEVEL": ("DEBUG", "LOUD"),
    "env.PADDLE_SORT_IP": ("1", "sorted"),
    "env.PORT_RANGE": ("40000:50000", "40000", "40000-50000", "50000:40000"),
    "env.FLAGS_FIXED_PORT": ("36000", "port"),
}
_NODES = ("1", "2", "1:2", "2:4", "2-4", "two", "2.0", "0", "4:2", "-1", ":", "2:")
_ENDPOINTS = (
    "10.0.0.1:8000,10.0.0.2:8000",
    "10.0.0.1,10.0.0.2",
    "10.0.0.1:8000",
    "10.0.0.1:8000 10.0.0.2:8000",
    "10.0.0.1:8000;10.0.0.2:8000",
    "10.0.0.1:8000,",
    "10.0.0.1:port,10.0.0.2:8000",
    "127.0.0.1:8000,127.0.0.1:8001",
)
_SPACE: dict[str, dict[str, tuple[Any, ...]]] = {
    "strategy": _STRATEGY,
    "collective": {
        **_COMMON,
        "master": ("10.0.0.1:8090", "10.0.0.1", "10.0.0.1:port", "http://10.0.0.1:8090", "10.0.0.2:8090", "etcd://x:1"),
        "nnodes": _NODES,
        "rank": (0, 1, 2, 5, -1, "first", "0.0"),
        "nproc_per_node": (1, 2, 8, "8.0", "gpu", "auto", -1, "x"),
        "devices": ("0,1", "0-7", "0 1 2 3", "gpu:0,gpu:1", "8,9", "all", "0,1,2,3,4,5,6,7", "cpu", "0,,1"),
        "gpus": ("0,1", "0;1", "a"),
        "ips": ("10.0.0.1,10.0.0.2", "10.0.0.1", "10.0.0.3,10.0.0.4", "10.0.0.1 10.0.0.2"),
        "job_id": ("bert", ""),
    },
    "ps": {
        **_COMMON,
        "master": ("10.0.0.1:8090", "10.0.0.1", "10.0.0.1:port"),
        "nnodes": _NODES,
        "rank": (0, 1, 5, "x"),
        "server_num": (1, 2, 0, -1, "x", "2.0", 3),
        "trainer_num": (1, 2, 0, -1, "x", "2.0", 3),
        "worker_num": (2, "x"),
        "servers": _ENDPOINTS,
        "trainers": _ENDPOINTS,
        "workers": _ENDPOINTS,
        "heter_worker_num": ("2", "1;1", "x"),
        "heter_devices": ("gpu", "gpu;cpu", ""),
        "heter_workers": ("10.0.0.1:9000", "10.0.0.1:9000;10.0.0.2:9000", "10.0.0.1:9000,10.0.0.1:9001"),
        "http_port": (8900, "x"),
        "coordinator_num": (1, 2),
        "coordinators": ("10.0.0.1:7000",),
        "gloo_http_port": (1,),
        "pserver_num": (2,),
        "ps_num": (2,),
    },
    "roles": {
        "env.TRAINING_ROLE": ("TRAINER", "PSERVER", "WORKER", "trainer", "SERVER", "HETER_TRAINER", "COORDINATOR", ""),
        "env.PADDLE_TRAINERS_NUM": ("2", "two", "", "2.0", "0", "-1"),
        "env.PADDLE_TRAINER_NUM": ("2",),
        "env.PADDLE_TRAINER_ID": ("0", "1", "x", "", "5"),
        "env.PADDLE_PORT": ("8000", "8001", "", "port"),
        "env.POD_IP": ("10.0.0.1", "10.0.0.3", "127.0.0.1", "localhost", ""),
        "env.PADDLE_PSERVERS_IP_PORT_LIST": (
            *("10.0.0.1:8000,10.0.0.2:8000", "10.0.0.1,10.0.0.2", "10.0.0.1:8000 10.0.0.2:8000"),
            *("127.0.0.1:8000", "10.0.0.1:8000, 10.0.0.2:8000", ""),
        ),
        "env.PADDLE_TRAINER_ENDPOINTS": ("10.0.0.1:9000,10.0.0.2:9000", "10.0.0.1", ""),
        "env.PADDLE_WITH_GLOO": ("0", "1", "2", "x", "true"),
        "env.PADDLE_GLOO_RENDEZVOUS": ("3", "2", "0", "http", "4"),
        "env.PADDLE_GLOO_HTTP_ENDPOINT": ("10.0.0.1:8500", "10.0.0.1", ""),
        "env.PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST": ("10.0.0.1:9500", "10.0.0.3:9500,10.0.0.4:9500"),
        "env.PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST": ("10.0.0.1:9500",),
        "env.PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST": ("10.0.0.1:9000",),
        "env.STAGE_ID": ("1", "x"),
        "env.STAGE_NUM": ("2", "x"),
        "env.PADDLE_STAGE_TRAINERS_NUM": ("[2,1]",),
        "env.HETER_DEVICE_TYPE": ("gpu", "npu"),
    },
}
_SPACE["rpc"] = _SPACE["collective"]
_ROLE: dict[str, Any] = {
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:8000,10.0.0.2:8000",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:9000,10.0.0.2:9000",
    "POD_IP": "10.0.0.1",
    "PADDLE_PORT": "8000",
}
_SEEDS = (
    Seed(
        "strategy",
        {
            "ranks": 8,
            "hybrid_configs": {"dp_degree": 2, "mp_degree": 2, "pp_degree": 2},
            "pipeline_configs": {"accumulate_steps": 8, "micro_batch_size": 2},
        },
    ),
    Seed(
        "strategy",
        {
            "ranks": 8,
            "amp": True,
            "amp_configs": {"init_loss_scaling": 32768.0, "use_pure_fp16": True, "custom_black_list": ["reduce_sum"]},
            "hybrid_configs": {"dp_degree": 1, "mp_degree": 4, "pp_degree": 1, "sharding_degree": 2},
            "recompute": True,
            "recompute_configs": {"checkpoints": ["fc_0.tmp_0"], "enable_offload": False},
        },
    ),
    Seed(
        "strategy",
        {
            "ranks": 4,
            "find_unused_parameters": True,
            "gradient_merge": True,
            "gradient_merge_configs": {"k_steps": 4, "avg": True},
            "fuse_grad_size_in_MB": 32,
            "last_comm_group_size_MB": 1.0,
        },
    ),
    Seed(
        "strategy",
        {
            "ranks": 8,
            "hybrid_configs": {
                "dp_degree": 2,
                "mp_degree": 1,
                "pp_degree": 1,
                "sharding_degree": 2,
                "sep_degree": 2,
                "order": ["dp", "pp", "sharding", "sep", "mp"],
                "mp_configs": {"sync_param": True, "sync_mode": "broadcast"},
            },
            "sharding": True,
            "sharding_configs": {"stage": 2, "sharding_degree": 2, "segment_broadcast_MB": 32.0},
        },
    ),
    Seed(
        "collective",
        {"master": "10.0.0.1:8090", "nnodes": 2, "rank": 0, "devices": "0,1,2,3,4,5,6,7", "job_id": "bert", "env": {}},
    ),
    Seed("collective", {"devices": "0,1,2,3", "log_dir": "logs", "env": {"NCCL_DEBUG": "INFO"}}),
    Seed("collective", {"ips": "10.0.0.1,10.0.0.2", "nproc_per_node": 8, "start_port": 6170}),
    Seed(
        "collective",
        {
            "master": "etcd://10.0.0.9:2379",
            "nnodes": "2:4",
            "job_id": "elastic",
            "elastic_level": 1,
            "elastic_timeout": 60,
            "max_restart": 5,
        },
    ),
    Seed("ps", {"server_num": 2, "trainer_num": 4, "log_dir": "logs", "env": {}}),
    Seed(
        "ps", {"servers": "10.0.0.1:8000,10.0.0.2:8000", "trainers": "10.0.0.1:9000,10.0.0.2:9000", "gloo_port": 7000}
    ),
    Seed("ps", {"run_mode": "ps", "master": "10.0.0.1:8090", "nnodes": 2, "server_num": 1, "trainer_num": 2}),
    Seed("ps", {"server_num": 1, "worker_num": 2, "heter_worker_num": "2", "heter_devices": "gpu"}),
    Seed("rpc", {"run_mode": "rpc", "master": "10.0.0.1:8090", "nnodes": 2, "nproc_per_node": 2, "rank": 0}),
    Seed("roles", {"env": {**_ROLE, "TRAINING_ROLE": "PSERVER"}}),
    Seed("roles", {"env": {**_ROLE, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1", "PADDLE_PORT": "9000"}}),
)
FRAMEWORK = framework("paddle", "3.3.1")
