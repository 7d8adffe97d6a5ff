"""Reads dumps of torch's Flight Recorder: the last collectives of a rank, as JSON or as a pickle.

The format is that of `torch._C._distributed_c10d._dump_fr_trace` and `_dump_fr_trace_json` (versions 2.1 to 2.10). A
dump does not name its rank; the name of its file does.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from preflight.commands.diagnose import pickled
from preflight.commands.diagnose.blocks import is_library

#: Largest pickle that is read; torch keeps 2000 collectives by default, with stacks some 10 MiB.
MAX_BYTES = 32 << 20
#: JSON has no stacks and takes more memory to read.
MAX_JSON_BYTES = 8 << 20
MAX_CALLS = 100_000
#: Of the finished calls of each group this many are kept: a hang is explained by those that are not finished.
_KEPT_FINISHED = 20
_MAX_TEXT = 300
_MAX_FRAMES = 200
_MAX_SIZES = 64
_MAX_NUMBERS = 16
_MAX_RANKS = 100_000
_NUMBER = re.compile(r"\d{1,7}")
_PICKLE = b"\x80"


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one rank.

    Args:
        sequence: its number in the group, from 1 on; the same for all ranks of the group.
        shapes: sizes of its input tensors, as text.
        is_finished: it ended on this rank.
        place: `path:line` of the user's program, or of the innermost frame; empty if the dump has no stacks.
    """

    group: str
    description: str
    sequence: int
    operation: str
    shapes: str
    dtypes: str
    is_finished: bool
    place: str


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank: its calls in order, and the ranks of each group, if the dump lists them."""

    rank: int
    path: str
    calls: tuple[Call, ...]
    groups: dict[str, tuple[int, ...]]


def looks_like_dump(head: bytes) -> bool:
    """Return whether a file may be a dump, by its first bytes."""
    return head.startswith(_PICKLE) or head.lstrip().startswith(b"{")


def read_dump(data: bytes, rank: int, path: str) -> Dump | None:
    """Return the dump that a file holds, or None if it holds something else.

    Raises:
        ValueError: it is damaged, or a pickle of something else than plain containers.
    """
    if data.startswith(_PICKLE):
        document = pickled.load(data)
    elif len(data) > MAX_JSON_BYTES:
        raise ValueError(f"more than {MAX_JSON_BYTES >> 20} MiB of JSON")
    else:
        try:
            document = json.loads(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"invalid JSON: {type(error).__name__}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list | tuple):
        return None
    calls = _relevant(list(_calls(document["entries"])))
    return Dump(rank, path, calls, _groups(document.get("pg_config")))


def _relevant(calls: list[Call]) -> tuple[Call, ...]:
    """Return the calls that are not finished, and the last finished ones of each group, in order."""
    finished: Counter[str] = Counter()
    kept: list[Call] = []
    for call in reversed(calls):
        finished[call.group] += call.is_finished
        if not call.is_finished or finished[call.group] <= _KEPT_FINISHED:
            kept.append(call)
    return tuple(reversed(kept))


def _calls(entries: Any) -> Iterator[Call]:
    # The oldest come first, and the newest explain a hang.
    for entry in entries[-MAX_CALLS:]:
        if not isinstance(entry, dict) or entry.get("is_p2p") is True:
            continue
        sequence = entry.get("collective_seq_id")
        name = entry.get("profiling_name")
        if not _is_count(sequence) or not isinstance(name, str):
            continue
        group = entry.get("process_group")
        pair = [_text(part) for part in group[:2]] if isinstance(group, list | tuple) else []
        yield Call(
            group=pair[0] if pair else "",
            description=pair[1] if len(pair) > 1 else "",
            sequence=sequence,
            operation=name[:_MAX_TEXT].rpartition(":")[2],
            shapes=_shapes(entry.get("input_sizes")),
            dtypes=_names(entry.get("input_dtypes")),
            is_finished=entry.get("retired") is True or entry.get("state") == "completed",
            place=_place(entry.get("frames")),
        )


def _shapes(sizes: Any) -> str:
    if not isinstance(sizes, list | tuple):
        return ""
    shown = (
        "[" + ", ".join(str(number) for number in size[:_MAX_NUMBERS] if _is_count(number)) + "]"
        for size in sizes[:_MAX_SIZES]
        if isinstance(size, list | tuple)
    )
    return " ".join(shown)


def _names(values: Any) -> str:
    if not isinstance(values, list | tuple):
        return ""
    return " ".join(dict.fromkeys(str(value)[:40] for value in values[:_MAX_SIZES] if isinstance(value, str)))


def _place(frames: Any) -> str:
    """Return the innermost place in the user's program; the frames begin with the innermost one."""
    if not isinstance(frames, list | tuple):
        return ""
    first = ""
    for frame in frames[:_MAX_FRAMES]:
        if not isinstance(frame, dict):
            continue
        path, line = frame.get("filename"), frame.get("line")
        if isinstance(path, str) and _is_count(line):
            where = f"{path[:_MAX_TEXT]}:{line}"
            first = first or where
            if not is_library(where) and not path.startswith("<"):
                return where
    return first


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group; torch writes them as the text `[0, 1]`."""
    found: dict[str, tuple[int, ...]] = {}
    if not isinstance(config, dict):
        return found
    for name, group in list(config.items())[:10_000]:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            found[_text(name)] = tuple(int(number) for number in _NUMBER.findall(ranks[: 8 * _MAX_RANKS]))
        elif isinstance(ranks, list | tuple):
            found[_text(name)] = tuple(rank for rank in ranks[:_MAX_RANKS] if _is_count(rank))
    return found


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _text(value: Any) -> str:
    """Return a name, but not the text of a container, which may be endless."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return str(value) if _is_count(value) else ""
