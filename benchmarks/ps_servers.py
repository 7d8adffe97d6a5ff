"""Steps per second of two workers over 1 to 4 servers, asynchronously, in turns, and the CPU time of each.

With fewer processors than processes, more servers only share them: then the CPU time of a step shows the cost of
each further server, but not its benefit.
"""

from __future__ import annotations

import functools
import os
import sys

from benchmarks.ps_steps import MODELS, WORKERS, our_contestant, turns

ROUNDS = 5
SERVERS = (1, 2, 3, 4)


def main() -> int:
    """Print a table for each model."""
    import torch

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    for title, (options, count) in MODELS.items():
        names = {servers: f"{servers} server" + ("s" if servers > 1 else "") for servers in SERVERS}
        turns(title, [functools.partial(our_contestant, options, s, names[s]) for s in SERVERS], count, rounds)
    processors, processes = len(os.sched_getaffinity(0)), WORKERS + max(SERVERS)
    print(f"  {processors} processors for up to {processes} processes; the ratios are against one server")
    return 0


if __name__ == "__main__":
    sys.exit(main())
