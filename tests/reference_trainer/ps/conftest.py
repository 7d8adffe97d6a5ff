"""Servers and workers for tests: real processes on loopback, forked from one that has imported torch once."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Answers:
    """The answers of servers, workers and backup workers, by index."""

    servers: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    spares: list[dict[str, Any]]

    @property
    def errors(self) -> list[str]:
        """All errors."""
        return [answer["error"] for answer in (*self.servers, *self.workers, *self.spares) if "error" in answer]

    @property
    def reports(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The reports of servers and workers; each must have one."""
        assert self.errors == [], [answer.get("detail") for answer in (*self.servers, *self.workers, *self.spares)]
        return [s["report"] for s in self.servers], [w["report"] for w in self.workers]


PushParts = Callable[..., Answers]


@pytest.fixture(scope="session")
def parts() -> Iterator[PushParts]:
    """Run servers and workers: `parts(2, 3, mode="ssp")` returns their answers. `overrides={"worker 1": {...}}` changes
    the
    params of one of them; `spares=1` adds backup workers; `absent` leaves some out; `stopped` names those that are not
    awaited.
    """
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("process_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )

    def run(
        servers: int,
        workers: int,
        *,
        overrides: dict[str, dict[str, Any]] | None = None,
        spares: int = 0,
        absent: tuple[str, ...] = (),
        stopped: tuple[str, ...] = (),
        **params: Any,
    ) -> Answers:
        assert process.stdin is not None and process.stdout is not None
        names, asked = _parts(servers, workers, spares, params, overrides or {}, absent)
        request = {"parts": asked, "stopped": [names.index(name) for name in stopped]}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answers = dict(zip(names, json.loads(process.stdout.readline()), strict=True))
        return Answers(
            *([a for n, a in answers.items() if n.startswith(kind)] for kind in ("server", "worker", "spare"))
        )

    yield run
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def _parts(
    servers: int,
    workers: int,
    spares: int,
    params: dict[str, Any],
    overrides: dict[str, dict[str, Any]],
    absent: tuple[str, ...],
) -> tuple[list[str], list[dict[str, Any]]]:
    endpoints = params.get("server_endpoints") or [f"127.0.0.1:{port}" for port in free_ports(servers)]
    common = {
        "servers": servers,
        "workers": workers,
        "server_endpoints": endpoints,
        "listen_host": "127.0.0.1",
        "steps": 10,
        "timeout_s": 20,
        "run_id": "test",
        "secret": secrets.token_hex(32),
        "spares": spares,
        **params,
    }
    wanted: dict[str, dict[str, Any]] = {}
    for index in range(servers):
        wanted[f"server {index}"] = {"entry": "server", "rank": index, "index": index, "endpoint": endpoints[index]}
    for index in range(workers):
        wanted[f"worker {index}"] = {"entry": "worker", "rank": servers + index, "index": index}
    for index in range(spares):
        wanted[f"spare {index}"] = {"entry": "worker", "rank": servers + workers + index, "index": index, "spare": True}
    chosen = {name: {**common, **given, **overrides.get(name, {})} for name, given in wanted.items()}
    names = [name for name in chosen if name not in absent]
    return names, [{"role": chosen[name]["entry"], **chosen[name]} for name in names]
