"""Forks servers and workers from a process that has imported torch once, because each import costs more than a test.

One JSON line in asks for a run, one JSON line out answers it. Run as a program by the `parts` fixture.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import asdict

import torch

from preflight.agent.wire import ProbeUnavailable
from reference_trainer.ps.server import server
from reference_trainer.ps.worker import worker


def main() -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(run(json.loads(line))) + "\n")
        out.flush()


def run(asked):
    """Fork one process for each of `asked["parts"]`, wait for all, and return their answers."""
    started = [start(params) for params in asked["parts"]]
    texts = [""] * len(started)
    open_pipes = {pipe: number for number, (_, pipe) in enumerate(started)}
    pids = {number: pid for number, (pid, _) in enumerate(started)}
    ended = {}
    ends = time.monotonic() + asked.get("limit_s", 60)
    while open_pipes and time.monotonic() < ends:
        ready, _, _ = select.select(list(open_pipes), [], [], 0.1)
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            texts[open_pipes[pipe]] += data.decode()
            if not data:
                os.close(pipe)
                ended[open_pipes.pop(pipe)] = time.time()
        # A stopped process is killed once no other runs.
        if {open_pipes[pipe] for pipe in open_pipes} <= set(asked.get("stopped", [])):
            break
    for pipe, number in open_pipes.items():
        os.kill(pids[number], signal.SIGKILL)
        os.close(pipe)
    answers = []
    for number, text in enumerate(texts):
        _, status = os.waitpid(pids[number], 0)
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        last = lines.pop() if lines and "event" not in lines[-1] else {"error": "no answer"}
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        answers.append({**last, "events": lines, "code": code, "ended_s": ended.get(number)})
    return answers


def start(params):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)

    def say(data):
        os.write(writing, (json.dumps({**data, "at_s": time.time()}) + "\n").encode())

    entry = server if params["entry"] == "server" else worker
    try:
        answer = {"report": asdict(entry(params, say))}
    except ProbeUnavailable as error:
        answer = {"error": error.reason, "kind": error.kind}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "kind": "crashed", "detail": traceback.format_exc()}
    say(answer)
    os._exit(0)


if __name__ == "__main__":
    main()
