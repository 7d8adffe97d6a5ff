"""Starts the ranks of a program that starts its own, with the variables that a launcher would set for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, List, Union

from preflight.agent import process

#: The variable of a spawned rank, which spawns none itself.
MARK = "PREFLIGHT_SPAWNED"
#: How long after the deadline of all ranks they are waited for: each of them ends itself at that deadline.
_GRACE_S = 15.0
#: Instead of a number: one rank for each GPU.
PER_GPU = "gpus"


class NoRanks(Exception):
    """No rank can be started; the message tells why."""


def run(number: Union[int, str], arguments: List[str], deadline_s: float) -> int:
    """Start this program once for each rank of this machine, and wait for all of them.

    Args:
        number: how many, or `gpus`.
        arguments: the program's own words, its path first.
        deadline_s: the deadline of each rank.

    Returns 0 if all ranks do, otherwise 1. Raises NoRanks for `gpus` on a machine where torch finds none, and if ranks
    run on after their own deadline; those are killed.
    """
    count = _gpus() if number == PER_GPU else int(number)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), MARK: "1"}
    ranks: List[Any] = []

    def end(number_: int, frame: Any) -> None:
        for rank in ranks:
            rank.send_signal(number_)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    for rank in range(count):
        environment = {**own, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, *arguments]
        ranks.append(subprocess.Popen(command, env=environment, preexec_fn=process.die_with_parent))
    ends = time.monotonic() + deadline_s + _GRACE_S
    late: List[str] = []
    for place, rank in enumerate(ranks):
        try:
            rank.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            late.append(str(place))
    if late:
        raise NoRanks("rank %s did not end by itself at its deadline of %g s" % (", ".join(late), deadline_s))
    return 1 if any(rank.returncode for rank in ranks) else 0


def _gpus() -> int:
    try:
        import torch
    except ImportError as error:
        raise NoRanks("the program starts one rank for each GPU, and torch cannot be imported: %s" % error) from None
    count = int(torch.cuda.device_count())
    if not count:
        raise NoRanks("the program starts one rank for each GPU, and torch %s finds none" % torch.__version__)
    return count
