"""One target under libFuzzer, in a process of its own: `python -m tests.fuzz.fuzzer TARGET CPU_SECONDS FOLDER`.

A fault does not end it: the first input of each signature is kept with its traceback, and the search continues. Faults
that end the process (in an extension module, or a run that no signal reaches) are kept by libFuzzer.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import atheris

#: For runs that no signal reaches: seconds by the clock, long enough for a busy machine.
_BACKSTOP_S = 90
_MAX_RSS_MIB = 2048
_PACKAGES = ["preflight", "preflight_rules", "preflight_checks", "reference_trainer"]
#: The slowdown of instrumented code.
_SLOWER = 2.5
#: The maximum number of signatures for each target.
_MAX_FINDINGS = 40


def main(name: str, cpu_s: float, folder: Path) -> None:
    """Fuzz for this number of CPU seconds."""
    # Modules are also imported lazily, so the hook stays while inputs run.
    with atheris.instrument_imports(include=_PACKAGES):
        _fuzz(name, cpu_s, folder)


def _fuzz(name: str, cpu_s: float, folder: Path) -> None:
    from tests.fuzz import words
    from tests.fuzz.targets import TARGETS

    warnings.simplefilter("ignore")
    target = TARGETS[name]
    starts = sorted(set(target.seeds()), key=len)
    listed = (*words.of_seeds(starts), *target.words(), *words.ODD)
    corpus, found = folder / "corpus" / name, folder / "findings" / name
    begun = folder / "seeds" / name
    for place in (corpus, found, begun):
        place.mkdir(parents=True, exist_ok=True)
    for seed in starts:
        data = seed[: target.max_file_bytes]
        (begun / hashlib.sha1(data).hexdigest()).write_bytes(data)
    dictionary = folder / "seeds" / f"{name}.dict"
    dictionary.write_text(words.dictionary(listed), "utf-8")
    keeper = _Keeper(found)
    target.warm()
    began_s = time.process_time()

    def one(data: bytes) -> None:
        if time.process_time() - began_s > cpu_s:
            # libFuzzer's own orderly exit.
            os.kill(os.getpid(), signal.SIGUSR1)
            return
        if keeper.knows(data):
            return
        finding = target.tried(data, slower=_SLOWER)
        if finding is not None:
            keeper.keep(finding)

    def mutated(data: bytes, largest: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if dice.random() < 0.4:
            return bytes(atheris.Mutate(data, largest))
        return target.mutate(data, dice, listed)[:largest]

    arguments = [
        *(sys.argv[0], str(corpus), str(begun), f"-dict={dictionary}", f"-max_len={target.max_file_bytes}"),
        *(f"-timeout={_BACKSTOP_S}", f"-rss_limit_mb={_MAX_RSS_MIB}", f"-artifact_prefix={found}/died-"),
        *("-print_final_stats=1", "-report_slow_units=1000", "-len_control=20", f"-max_total_time={int(cpu_s * 20)}"),
    ]
    # A MemoryError has a traceback, which a killed process has not.
    space = _MAX_RSS_MIB * (1 << 20) + _virtual_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    atheris.Setup(arguments, one, custom_mutator=mutated)
    atheris.Fuzz()


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class _Keeper:
    """The findings so far, of this run and earlier ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slugs = {path.name for path in folder.iterdir() if path.is_dir()}
        self._list = folder / "inputs.json"
        self._inputs: set[str] = set(json.loads(self._list.read_text())) if self._list.exists() else set()

    def knows(self, data: bytes) -> bool:
        """Whether this input is already a finding: it need not run again."""
        return bool(self._inputs) and hashlib.sha1(data).hexdigest() in self._inputs

    def keep(self, finding) -> None:  # type: ignore[no-untyped-def]
        """Keep the first, and then the shortest input of each signature."""
        self._inputs.add(hashlib.sha1(finding.data).hexdigest())
        self._list.write_text(json.dumps(sorted(self._inputs)))
        place = self._folder / finding.slug
        known = place / "input"
        if finding.slug not in self._slugs and len(self._slugs) >= _MAX_FINDINGS:
            return
        if known.exists() and known.stat().st_size <= len(finding.data):
            return
        place.mkdir(exist_ok=True)
        known.write_bytes(finding.data)
        (place / "story.txt").write_text(f"{finding.signature}\n\n{finding.story}", "utf-8", "backslashreplace")
        if finding.slug not in self._slugs:
            self._slugs.add(finding.slug)
            print(f"FINDING {finding.signature}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
