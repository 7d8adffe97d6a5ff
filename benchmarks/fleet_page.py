"""What the pages of `preflight serve` cost over 90 nights of 1,000 nodes. Goal: 1 s for each page.

`python -m benchmarks fleet_page [NODES [NIGHTS]]`. CPU seconds of this process: queries, drawing and the template. The
database is a SQLite file that is made first.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from starlette.requests import Request

from preflight.commands.history.database import open_read_only
from preflight.services.access import Access
from preflight.services.fleet_page.application import FleetPage
from preflight.services.fleet_page.history_queries import filters_of, read_account, read_past
from tests.services.fleet_page.big_fleet import build, name_of

ROUNDS = 5


def main() -> None:
    """Print the medians."""
    size, nights = (*map(int, sys.argv[1:3]), *(1000, 90)[len(sys.argv[1:3]) :])
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{folder}/history.db"
        build(address, size, nights)
        database = open_read_only(address)
        page = FleetPage(database, Access(""))
        pages = {
            "the fleet": (page._fleet, {}, {}),
            "failing nodes": (page._fleet, {"state": "failing"}, {}),
            "a node": (page._node, {}, {"name": name_of(7)}),
            "all links": (page._links, {}, {}),
            "links of a node": (page._links, {"hosts": name_of(7)}, {}),
        }
        took: dict[str, list[float]] = {}
        lengths: dict[str, int] = {}
        for _ in range(ROUNDS):
            for name, (make, query, path) in pages.items():
                scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
                request = Request({**scope, "path_params": path})
                before = time.process_time()
                with database.reading(60) as connection:
                    assert connection is not None
                    lengths[name] = len(make(connection, filters_of(query.items()), request))
                took.setdefault(name, []).append(time.process_time() - before)
        with database.reading(60) as connection:
            assert connection is not None
            before = time.process_time()
            read_past(connection, 90)
            between = time.process_time()
            read_account(connection, 90, "")
            stories = time.process_time() - between
        database.close()
        kib = Path(folder, "history.db").stat().st_size / 1024
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"pages over {nights} nights of {size} nodes (medians; load average {load_average}; CPU seconds)")
    for name, seconds in took.items():
        print(f"  {name:16} {statistics.median(seconds):.2f}  {lengths[name] / 1024:6.0f} KiB")
    print(f"  states alone     {between - before:.2f}; goal for each page 1 s")
    print(f"  the stories      {stories:.2f}  once after each run")
    print(f"  file             {kib:.0f} KiB")
