"""Forks ranks from a process that has imported torch once, because each import costs more than a test.

One JSON line in asks for a run, one JSON line out answers it. Run as a program by the `ranks` fixture.
"""

import importlib
import json
import os
import sys
import traceback
from dataclasses import asdict

import torch
import torch.distributed as dist

from reference_trainer.collective import bandwidth as pace
from reference_trainer.collective import rank as collective


def main() -> None:
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    # A rank computes by itself for a second, so that a median tolerates throttling by control groups.
    pace.STEPS = 2
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(run(json.loads(line))) + "\n")
        out.flush()


def run(asked):
    """Fork `world_size` ranks, wait for all, and return their answers."""
    started = [start(rank, asked) for rank in range(asked["world_size"])]
    answers = []
    for pid, pipe in started:
        with os.fdopen(pipe) as stream:
            answers.append(json.loads(stream.read() or "{}"))
        os.waitpid(pid, 0)
    return answers


def start(rank, asked):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    events = []
    os.environ.update(asked.get("environment", {}).get(str(rank), {}))
    for name in asked.get("hidden", []):
        module, _, attribute = name.rpartition(".")
        importlib.import_module(module).__dict__.pop(attribute, None)
    for fault in asked.get("faults", [asked["fault"]] if "fault" in asked else []):
        if fault["rank"] == rank:
            inject(fault)
    params = {**asked["params"], "rank": rank, "local_rank": rank, "world_size": asked["world_size"]}
    params.update(asked.get("overrides", {}).get(str(rank), {}))
    try:
        answer = {"report": asdict(collective.rank(params, events.append))}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "detail": traceback.format_exc()}
    with os.fdopen(writing, "w") as stream:
        stream.write(json.dumps({**answer, "events": events}))
    os._exit(0)


def inject(fault):
    """Corrupt one collective of this rank: the `call`-th one of that name on a tensor of at least `elements`.
    `operation` is
    torch's name of it; if it works in place, the first argument is also the result.
    """
    name = fault.get("operation", "all_reduce")
    original = getattr(dist, name)
    state = {"calls": 0}

    def wrong(tensor, *args, **kwargs):
        fits = tensor.numel() >= fault["at_least"] if "at_least" in fault else tensor.numel() == fault["elements"]
        state["calls"] += fits
        mine = fits and state["calls"] == fault.get("call", 1)
        if fits and fault["kind"] == "missing":
            raise RuntimeError("ProcessGroupGloo does not support " + name)
        if mine:
            if fault["kind"] == "lost":
                tensor.zero_()
            elif fault["kind"] == "doubled":
                tensor.mul_(2.0)
        result = original(tensor, *args, **kwargs)
        if mine and fault["kind"] == "flipped":
            tensor.view(torch.int32)[fault["index"]] ^= 1 << fault["bit"]
        return result

    setattr(dist, name, wrong)


if __name__ == "__main__":
    main()
