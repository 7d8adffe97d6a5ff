"""Runs mutants: forks the processes of a smoke run from one that has imported torch, and asks the checks for a verdict.

The processes run what a smoke run without a job runs, with the parameters that its checks plan. One JSON line in asks
for a trial, one JSON line out answers it. Run as a program by `tests.mutants.score`. Nothing here may use CUDA: a
process that has done so cannot fork others that use it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp

from preflight.agent.wire import ProbeUnavailable
from preflight.model.configuration import SmokeOptions
from preflight.model.findings import Status
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import EventRecord, FactRecord, Request, Unavailable
from preflight_checks.smoke.completion import rank_did_not_finish
from preflight_checks.smoke.plan import plan_smoke
from preflight_checks.smoke.results import ranks_disagree, wrong_collective_result, wrong_pipeline_result
from preflight_checks.smoke.server_results import (
    server_or_worker_did_not_finish,
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    worker_replaced,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import plan_servers
from reference_trainer.collective import bandwidth
from reference_trainer.collective import bandwidth as pace
from reference_trainer.collective.rank import rank as run_rank
from reference_trainer.ps.server import server as run_server
from reference_trainer.ps.server_state import ServerState
from reference_trainer.ps.worker import worker as run_worker
from reference_trainer.ps.worker_steps import WorkerSteps
from tests.checks.check_builders import job, local_fleet
from tests.mutants import catalog
from tests.mutants.patch import (
    ALL_SERVERS,
    FSDP,
    GEO,
    PIPELINE,
    RANK,
    RANKS,
    RECOVERY,
    SERVER,
    SERVERS,
    SPARE,
    SSP,
    WORKER,
    Mutant,
    Patch,
    wrap,
)
from tests.ports import free_port, free_ports

#: A trial ends after this long, whatever its processes do.
LIMIT_S = 60.0
#: Nobody waits longer for others than this.
PATIENCE_S = 30.0
CPU, CUDA = "cpu", "cuda"
_ENTRIES = {"server": run_server, "worker": run_worker, "rank": run_rank}
_SERVER_CHECKS = (
    server_or_worker_did_not_finish,
    wrong_server_result,
    updates_lost_doubled_or_stale,
    servers_trained_nothing,
)
_RANK_CHECKS = (rank_did_not_finish, wrong_collective_result, ranks_disagree)


@dataclass(frozen=True)
class Run:
    """One smoke run: its job, its fleet and its requests."""

    job: Any
    fleet: Fleet
    requests: tuple[Request, ...]
    checks: tuple[Any, ...]


def plan(mode: str, device: str = CPU) -> Run:
    """The run of a mode as the checks plan it: two servers and three workers, three ranks, or two replicas of two
    stages. With the device `cuda` all of them share the first GPU.
    """
    if device == CPU:
        return _plan(mode)
    run = _plan(mode)
    places = (
        {"backend": "nccl"} if mode not in (*SERVERS, *RECOVERY) else {"server_device": CUDA, "worker_device": CUDA}
    )
    return replace(run, requests=tuple(replace(r, params={**r.params, **places}) for r in run.requests))


def _plan(mode: str) -> Run:
    if mode not in (*SERVERS, *RECOVERY):
        count = 4 if mode == PIPELINE else 3
        values = {"pipeline_parallel_size": 2, "micro_batches": 4} if mode == PIPELINE else {}
        asked, fleet = job(master_port=free_port(), **values), local_fleet(count)
        requests = [
            replace(r, params={**r.params, "master_port": free_port(), "backend": "gloo"})
            for r in plan_smoke(asked, fleet, Facts())
        ]
        port = requests[0].params["master_port"]
        more = {"sharding": True} if mode == FSDP else {}
        requests = [replace(r, params={**r.params, "master_port": port, **more}) for r in requests]
        checks = (*_RANK_CHECKS, wrong_pipeline_result) if mode == PIPELINE else _RANK_CHECKS
        return Run(asked, fleet, tuple(requests), checks)
    plain = mode.rpartition("-")[2]
    endpoints = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    asked = job(ps_mode=True, ps_server_endpoints=endpoints, ps_workers=3)
    options = SmokeOptions(mode=plain, staleness=2 if plain == SSP else None, backup=mode in RECOVERY)
    fleet = replace(local_fleet(6), smoke_options=options)
    requests = list(plan_servers(asked, fleet, Facts()))
    if mode in RECOVERY:
        step = 1 if plain == GEO else 6
        fault = {"kind": "kill", "step": step, "phase": "servers", "mid_push": True, "server": 1}
        requests = [
            replace(r, params={**r.params, "injected_fault": fault})
            if r.params["role"] == "worker" and r.params["index"] == 1 and not r.params.get("spare")
            else r
            for r in requests
        ]
    checks = (*_SERVER_CHECKS, worker_replaced) if mode in RECOVERY else _SERVER_CHECKS
    return Run(asked, fleet, tuple(requests), checks)


def role_of(request: Request) -> str:
    """`server`, `worker` or `rank`."""
    return request.probe.rpartition(":")[2]


def is_altered(mutant: Mutant, request: Request) -> bool:
    """Whether the mutant is in this process: server 1, worker 1, rank 1, or the backup worker."""
    role, spare = role_of(request), bool(request.params.get("spare"))
    index = int(request.params.get("index", request.params["rank"]))
    if mutant.process == RANKS:
        return True
    if mutant.process == ALL_SERVERS:
        return role == "server"
    if mutant.process == SPARE:
        return spare
    wanted = {SERVER: "server", WORKER: "worker", RANK: "rank"}[mutant.process]
    return role == wanted and index == 1 and not spare


def follow_phases(patch: Patch) -> None:
    """Let the patch know when the training begins and ends."""
    from reference_trainer.ps import settings

    def advance(original: Any) -> Any:
        def known(self: ServerState, phase: int) -> Any:
            patch.training = phase == settings.TRAINING
            return original(self, phase)

        return known

    def train(original: Any) -> Any:
        def known(self: WorkerSteps, first: int) -> Any:
            patch.training = True
            try:
                return original(self, first)
            finally:
                patch.training = False

        return known

    wrap(ServerState, "advance", advance)
    wrap(WorkerSteps, "train", train)


def trial(asked: dict[str, Any]) -> dict[str, Any]:
    """Run once, with a mutant or without; returns which checks fail, what they say, and how often the fault ran."""
    mode, mutant = asked["mode"], catalog.MUTANTS.get(asked.get("mutant", ""))
    run = plan(mode, asked.get("device", CPU))
    secret = os.urandom(32).hex()
    began = time.monotonic()
    started = [start(request, mutant, mode, secret) for request in run.requests]
    answers = collect(started, began)
    records, events = [], []
    for request, answer in zip(run.requests, answers, strict=True):
        missing = None
        if "report" not in answer:
            missing = Unavailable(
                answer.get("kind", "failed"), str(answer.get("error", "no answer")), "", answer["code"] or None
            )
        records.append(FactRecord(request, answer.get("report"), missing, 0.0, time.monotonic() - began))
        for event in answer["events"]:
            at_s = event.pop("at_s") - began
            events.append(EventRecord(request.key, request.node, at_s, "child", event))
    facts = Facts(tuple(records), tuple(sorted(events, key=lambda event: event.at_s)))
    caught: dict[str, str] = {}
    errors = {str(answer["error"]) for answer in answers if "error" in answer and answer["code"] != -signal.SIGKILL}
    for check in run.checks:
        for verdict in check.judge(run.job, run.fleet, facts):
            failed = verdict.status is Status.FAIL and check.meta.severity.value == "error"
            if failed or (verdict.status is Status.UNKNOWN and verdict.required):
                caught.setdefault(check.meta.id, verdict.message[:400])
    if not caught and errors:
        caught["-"] = "; ".join(sorted(errors))[:400]
    return {
        "caught": caught,
        "reached": sum(int(answer.get("reached", 0)) for answer in answers),
        "errors": sorted(errors)[:3],
        "details": [answer["detail"] for answer in answers if "detail" in answer][:1],
        "cpu_s": round(sum(answer.get("cpu_s", 0.0) for answer in answers), 3),
        "wall_s": round(time.monotonic() - began, 3),
        "differences": [
            answer["report"].get("difference_to_one_process") for answer in answers if answer.get("report")
        ],
    }


def start(request: Request, mutant: Mutant | None, mode: str, secret: str) -> tuple[int, int]:
    """Fork one process of the run."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    os.setsid()
    patch = Patch(mode)

    def emit(data: dict[str, Any]) -> None:
        os.write(writing, (json.dumps({**data, "at_s": time.monotonic()}) + "\n").encode())

    try:
        if mutant is not None and is_altered(mutant, request):
            mutant.apply(patch)
            follow_phases(patch)
        params = {**request.params, "run_id": "mutants", "secret": secret, "timeout_s": PATIENCE_S}
        if "endpoint" in params:
            params["listen_host"] = "127.0.0.1"
        answer = {"report": asdict(_ENTRIES[role_of(request)](params, emit))}  # type: ignore[arg-type]
    except ProbeUnavailable as error:
        answer = {"error": error.reason, "kind": error.kind}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "kind": "failed", "detail": traceback.format_exc()}
    times = os.times()
    answer.update(reached=patch.reached, cpu_s=times.user + times.system)
    emit(answer)
    os._exit(0)


def collect(started: list[tuple[int, int]], began: float) -> list[dict[str, Any]]:
    """The answer of each process; those that run for too long are killed."""
    texts = [b""] * len(started)
    pipes = {pipe: number for number, (_, pipe) in enumerate(started)}
    failed_s = 0.0
    while pipes:
        limit = began + LIMIT_S if not failed_s else min(began + LIMIT_S, failed_s + 5.0)
        if time.monotonic() > limit:
            break
        ready, _, _ = select.select(list(pipes), [], [], 0.1)
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            texts[pipes[pipe]] += data
            if not data:
                number = pipes.pop(pipe)
                os.close(pipe)
                # The supervisor of a real run ends the others, too, when one fails.
                if b'"error"' in texts[number].splitlines()[-1] if texts[number] else False:
                    failed_s = failed_s or time.monotonic()
    for pipe, number in pipes.items():
        os.kill(started[number][0], signal.SIGKILL)
        os.close(pipe)
    answers = []
    for (pid, _), text in zip(started, texts, strict=True):
        _, status = os.waitpid(pid, 0)
        lines = [json.loads(line) for line in text.splitlines() if line.endswith(b"}")]
        last = lines.pop() if lines and "event" not in lines[-1] else {"error": "no answer", "kind": "failed"}
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        answers.append({**last, "events": lines, "code": code})
    return answers


def main() -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert dist.is_available() and torch.distributed.fsdp
    # Speed is measured elsewhere.
    pace.STEPS, pace.PIECES, bandwidth.BUDGET_S = 1, 2, 0.03
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    out.write(json.dumps({name: [m.modes, m.process, m.what] for name, m in catalog.MUTANTS.items()}) + "\n")
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(trial(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
