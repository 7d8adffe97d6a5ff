"""One rank of a Paddle smoke run, as a program: parameters as a JSON argument, events on standard output.

Standard library only, started by the interpreter that has paddle. `fault` changes one sum of this rank.
"""

import json
import os
import sys
from dataclasses import asdict


def inject(fault):
    """Corrupt one all-reduce of this rank: its contribution is `lost`, or one bit of the result is `flipped`."""
    import paddle

    real = paddle.distributed.all_reduce
    calls = {"seen": 0}

    def all_reduce(tensor, *args, **kwargs):
        if list(tensor.shape) != [fault["elements"]]:
            return real(tensor, *args, **kwargs)
        calls["seen"] += 1
        if calls["seen"] != fault.get("call", 1):
            return real(tensor, *args, **kwargs)
        if fault["kind"] == "lost":
            tensor.set_value(paddle.zeros_like(tensor))
        task = real(tensor, *args, **kwargs)
        if fault["kind"] == "flipped":
            values = tensor.numpy()
            values.view("int32")[fault["index"]] ^= 1 << fault["bit"]
            tensor.set_value(paddle.to_tensor(values))
        return task

    paddle.distributed.all_reduce = all_reduce


def main():
    asked = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from reference_trainer.collective import rank

    events = []
    if asked.get("fault"):
        inject(asked["fault"])
    try:
        answer = {"report": asdict(rank.rank(asked["params"], events.append))}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    out.write(json.dumps({**answer, "events": events}))
    out.flush()
    os._exit(0)


main()
