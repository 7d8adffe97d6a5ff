"""Reads dumps of torch's Flight Recorder: the last collectives of a rank, as JSON or as a pickle.

The format is that of `torch._C._distributed_c10d._dump_fr_trace` and `_dump_fr_trace_json` (versions 2.1 to 2.10). A
dump does not name its rank: the rank is the one that all listed groups have in common, or is at the end of the file
name. Pickles are not executed: only instructions that build plain containers are followed.
"""

from __future__ import annotations

import json
import pickletools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from preflight.commands.diagnose.log_lines import is_library

#: Largest pickle that is read; torch keeps 2000 collectives by default, with stacks some 10 MiB.
MAX_BYTES = 32 << 20
#: JSON has no stacks and takes more memory to read.
MAX_JSON_BYTES = 8 << 20
MAX_CALLS = 100_000
#: Number of finished calls kept per group: unfinished calls explain a hang.
_KEPT_FINISHED = 20
_MAX_TEXT = 300
_MAX_FRAMES = 200
_MAX_SIZES = 64
_MAX_NUMBERS = 16
_MAX_RANKS = 100_000
_NUMBER = re.compile(r"\d{1,7}")
_PAIR = re.compile(r"(?P<own>\d{1,7})(?P<way>->|<-)(?P<peer>\d{1,7})$")
_PICKLE = b"\x80"


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one rank.

    Args:
        sequence: its number in the group, starting at 1; the same for all ranks of the group.
        shapes: sizes of its input tensors, as text.
        is_finished: whether it ended on this rank.
        pair: sender and receiver of a point-to-point call, numbered in the group; `sequence` then counts such calls.
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
    pair: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The last collective of a group that a rank entered, and the last one that the rank finished."""

    entered: int
    finished: int


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank: its calls in order, and the ranks of each group, if the dump lists them.

    Args:
        reached: how far it came in groups whose collectives may no longer be in the dump.
        is_whole: whether the dump goes back to the first call, so that a group without calls was never used.
    """

    rank: int
    path: str
    calls: tuple[Call, ...]
    groups: dict[str, tuple[int, ...]]
    reached: dict[str, Reached] = field(default_factory=dict)
    is_whole: bool = True


def looks_like_dump(head: bytes) -> bool:
    """Return whether a file may be a dump, by its first bytes."""
    return head.startswith(_PICKLE) or head.lstrip().startswith(b"{")


def read_dump(data: bytes, rank: int | None, path: str) -> Dump | None:
    """Return the dump in a file, or None; `rank` is the rank in its name, or -1. Raises ValueError if damaged."""
    if data.startswith(_PICKLE):
        document = load_pickle(data)
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
    entries = document["entries"]
    groups = _groups(document.get("pg_config"))
    reached = _positions(document.get("pg_status"), groups, entries)
    return Dump(
        rank=_rank(groups, rank),
        path=path,
        calls=_select_calls(list(_calls(entries))),
        groups=groups,
        reached=reached,
        is_whole=_is_whole(entries, reached),
    )


def _rank(groups: Mapping[str, tuple[int, ...]], named: int | None) -> int:
    """Return the only rank that is in all groups of a dump, otherwise the rank in its file name."""
    listed = [set(ranks) for ranks in groups.values() if ranks]
    common = set.intersection(*listed) if listed else set()
    if len(common) == 1:
        return common.pop()
    return named if named is not None else -1


def _positions(status: Any, groups: Mapping[str, tuple[int, ...]], entries: Any) -> dict[str, Reached]:
    """Return how far the rank came in each group, which the status lists in creation order by number."""
    if not isinstance(status, dict):
        return {}
    known = [entry for entry in entries[-MAX_CALLS:] if isinstance(entry, dict)]
    uneven = {_group_of(entry)[0] for entry in known if entry.get("is_p2p") is True}
    names = {_text(entry.get("pg_id")): _group_of(entry)[0] for entry in known}
    numbers = [key for key in status if isinstance(key, str) and key.isascii() and key.isdecimal()]
    if len(numbers) == len(status) == len(groups) and all(name.isascii() and name.isdecimal() for name in groups):
        pairs = dict(zip(sorted(numbers, key=int), sorted(groups, key=int), strict=True))
        if all(pairs.get(number) == name for number, name in names.items()):
            names = pairs
    positions: dict[str, Reached] = {}
    for number, name in names.items():
        counts = status.get(number)
        entered, finished = (
            (counts.get(f"last_{state}_collective") for state in ("enqueued", "completed"))
            if isinstance(counts, dict)
            else (None, None)
        )
        # -1: nothing yet.
        if name not in uneven and isinstance(entered, int) and isinstance(finished, int):
            positions[name] = Reached(max(entered, 0), max(finished, 0))
    return positions


def _is_whole(entries: Any, reached: Mapping[str, Reached]) -> bool:
    first = entries[0] if entries else None
    if isinstance(first, dict):
        number = first.get("record_id")
        return not _is_count(number) or number == 0
    return not any(counts.entered for counts in reached.values())


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the description of the group of a call."""
    group = entry.get("process_group")
    pair = [_text(part) for part in group[:2]] if isinstance(group, list | tuple) else []
    return (pair[0] if pair else "", pair[1] if len(pair) > 1 else "")


def _select_calls(calls: list[Call]) -> tuple[Call, ...]:
    """Return the unfinished calls, and the last finished calls of each group, in order."""
    finished: Counter[str] = Counter()
    kept: list[Call] = []
    for call in reversed(calls):
        finished[call.group] += call.is_finished
        if not call.is_finished or (finished[call.group] <= _KEPT_FINISHED and call.pair is None):
            kept.append(call)
    return tuple(reversed(kept))


def _calls(entries: Any) -> Iterator[Call]:
    # The oldest calls are first in the list, and the newest explain a hang.
    for entry in entries[-MAX_CALLS:]:
        if not isinstance(entry, dict):
            continue
        is_pair = entry.get("is_p2p") is True
        sequence = entry.get("p2p_seq_id" if is_pair else "collective_seq_id")
        name = entry.get("profiling_name")
        if not _is_count(sequence) or not isinstance(name, str):
            continue
        pair = _PAIR.search(name[:_MAX_TEXT]) if is_pair else None
        if is_pair and pair is None:
            continue
        group, description = _group_of(entry)
        yield Call(
            group=group,
            description=description,
            sequence=sequence,
            operation=name[:_MAX_TEXT].rpartition(":")[2],
            shapes=_shapes(entry.get("input_sizes")),
            dtypes=_names(entry.get("input_dtypes")),
            is_finished=entry.get("retired") is True or entry.get("state") == "completed",
            place=_place(entry.get("frames")),
            pair=_sender_and_receiver(pair) if pair is not None else None,
        )


def _sender_and_receiver(pair: re.Match[str]) -> tuple[int, int]:
    """Return the ranks of sender and receiver: (0, 3) for both `send 0->3` and `recv 3<-0`."""
    own, peer = int(pair["own"]), int(pair["peer"])
    return (own, peer) if pair["way"] == "->" else (peer, own)


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
    """Return the innermost location in the user's program; the frames begin with the innermost one."""
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
    """Return the ranks of each group; torch writes them as the string `[0, 1]`."""
    groups: dict[str, tuple[int, ...]] = {}
    if not isinstance(config, dict):
        return groups
    for name, group in list(config.items())[:10_000]:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            groups[_text(name)] = tuple(int(number) for number in _NUMBER.findall(ranks[: 8 * _MAX_RANKS]))
        elif isinstance(ranks, list | tuple):
            groups[_text(name)] = tuple(rank for rank in ranks[:_MAX_RANKS] if _is_count(rank))
    return groups


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _text(value: Any) -> str:
    """Return a string, or a count as a string; empty for other values, because a container's text may be unbounded."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return str(value) if _is_count(value) else ""


#: Number of instructions followed; a dump of two thousand collectives has half a million.
MAX_INSTRUCTIONS = 4_000_000

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    )
)
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_IGNORED = frozenset(("PROTO", "FRAME"))


def load_pickle(data: bytes) -> Any:
    """Return the value in a pickle of plain containers, perhaps recursive. Raises ValueError for anything else."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(data)):
            if number >= MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
            if code.name == "STOP":
                return stack[-1]
            _follow(code.name, argument, stack, memo)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"damaged pickle: {type(error).__name__}") from None
    raise ValueError("damaged pickle: it has no end")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _TUPLES:
        size = _TUPLES[name]
        if len(stack) < size:
            raise IndexError
        stack[-size:] = [tuple(stack[-size:])]
    elif name in _PUTS:
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _GETS:
        stack.append(memo[argument])
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "APPEND":
        value = stack.pop()
        _list(stack[-1]).append(value)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _dict(stack[-1])[_key(key)] = value
    elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
        _collect(name, _until_mark(stack), stack)
    elif name not in _IGNORED:
        raise ValueError(f"the pickle contains {name}, which builds more than plain containers")


def _collect(name: str, items: list[Any], stack: list[Any]) -> None:
    if name == "APPENDS":
        _list(stack[-1]).extend(items)
    elif name == "SETITEMS":
        _dict(stack[-1]).update(_pairs(items))
    elif name == "DICT":
        stack.append(dict(_pairs(items)))
    else:
        stack.append(tuple(items) if name == "TUPLE" else items)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(map(_key, items[::2]), items[1::2], strict=True)


def _key(value: Any) -> Any:
    """Return a value as a dictionary key; a tuple is rejected, because hashing nested tuples may take forever."""
    if not isinstance(value, str | int | float | bytes | None):
        raise TypeError
    return value


def _until_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (value := stack.pop()) is not _MARK:
        items.append(value)
    return items[::-1]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value
