"""Faults of the ranks' context: variables, interpreters, packages, copies of the job's files, and leftovers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from tests.cluster import Cluster, Node, faults
from tests.cluster.faults import services as ranks
from tests.end_to_end.head_command import JOB, SCRIPT

from .fault import GPU_SCRIPT, fault, on_node

__all__ = ["FAULTS"]


def _others(cluster: Cluster, name: str) -> list[Node]:
    return [node for node in cluster.nodes if node.name != name]


def _old_python_on_node2(cluster: Cluster) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(ranks.python_on(_others(cluster, "node2")))
    stack.enter_context(ranks.python_on([cluster.node("node2")], ranks.old_python()))
    return stack


_HOSTS = "".join(f"node{index} slots=1\n" for index in range(1, 5))
#: Ranks that DeepSpeed starts through Open MPI, whose daemon ssh starts on the other nodes.
_OVER_MPI = """\
deepspeed --hostfile hostfile --launcher openmpi --master_addr node1 train.py --data-path /srv/data/shards
"""
_MPIRUN = """\
export GLOO_SOCKET_IFNAME=eth0
mpirun --allow-run-as-root -np 4 -H node1,node2,node3,node4 -x GLOO_SOCKET_IFNAME \\
    --mca btl_tcp_if_include eth0 python train.py --data-path /srv/data/shards
"""


def _in_an_allocation_without_a_login(cluster: Cluster) -> ExitStack:
    """A batch job runs on the first node, and node3 rejects logins from there."""
    stack = ExitStack()
    stack.enter_context(ranks.login_refused(cluster.node("node3"), cluster.node("node1")))
    stack.enter_context(ranks.session_variables(*_others(cluster, "node3"), SLURM_JOB_ID="7"))
    return stack


_ENDPOINTS = "--servers=node1:6170,node2:6170 --workers=node3:6171,node4:6171"
_SERVERS = f"python -m paddle.distributed.launch {_ENDPOINTS} train.py --data-path /srv/data/shards\n"
_SERVER_SCRIPT = """\
import paddle.distributed.fleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    fleet.stop_worker()
"""

_PS_LISTS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.77.0.1:6170,10.77.0.2:6170",
    "PADDLE_TRAINER_ENDPOINTS": "10.77.0.3:6171,10.77.0.4:6171",
    "PADDLE_TRAINERS_NUM": "2",
}
#: A job that takes all settings from the environment of its node.
_FROM_ENVIRONMENT = "TRAINING_ROLE=$TRAINING_ROLE python train.py --data-path /srv/data/shards\n"


def _roles(cluster: Cluster, odd: str = "", **changed: str) -> ExitStack:
    """node1 and node2 are servers and the others trainers, by their own environment; `odd` differs."""
    stack = ExitStack()
    for index, node in enumerate(cluster.nodes):
        role = {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "6170"}
        if index >= 2:
            role = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index - 2)}
        held = {**_PS_LISTS, **role, "POD_IP": node.data_address, **(changed if node.name == odd else {})}
        stack.enter_context(ranks.session_variables(node, **held))
    return stack


_ALIASES = "--servers=ps-a:6170,ps-b:6172 --workers=node3:6171,node4:6171"


def _two_names_of_node1(cluster: Cluster) -> ExitStack:
    """ps-a and ps-b both resolve to node1, on every node."""
    stack = ExitStack()
    for node in cluster.nodes:
        for name in ("ps-a", "ps-b"):
            stack.enter_context(faults.hosts_entry(node, name, cluster.node("node1").data_address))
    return stack


_LARGE_TABLE_SCRIPT = """\
import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

paddle.enable_static()
fleet.init()
words = fluid.data("words", [None, 1], dtype="int64")
fluid.layers.embedding(words, size=[40000000000, 64], is_sparse=True)
fluid.optimizer.Adam(0.001).minimize(words)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    fleet.stop_worker()
"""

_TF_SCRIPT = """\
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""


def _tf_configs(cluster: Cluster, *numbers: int) -> ExitStack:
    """Every node is a worker of one cluster, with these numbers, by its own environment."""
    stack = ExitStack()
    hosts = [f"{node.name}:12345" for node in cluster.nodes]
    for node, number in zip(cluster.nodes, numbers, strict=True):
        told = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": number}}
        # sshd accepts no nested quotes; the shell of the session adds those of the JSON.
        stack.enter_context(ranks.home_file(node, ".bashrc", f"export TF_CONFIG='{json.dumps(told)}'\n"))
    return stack


def _in_place(cluster: Cluster, odd: str) -> ExitStack:
    """A package is installed in place everywhere, on `odd` at another commit."""
    stack = ExitStack()
    for node in cluster.nodes:
        commit = ("b" if node.name == odd else "a") * 40
        stack.enter_context(ranks.extra_distribution(node, "megatron_lm", "1.0", commit=commit))
    return stack


_FOLDER = "/srv/job"
_BATCH = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}},
}
_BATCH_JOB = JOB.replace("train.py", "train.py --deepspeed --deepspeed_config ds_config.json")
_BATCH_SCRIPT = (
    SCRIPT.replace(
        'parser.add_argument("--data-path")\n',
        'parser.add_argument("--data-path")\nparser.add_argument("--deepspeed", action="store_true")\n'
        'parser.add_argument("--deepspeed_config")\n',
    )
    + "\nimport deepspeed\n\ndeepspeed.initialize()\n"
)


def _copies(cluster: Cluster, files: Mapping[str, str], odd: str, name: str, text: str | None) -> ExitStack:
    """Every node holds these files, but node `odd` has `text` for `name`, or lacks it."""
    stack = ExitStack()
    stack.enter_context(ranks.extra_folder(_others(cluster, odd), _FOLDER, files))
    held = {key: value for key, value in files.items() if key != name}
    if text is not None:
        held[name] = text
    stack.enter_context(ranks.extra_folder([cluster.node(odd)], _FOLDER, held))
    return stack


FAULTS = (
    on_node(
        "variable-differs-in-sessions-of-one-node",
        "node3",
        lambda node: ranks.session_variables(node, NCCL_ALGO="Tree"),
        script=GPU_SCRIPT,
        gpus=True,
    ),
    on_node(
        "variable-in-one-node's-nccl.conf",
        "node2",
        lambda node: ranks.nccl_conf(node, "# tuned\nNCCL_IB_DISABLE=1\n"),
        script=GPU_SCRIPT,
        gpus=True,
    ),
    fault(
        "two-nodes-take-one-rank",
        lambda cluster: ranks.session_variables(cluster.node("node2"), cluster.node("node3"), NODE_RANK="1"),
    ),
    fault(
        "interpreter-absent-on-a-node",
        lambda cluster: ranks.python_on(_others(cluster, "node3")),
        options=("--python", ranks.PYTHON),
    ),
    fault("interpreter-too-old-on-a-node", _old_python_on_node2, options=("--python", ranks.PYTHON)),
    fault(
        "working-directory-absent-on-a-node",
        lambda cluster: ranks.extra_folder(_others(cluster, "node4"), "/srv/job"),
        options=("--directory", "/srv/job"),
    ),
    on_node("framework-of-another-version", "node3", lambda node: ranks.other_version(node, "torch", "2.3.0")),
    on_node("library-on-one-node-alone", "node2", lambda node: ranks.extra_distribution(node, "protobuf", "3.20.3")),
    fault(
        "stale-training-script-on-a-node",
        lambda cluster: _copies(
            cluster, {"run.sh": JOB, "train.py": SCRIPT}, "node3", "train.py", SCRIPT.replace("gloo", "mpi")
        ),
        options=("--directory", _FOLDER),
    ),
    on_node(
        "interpreter-with-a-foreign-home-on-a-node",
        "node2",
        lambda node: ranks.session_variables(node, PYTHONHOME="/srv/gone"),
    ),
    fault(
        "start-script-with-another-master-on-a-node",
        lambda cluster: _copies(
            cluster, {"run.sh": JOB, "train.py": SCRIPT}, "node3", "run.sh", JOB.replace("=node1", "=node2")
        ),
        options=("--directory", _FOLDER),
    ),
    fault(
        "start-script-missing-on-a-node",
        lambda cluster: _copies(cluster, {"run.sh": JOB, "train.py": SCRIPT}, "node4", "run.sh", None),
        options=("--directory", _FOLDER),
    ),
    fault(
        "training-script-missing-on-a-node",
        lambda cluster: _copies(cluster, {"run.sh": JOB, "train.py": SCRIPT}, "node4", "train.py", None),
        options=("--directory", _FOLDER),
    ),
    fault(
        "batch-size-in-one-node's-configuration",
        lambda cluster: _copies(
            cluster,
            {"run.sh": _BATCH_JOB, "train.py": _BATCH_SCRIPT, "ds_config.json": json.dumps(_BATCH)},
            "node2",
            "ds_config.json",
            json.dumps({**_BATCH, "train_micro_batch_size_per_gpu": 8}),
        ),
        job=_BATCH_JOB,
        script=_BATCH_SCRIPT,
        files={"ds_config.json": json.dumps(_BATCH)},
        options=("--directory", _FOLDER),
    ),
    fault(
        "stale-module-beside-the-training-script",
        lambda cluster: _copies(
            cluster,
            {"run.sh": JOB, "train.py": SCRIPT, "model/attention.py": "heads = 8\n"},
            "node3",
            "model/attention.py",
            "heads = 16\n",
        ),
        options=("--directory", _FOLDER),
    ),
    on_node(
        "launcher-absent-on-a-node",
        "node3",
        lambda node: faults.missing_file(node, str(Path(sys.executable).with_name("torchrun"))),
    ),
    on_node(
        "daemon-of-open-mpi-absent-on-a-node",
        "node2",
        lambda node: faults.missing_file(node, "/usr/bin/orted"),
        job=_MPIRUN,
    ),
    fault(
        "no-login-between-two-nodes",
        lambda cluster: ranks.login_refused(cluster.node("node3"), cluster.node("node1")),
        job=_MPIRUN,
    ),
    fault(
        "no-login-from-the-node-of-the-batch-script",
        _in_an_allocation_without_a_login,
        job=_OVER_MPI,
        files={"hostfile": _HOSTS},
    ),
    fault(
        "variable-that-the-launcher-leaves-behind",
        lambda cluster: ranks.session_variables(*_others(cluster, "node4"), GLOO_SOCKET_IFNAME="eth0"),
        job=f"export GLOO_SOCKET_IFNAME=eth0\n{_OVER_MPI}",
        files={"hostfile": _HOSTS},
    ),
    on_node("trainer-left-over", "node2", ranks.left_over),
    on_node(
        "parameter-server-left-over-on-its-port",
        "node2",
        lambda node: ranks.left_over(node, port=6170, role="PSERVER"),
        job=_SERVERS,
        script=_SERVER_SCRIPT,
    ),
    on_node(
        "parameter-server-left-over",
        "node4",
        lambda node: ranks.left_over(node, port=7170, role="PSERVER"),
        job=_SERVERS,
        script=_SERVER_SCRIPT,
    ),
    on_node("rank-of-an-earlier-run-stopped", "node3", lambda node: ranks.left_over(node, stopped=True)),
    on_node("shared-memory-left-over", "node1", lambda node: ranks.left_over_segment(node, 300 * 2**20)),
    on_node("lock-of-an-extension-left-over", "node4", ranks.left_over_lock, script=GPU_SCRIPT, gpus=True),
    fault(
        "server-list-in-another-order-on-a-node",
        lambda cluster: _roles(cluster, "node4", PADDLE_PSERVERS_IP_PORT_LIST="10.77.0.2:6170,10.77.0.1:6170"),
        job=_FROM_ENVIRONMENT,
        script=_SERVER_SCRIPT,
    ),
    fault(
        "server-that-the-list-does-not-hold",
        lambda cluster: _roles(cluster, "node2", PADDLE_PORT="6190"),
        job=_FROM_ENVIRONMENT,
        script=_SERVER_SCRIPT,
    ),
    fault(
        "one-number-for-two-trainers",
        lambda cluster: _roles(cluster, "node4", PADDLE_TRAINER_ID="0"),
        job=_FROM_ENVIRONMENT,
        script=_SERVER_SCRIPT,
    ),
    on_node(
        "library-path-of-one-node",
        "node2",
        lambda node: ranks.session_variables(node, LD_LIBRARY_PATH="/srv/other/lib"),
    ),
    on_node(
        "blanks-in-nccl.conf",
        "node3",
        lambda node: ranks.nccl_conf(node, "NCCL_IB_HCA = mlx5_0\n"),
        script=GPU_SCRIPT,
        gpus=True,
    ),
    fault(
        "all-servers-on-one-node-under-two-names",
        _two_names_of_node1,
        job=_SERVERS.replace(_ENDPOINTS, _ALIASES),
        script=_SERVER_SCRIPT,
    ),
    fault(
        "tables-larger-than-the-servers'-nodes", lambda cluster: nullcontext(), job=_SERVERS, script=_LARGE_TABLE_SCRIPT
    ),
    fault(
        "server-on-an-ephemeral-port",
        lambda cluster: nullcontext(),
        job=_SERVERS.replace("node1:6170", "node1:36001"),
        script=_SERVER_SCRIPT,
    ),
    fault("source-tree-of-another-commit", lambda cluster: _in_place(cluster, "node4")),
    fault(
        "framework-that-no-node-has",
        lambda cluster: nullcontext(),
        script=SCRIPT.replace("import torch", "import horovod.torch as hvd\nimport torch"),
        options=("--select", "PKG005"),
    ),
    fault(
        "one-task-of-tensorflow-twice",
        lambda cluster: _tf_configs(cluster, 0, 1, 1, 3),
        job="TF_CONFIG=$TF_CONFIG python train.py\n",
        script=_TF_SCRIPT,
    ),
    on_node(
        "more-servers-and-trainers-than-cores",
        "node1",
        lambda node: faults.cpu_set(node, "0"),
        job=_SERVERS.replace("node3:6171", "node1:6171"),
        script=_SERVER_SCRIPT,
    ),
    fault(
        "stale-hostfile-where-the-launcher-starts",
        lambda cluster: _copies(
            cluster,
            {"run.sh": _OVER_MPI, "train.py": SCRIPT, "hostfile": _HOSTS},
            "node1",
            "hostfile",
            _HOSTS.replace("node4 slots=1\n", ""),
        ),
        job=_OVER_MPI,
        files={"hostfile": _HOSTS},
        options=("--directory", _FOLDER),
    ),
)
