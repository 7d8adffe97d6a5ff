"""Claims about PaddlePaddle 0.x: the settings of cluster_train (conf.py), and the arguments of `paddle.init`.

Source: paddle/scripts/cluster_train/conf.py and doc/howto/cluster of PaddlePaddle 0.8 to 0.11.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Reference, Strength, Value, lift
from preflight.model.job.value import Plain
from preflight.sources.python.module import Module, argument, value_of

#: Variables of conf.py.
_CONF = {
    "PADDLE_PORT": "pserver_port",
    "PADDLE_PORTS_NUM": "pserver_ports",
    "PADDLE_PORTS_NUM_FOR_SPARSE": "pserver_sparse_ports",
}
#: Arguments of paddle.v2.init.
_INIT = {
    "port": "pserver_port",
    "ports_num": "pserver_ports",
    "ports_num_for_sparse": "pserver_sparse_ports",
    "trainer_count": "trainer_threads",
    "num_gradient_servers": "ps_workers",
    "trainer_id": "ps_index",
}


def claims(module: Module) -> Iterator[Claim | Reference]:
    """All claims about cluster_train and PaddlePaddle 0.x."""
    text = module.file.text
    if "PADDLE_PORT" in text and "HOSTS" in text:
        yield from _conf(module)
    if "sparse_update" in text:
        for node in module.calls:
            given = argument(node, "sparse_update")
            if given is not None and module.fold(value_of(given)) == Known(True):
                yield module.claim("sparse_update", True, given, source="paddle")
    if "paddle" in text:
        for call in module.calls:
            name = module.called(call)
            if name in ("paddle.v2.init", "paddle.init") and call.keywords:
                yield from _init(module, call)
            elif name.endswith("define_py_data_sources2"):
                yield from _sources(module, call)


def _conf(module: Module) -> Iterator[Claim]:
    for node in module.tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if name == "HOSTS":
            yield from _hosts(module, node)
        elif name in _CONF:
            yield _state(module, _CONF[name], module.fold(node.value), node)
        elif name == "PADDLE_NIC":
            yield _state(module, "pserver_nics", lift(_names, module.fold(node.value)), node)
        elif name == "ROOT_DIR":
            yield _state(module, "cluster_workspace", module.fold(node.value), node)


def _state(module: Module, quantity: str, value: Value, node: ast.Assign) -> Claim:
    return module.claim(
        quantity, value, node, strength=Strength.CONFIG, source="cluster_train", spelling=module.text(node)[:120]
    )


def _hosts(module: Module, node: ast.Assign) -> Iterator[Claim]:
    value = lift(_as_list, module.fold(node.value))
    yield _state(module, "cluster_hosts", value, node)
    hosts = lift(lambda item: tuple(_bare(str(host)) for host in item) if isinstance(item, tuple) else (), value)
    yield _state(module, "hosts", hosts, node)
    count = lift(lambda item: len(item) if isinstance(item, tuple) else 0, value)
    yield _state(module, "ps_workers", count, node)
    yield _state(module, "ps_servers", count, node)


def _as_list(item: Plain) -> Plain:
    if not isinstance(item, tuple) or not all(isinstance(host, str) for host in item):
        raise TypeError("hosts must be strings")
    return item


def _bare(host: str) -> str:
    """`root@192.168.100.17:9090` is the host 192.168.100.17."""
    return host.rpartition("@")[2].partition(":")[0].strip()


def _names(item: Plain) -> Plain:
    return tuple(part.strip() for part in str(item).split(",") if part.strip())


def _init(module: Module, call: ast.Call) -> Iterator[Claim]:
    servers = argument(call, "pservers")
    for name, quantity in _INIT.items():
        given = argument(call, name)
        if given is not None and (servers is not None or name == "trainer_count"):
            yield module.claim(quantity, module.fold(value_of(given)), given, source="paddle")
    if servers is not None:
        value = lift(_names, module.fold(value_of(servers)))
        yield module.claim("pserver_hosts", value, servers, source="paddle")
        yield module.claim("ps_mode", True, call.func, spelling=module.text(call.func), source="paddle")


def _sources(module: Module, call: ast.Call) -> Iterator[Reference]:
    """The index files of `define_py_data_sources2(train_list="train.list", ...)`, if they are in the tree."""
    for position, name in enumerate(("train_list", "test_list")):
        given = argument(call, name, position)
        value = module.fold(value_of(given)) if given is not None else None
        if given is None or not isinstance(value, Known) or not isinstance(value.value, str) or not value.value:
            continue
        target = module.files.resolve(value.value, relative_to=module.file.path)
        if target is not None:
            yield Reference(target, "index", module.span(value_of(given)), module.scope)
