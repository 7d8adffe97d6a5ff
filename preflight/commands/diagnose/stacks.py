"""Reads stacks of Python processes as `py-spy dump` prints them, and compares those of several ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.commands.diagnose.blocks import is_library
from preflight.commands.diagnose.hangs import Hang, format_ranks

#: Largest dump that is read.
MAX_BYTES = 8 << 20
_MAX_LINES = 100_000
_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}): ")
_VERSION = re.compile(r"(?m)^Python v\d")
_THREAD = re.compile(r'Thread [\w]{1,20}(?: \([^)\n]{1,40}\))?: ?"?(?P<name>[^"\n]{0,80})"?')
_FRAME = re.compile(r"\s{1,8}(?P<function>[^(\n]{1,200}) \((?P<path>[^()\n]{1,400}):(?P<line>\d{1,9})\)$")
#: Files whose functions are collectives; a wrapper such as FSDP also computes below torch/distributed.
_COLLECTIVE_FILES = ("distributed_c10d.py", "torch/distributed/_functional_collectives.py", "horovod/torch/mpi_ops.py")
#: Functions of these files that are no collectives themselves.
_WRAPPERS = ("wrapper", "_wrap", "inner", "decorate_context")


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the main thread of a rank is.

    Args:
        collective: the collective operation that it is in; empty if it is in none.
        place: `path:line` of the innermost frame of the user's program, otherwise of the innermost frame.
        function: the function of that place.
    """

    rank: int
    path: str
    collective: str
    place: str
    function: str


def looks_like_stacks(head: bytes) -> bool:
    """Return whether a file is a dump of stacks, by its first bytes."""
    text = head[:4096].decode("utf-8", "replace")
    return _PROCESS.match(text) is not None and _VERSION.search(text) is not None


def read_stack(text: str, rank: int, path: str) -> Stack | None:
    """Return the stack of the main thread in a dump of one process, or None if it has no frames."""
    frames: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    is_main = False
    for line in text.splitlines()[:_MAX_LINES]:
        if (thread := _THREAD.match(line)) is not None:
            is_main = thread["name"] == "MainThread"
        elif (frame := _FRAME.match(line)) is not None:
            (frames if is_main else others).append((frame["function"].strip(), f"{frame['path']}:{frame['line']}"))
    frames = frames or others
    if not frames:
        return None
    own = next(((function, place) for function, place in frames if not _is_library(place)), frames[0])
    collective = next(
        (
            function
            for function, place in frames
            if any(name in place for name in _COLLECTIVE_FILES) and function not in _WRAPPERS
        ),
        "",
    )
    return Stack(rank, path, collective, own[1], own[0])


def _is_library(place: str) -> bool:
    """Return whether a place is in a library; py-spy shortens paths of packages to `torch/...`."""
    return is_library(place) or place.startswith(("torch/", "threading.py", "multiprocessing/", "selectors.py", "<"))


def find_hang(stacks: Sequence[Stack]) -> Hang | None:
    """Return the difference between ranks in a collective and those in none or in another one, or None."""
    by_rank = {stack.rank: stack for stack in stacks}
    inside = [stack for stack in by_rank.values() if stack.collective]
    outside = [stack for stack in by_rank.values() if not stack.collective]
    lines = tuple(_where(stack) for stack in (*outside, *inside))[:32]
    if inside and outside:
        odd = sorted(stack.rank for stack in outside)
        waiting = tuple(sorted(stack.rank for stack in inside))
        verb = "is" if len(odd) == 1 else "are"
        text = f"{format_ranks(odd)} {verb} in no collective, {format_ranks(waiting)} in {inside[0].collective}"
        first = by_rank[odd[0]]
        return Hang("missing", tuple(odd), waiting, text, lines, first.place, first.path)
    names = {stack.collective for stack in inside}
    if len(names) > 1:
        counts = {name: [stack.rank for stack in inside if stack.collective == name] for name in names}
        common = max(sorted(counts), key=lambda name: (len(counts[name]), -min(counts[name])))
        odd = sorted(stack.rank for stack in inside if stack.collective != common)
        first = by_rank[odd[0]]
        text = f"{format_ranks(odd)} in {first.collective}, {format_ranks(counts[common])} in {common}"
        return Hang("other", tuple(odd), tuple(sorted(counts[common])), text, lines, first.place, first.path)
    return None


def _where(stack: Stack) -> str:
    inside = f"in {stack.collective}, called" if stack.collective else "in no collective,"
    return f"rank {stack.rank}: {inside} at {stack.place} ({stack.function})"
