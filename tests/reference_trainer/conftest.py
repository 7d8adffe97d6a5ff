"""Ranks for tests: real processes on loopback, forked from one that has imported torch once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
Ranks = Callable[..., list[dict[str, Any]]]


@pytest.fixture(name="free_port")
def afree_port() -> int:
    """A port on which nothing listens now."""
    return free_port()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Run some ranks: `ranks(4, steps=3, fault={...})` returns the answer of each, by rank."""
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None

    def run(world_size: int, *, steps: int = 3, **asked: Any) -> list[dict[str, Any]]:
        assert server.stdin is not None and server.stdout is not None
        params = {
            "local_world_size": world_size,
            "master_addr": "127.0.0.1",
            "master_port": free_port(),
            "backend": "gloo",
            "interface": "lo",
            "steps": steps,
            "timeout_s": 30,
        }
        server.stdin.write(json.dumps({"world_size": world_size, "params": params, **asked}) + "\n")
        server.stdin.flush()
        answers = json.loads(server.stdout.readline())
        assert isinstance(answers, list)
        return answers

    yield run
    server.stdin.close()
    server.wait(60)
    server.stdout.close()
