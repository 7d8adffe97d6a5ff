"""Prints a table of how often plans agree with real launchers: `python -m tests.agreement`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.agreement.comparison import places
from tests.agreement.jobs import LAUNCHERS, generated_job
from tests.agreement.trial import Trial, run_trial
from tests.ports import free_ports


def main() -> int:
    """Run `count` jobs of each launcher; return 1 if any plan differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.agreement", description=__doc__)
    parser.add_argument("launchers", nargs="*", metavar="LAUNCHER", help=f"of {', '.join(LAUNCHERS)}")
    parser.add_argument("--jobs", type=int, default=30, metavar="N", help="seeds below N of each")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="leave out those before it")
    parser.add_argument("--seeds", choices=("all", "even", "odd"), default="all", help="run some of them alone")
    chosen = parser.parse_args()
    step = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}[chosen.seeds]
    seeds = [seed for seed in range(chosen.jobs)[step] if seed >= chosen.first]
    rows = ["| launcher | version | jobs | agree | processes | hosts | devices | disagreements by cause |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    wrong = False
    with places() as here:
        for name in chosen.launchers or LAUNCHERS:
            launcher = LAUNCHERS[name]
            reason = here.missing(launcher)
            if reason:
                rows.append(f"| {name} | not run: {reason} | | | | | | |")
                continue
            trials: list[Trial] = []
            for seed in seeds:
                began = time.monotonic()
                trial = run_trial(generated_job(launcher, seed, free_ports), here)
                trials.append(trial)
                sign = "agrees" if trial.agrees else f"DIFFERS {trial.comparison.cause}"
                print(f"== {name} {seed}: {sign} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
                if not trial.agrees:
                    wrong = True
                    print(*trial.comparison.differences, trial.shown, sep="\n", file=sys.stderr, flush=True)
            causes = Counter(trial.comparison.cause or "nothing started" for trial in trials if not trial.agrees)
            sums = [
                sum(trial.comparison.processes for trial in trials),
                sum(trial.comparison.hosts for trial in trials),
                sum(trial.comparison.devices for trial in trials),
            ]
            causes_text = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items())) or "none"
            agreed = sum(trial.agrees for trial in trials)
            cells = [name, here.version(launcher), len(trials), agreed, *sums, causes_text]
            rows.append(f"| {' | '.join(map(str, cells))} |")
            print(rows[-1], flush=True)
    print(*rows, sep="\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
