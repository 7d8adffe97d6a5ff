"""conf.py and index files of PaddlePaddle 0.x."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import IndexListSource
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python import PythonSource

CONF = '''\
HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18:9090",
]
"""
network configuration
"""
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = PADDLE_PORTS_NUM
LD_LIBRARY_PATH = "/usr/local/cuda/lib64"
'''


def _read(text: str, path: str = "conf.py") -> Reading:
    return PythonSource().read(SourceFile(path, text, "", len(text)), MemoryTree({"train.list": "a\n"}), role="script")


def _of(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def test_the_settings() -> None:
    reading = _read(CONF)
    (hosts,) = _of(reading, "hosts")
    assert hosts.value == Known(("192.168.100.17", "192.168.100.18"))
    assert _of(reading, "cluster_hosts")[0].value == Known(("root@192.168.100.17", "root@192.168.100.18:9090"))
    (sparse,) = _of(reading, "pserver_sparse_ports")
    assert (sparse.value, sparse.span.line) == (Known(2), 11)
    assert _of(reading, "ps_workers")[0].value == Known(2)


def test_imported_hosts_are_unresolved() -> None:
    (hosts,) = _of(_read("HOSTS = open('hosts').read().split()\nPADDLE_PORT = 7164\n"), "hosts")
    assert isinstance(hosts.value, Unresolved)


@pytest.mark.parametrize(
    "text",
    ["HOSTS = 3\nPADDLE_PORT = 'x'\n", "HOSTS = PADDLE_PORT = []\n", "HOSTS = [1, 2]\nPADDLE_PORT = None\n"],
)
def test_invalid_settings_do_not_raise(text: str) -> None:
    assert all(isinstance(claim.value, Known | Unresolved) for claim in _read(text).claims)


def test_arguments_of_paddle_init_are_claimed() -> None:
    text = 'import paddle.v2 as paddle\n\npaddle.init(port=7164, ports_num=2, trainer_id=1, pservers="a,b")\n'
    reading = _read(text, "train.py")
    assert _of(reading, "ps_index")[0].value == Known(1)
    assert _of(reading, "pserver_hosts")[0].value == Known(("a", "b"))
    local = _read("import paddle.v2 as paddle\n\npaddle.init(use_gpu=False, trainer_count=1)\n", "train.py")
    assert not _of(local, "ps_mode")


def test_index_files_are_followed() -> None:
    text = "from paddle.trainer_config_helpers import *\ndefine_py_data_sources2('train.list', None, 'p', 'q')\n"
    assert [item.target for item in _read(text, "t.py").references if item.role == "index"] == ["train.list"]


def test_an_index_file() -> None:
    text = "data/a.txt\n\n  data/b.txt  \r\ndata/a.txt\n"
    file = SourceFile("train.list", text, "", len(text))
    (claim,) = IndexListSource().read(file, MemoryTree({})).claims
    assert claim.value == Known(("data/a.txt", "data/b.txt", "data/a.txt"))
    assert [(line.span.line, line.span.column) for line in claim.because] == [(1, 1), (3, 3), (4, 1)]


@pytest.mark.parametrize(
    ("path", "text", "ours"),
    [
        ("train.list", "a\nb\n", True),
        ("x/test.list", "", True),
        ("train.list", "img/1.jpg 3\n", False),
        ("list.txt", "a\n", False),
    ],
)
def test_index_files_are_recognised(path: str, text: str, ours: bool) -> None:
    assert IndexListSource().recognises(SourceFile(path, text, "", len(text))) is ours
