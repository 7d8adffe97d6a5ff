"""What `preflight history` costs over 90 nights of 500 nodes: reading the runs and telling the stories. Goal: 1 s.

`python -m benchmarks history [NODES [NIGHTS]]`. Processor seconds of this process, on a SQLite file that is made first.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from preflight.commands.history.account import account_of
from preflight.commands.history.database import open_database
from preflight.commands.history.past import add_run, load_past
from tests.commands.history.fleet import Fleet, twelve

ROUNDS = 5


def main() -> None:
    """Print the medians."""
    size, nights = (*map(int, sys.argv[1:3]), *(500, 90)[len(sys.argv[1:3]) :])
    # The planted stories are made for a fleet of the usual size.
    stories = tuple(item.story for item in twelve(1)) if (size, nights) == (500, 90) else ()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.db"
        database = open_database(f"sqlite:///{file}")
        added: list[float] = []
        for report in Fleet(size, nights, 1, stories=stories).reports():
            before = time.process_time()
            add_run(database, report)
            added.append(time.process_time() - before)
        read: list[float] = []
        told: list[float] = []
        for _ in range(ROUNDS):
            before = time.process_time()
            past = load_past(database, days=nights)
            between = time.process_time()
            account_of(past, "")
            read.append(between - before)
            told.append(time.process_time() - between)
        database.close()
        kib = file.stat().st_size / 1024
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"history of {nights} nights of {size} nodes (medians; load average {load_average}; CPU seconds)")
    print(f"  add a run     {statistics.median(added):.3f}")
    print(f"  read the runs {statistics.median(read):.3f}")
    print(f"  tell stories  {statistics.median(told):.3f}; read and tell: goal 1 s")
    print(f"  file          {kib:.0f} KiB, {kib / nights:.0f} KiB a night")
