"""Runs mutants in the modes that they apply to, and counts those that a smoke run finds.

python -m tests.mutants.score [--modes sync,geo] [--only NAME,...] [--healthy N] [--jobs 2] [--save FILE]
    [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.patch import MODES, SEALED_SHARE

__all__ = ["SEALED_SHARE", "Driver", "Result", "run_all", "table"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """The result of one mutant in one mode; without a mutant that of a healthy run."""

    name: str
    mode: str
    caught: dict[str, str]
    reached: int
    cpu_s: float
    wall_s: float
    details: list[str] = field(default_factory=list)
    differences: list[float | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Driver:
    """A process that has imported torch and forks trials, whose processes use this device: `cpu` or `cuda`."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        folders = (ROOT, ROOT / "checks", ROOT / "rules", *filter(None, [os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.driver"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.mutants: dict[str, tuple[list[str], str, str]] = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def run(self, name: str, mode: str) -> Result:
        """Run one mutant, or a healthy run for an empty name."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mutant": name, "mode": mode, "device": self._device}) + "\n")
        self._process.stdin.flush()
        found = self._read()
        return Result(
            name,
            mode,
            found["caught"],
            found["reached"],
            found["cpu_s"],
            found["wall_s"],
            found["details"],
            found["differences"],
            found["errors"],
        )

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(90)
        self._process.stdout.close()


def run_all(pairs: Iterable[tuple[str, str]], jobs: int = 1, device: str = "cpu") -> Iterator[Result]:
    """Run these pairs of mutant and mode on several drivers; results come as they are ready."""
    waiting, lock, done = iter(pairs), threading.Lock(), threading.Condition()
    found: list[Result] = []
    active = [jobs]

    def work() -> None:
        driver = None
        try:
            driver = Driver(device)
            while True:
                with lock:
                    pair = next(waiting, None)
                if pair is None:
                    return
                name, mode = pair
                result = driver.run(name, mode)
                with done:
                    found.append(result)
                    done.notify()
        finally:
            if driver is not None:
                driver.close()
            with done:
                active[0] -= 1
                done.notify()

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    while True:
        with done:
            done.wait_for(lambda: bool(found) or not active[0])
            if not found:
                return
            ready = found[:]
            found.clear()
        yield from ready


def within(pairs: Iterable[tuple[str, str]], limit_s: float) -> Iterator[tuple[str, str]]:
    """These pairs until the time is over; all of them if it is 0."""
    ends = time.monotonic() + limit_s
    for pair in pairs:
        if limit_s and time.monotonic() > ends:
            return
        yield pair


def table(results: Iterable[Result], sealed: Iterable[str]) -> str:
    """Caught and applicable mutants by mode, learned and sealed."""
    hidden = set(sealed)
    lines = ["| mode | known while the oracles were made | sealed | all |", "|---|---|---|---|"]
    every = [result for result in results if result.reached]
    for mode in (*MODES, ""):
        mine = [result for result in every if not mode or result.mode == mode]
        parts = ([r for r in mine if r.name not in hidden], [r for r in mine if r.name in hidden], mine)
        cells = [f"{sum(bool(r.caught) for r in part)} of {len(part)}" for part in parts]
        lines.append(f"| {mode or 'all'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="")
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", default="")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit-s", type=float, default=0.0, help="start no trial after this long")
    asked = parser.parse_args()
    modes = asked.modes.split(",")
    if asked.healthy:
        pairs = [("", mode) for _ in range(asked.healthy) for mode in modes]
    else:
        driver = Driver()
        mutants = driver.mutants
        driver.close()
        wanted = set(asked.only.split(",")) if asked.only else set(mutants)
        pairs = [(n, mode) for n in sorted(mutants) if n in wanted for mode in mutants[n][0] if mode in modes]
    results = []
    for result in run_all(within(pairs, asked.limit_s), asked.jobs, asked.device):
        results.append(result)
        state = " ".join(result.caught) or ("SURVIVED" if result.reached else "NOT REACHED")
        print(f"{result.mode:15} {result.name:50} {state:24} {result.cpu_s:.2f} {result.wall_s:.2f}", flush=True)
        if asked.only or (asked.healthy and result.caught):
            print(f"    {result.reached} {result.caught} {result.differences} {' '.join(result.details)}", flush=True)
    if asked.save:
        Path(asked.save).write_text(json.dumps([asdict(result) for result in results], indent=1))
    from zlib import crc32

    print(table(results, [r.name for r in results if crc32(r.name.encode()) % SEALED_SHARE == 0]))
    cpu = sum(result.cpu_s for result in results)
    print(f"{len(results)} trials, {cpu / max(1, len(results)):.2f} s of processor time each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
