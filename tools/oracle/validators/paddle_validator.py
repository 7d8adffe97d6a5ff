"""Asks PaddlePaddle about a launch line up to the start of its processes, or runs `fleet.init` as one rank of the job.

Sockets and other nodes are replaced: every peer answers at once, and communication groups are empty.
"""

import contextlib
import logging
import os
import pathlib
import re
import shlex
import sys
import types
import unittest.mock

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet, parallel
from paddle.distributed.launch import controllers
from paddle.distributed.launch.context import Context
from paddle.distributed.launch.context.node import Node
from paddle.distributed.launch.controllers import master, watcher
from verdict_lines import Refusal, main

#: The node that is asked.
ADDRESS = "10.0.0.1"
GPUS = 8


def validate(case):
    """Raise what Paddle raises at startup."""
    words, variables = _parsed(case["files"]["run.sh"])
    os.environ.update(variables)
    if case["form"] == "strategy":
        _start_ranks(case["files"]["train.py"], int(words[words.index("--nproc_per_node") + 1]))
    elif case["form"] == "roles":
        _make_role()
    else:
        _launch(words[words.index("paddle.distributed.launch") :])


def _parsed(script):
    text = script.replace("\\\n", " ")
    variables, words = {}, []
    for row in text.splitlines():
        if row.startswith("export "):
            name, _, value = shlex.split(row)[1].partition("=")
            variables[name] = value
        elif row.startswith("python"):
            words = shlex.split(row)
    return words, variables


def _start_ranks(program, ranks):
    """Run `fleet.init` as rank 0 of this many, without communication."""
    endpoints = ",".join(f"{ADDRESS}:{6070 + rank}" for rank in range(ranks))
    os.environ.update(
        PADDLE_TRAINERS_NUM=str(ranks),
        PADDLE_TRAINER_ID="0",
        PADDLE_TRAINER_ENDPOINTS=endpoints,
        PADDLE_CURRENT_ENDPOINT=endpoints.split(",")[0],
    )
    from paddle.distributed.fleet.base import topology

    topology._HYBRID_PARALLEL_GROUP = None
    # It keeps the size that it read first.
    parallel._global_parallel_env = None
    group = lambda ranks=None, **_: types.SimpleNamespace(  # noqa: E731
        nranks=len(ranks or ()), id=0, ranks=ranks, process_group=unittest.mock.MagicMock()
    )
    with contextlib.ExitStack() as stack:
        for name, other in (("init_parallel_env", _nothing), ("new_group", group), ("all_reduce", _nothing)):
            stack.enter_context(unittest.mock.patch.object(dist, name, other))
        stack.enter_context(unittest.mock.patch.object(paddle, "seed", _nothing))
        exec(program.partition("optimizer = ")[0], {"__name__": "__main__"})


def _make_role():
    """Read the role from the variables, as `fleet.init` does first."""
    paddle.enable_static()
    gloo = "paddle.distributed.fleet.base.role_maker.Gloo.init"
    manager = "paddle.distributed.fleet.base.role_maker.Manager"
    with unittest.mock.patch(gloo, _nothing), unittest.mock.patch(manager, unittest.mock.MagicMock()):
        try:
            fleet.PaddleCloudRoleMaker(is_collective=False)._generate_role()
        finally:
            paddle.disable_static()


def _launch(words):
    """Do what `paddle.distributed.launch` does before it starts processes."""
    sys.argv = list(words)
    logging.getLogger("LAUNCH").handlers.clear()
    said = []
    with _peers(), contextlib.redirect_stderr(Words(said)):
        try:
            context = Context()
            if context.is_legacy_mode():
                _launch_legacy()
                return
            controller = controllers.init(context)
            controller.build_job()
            if isinstance(controller, controllers.CollectiveElasticController):
                controller.job.replicas = controller.job.replicas_max
                int(context.args.elastic_timeout)
            if controller.build_pod() is False:
                raise Refusal("no process is started")
            if not controller.pod.containers:
                raise Refusal("No container in the pod")
            _check_program(context.args.training_script)
        except SystemExit:
            text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(said)).strip().splitlines()
            raise Refusal(next((row for row in reversed(text) if "error:" in row), "exit")) from None


def _launch_legacy():
    """Run the launcher of Paddle 2.0, which is used if an option is unknown."""
    from paddle.distributed.fleet import launch, launch_utils

    args = launch._parse_args()
    launch.get_host_name_ip = lambda: (ADDRESS, ADDRESS)
    if args.backend == "auto":
        mode = launch.which_distributed_mode(args)
    else:
        assert args.run_mode == "collective" or args.run_mode is None, "run mode must be collective"
        launch.check_backend(args.backend)
        mode = launch_utils.DistributeMode.COLLECTIVE
    if mode == launch_utils.DistributeMode.COLLECTIVE:
        launch.get_cluster_info(args)
    else:
        launch_utils.ParameterServerLauncher(args, mode)
    _check_program(args.training_script)


def _check_program(name):
    if not name or not pathlib.Path(name).exists():
        raise Refusal(f"training_script {name} does not exist")


@contextlib.contextmanager
def _peers():
    """Make other nodes answer at once, without sockets."""
    etcd = types.ModuleType("etcd3")
    etcd.client = lambda host, port: unittest.mock.MagicMock()
    sync = lambda self, prefix, key, value, size, rank=-1: _sync(self, value, size, rank)  # noqa: E731
    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch.object
        stack.enter_context(unittest.mock.patch.dict(sys.modules, {"etcd3": etcd}))
        stack.enter_context(patch(Node, "get_host_ip", lambda self: ADDRESS))
        stack.enter_context(patch(Node, "is_server_ready", classmethod(lambda cls, ip, port: False)))
        stack.enter_context(patch(master, "KVServer", unittest.mock.MagicMock()))
        stack.enter_context(patch(master, "KVClient", unittest.mock.MagicMock()))
        stack.enter_context(patch(master.time, "sleep", _nothing))
        stack.enter_context(patch(master.HTTPMaster, "sync_peers", sync))
        stack.enter_context(patch(master.ETCDMaster, "sync_peers", sync))
        stack.enter_context(patch(watcher.Watcher, "__init__", _nothing))
        yield


def _sync(self, value, size, rank):
    """Replaces `sync_peers`; peers have the same values as this node."""
    if size < 2:
        return [value], 0
    if isinstance(self, master.HTTPMaster):
        self.lazy_init()
    peers = [None] * size
    if rank >= 0:
        peers[rank] = value
    return [value] * size, max(rank, 0)


def _nothing(*args, **kwargs):
    """Replaces a call that would communicate."""


class Words:
    """A stream that stores what is written."""

    def __init__(self, words):
        self.write, self.flush = words.append, _nothing


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with eight GPUs."""
    core = paddle.framework.core
    with contextlib.ExitStack() as stack:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(GPUS)))}
        stack.enter_context(unittest.mock.patch.dict(os.environ, visible))
        stack.enter_context(unittest.mock.patch.object(core, "is_compiled_with_cuda", lambda: True))
        stack.enter_context(unittest.mock.patch.object(core, "get_cuda_device_count", lambda: GPUS, create=True))
        yield


if __name__ == "__main__":
    main(validate, on_gpu_node)
