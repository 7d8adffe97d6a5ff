"""Batch headers other than Slurm's: `#PBS`, `#BSUB`, `#$`, `#COBALT`, `# flux:`.

Their options come out under the names of Slurm's, so that one reader states what a header claims. Sources: qsub(1B) of
OpenPBS 23 and Torque 6, bsub(1) of LSF 10.1, qsub(1) of Grid Engine 8, qsub(1) of Cobalt, flux-batch(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Known, Span, Unresolved, Value
from preflight.job.span import LONGEST_SNIPPET
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import SourceFile
from preflight.sources.launchers.slurm import Asked

_LINE = lazy_pattern(
    r"^(?:(?P<pbs>#PBS)|(?P<lsf>#BSUB)|(?P<sge>#\$)|(?P<cobalt>#COBALT)|(?P<flux>#\s?flux:))"
    r"[ \t]+(?P<options>\S.*)"
)
#: Options with their value: `-l select=2`, `-R "span[ptile=4]"`, `--nodes=4`, `-N4` (flux).
_OPTION = lazy_pattern(r"""(?P<name>--?[A-Za-z_]+)(?:[= \t]*(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*|))""")
_MOST_LINES = 400
_BLANK = lazy_pattern(r"\{\{|\$\{?\w|<\w+>|\{ ?\w+ ?\}")
#: More GPUs than this in one chunk and it is a node of its own.
_WHOLE_NODE = 4


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What the header of a script asks for. `scheduler` is also the source of its claims."""

    scheduler: str
    asked: dict[str, Asked]


def batch_header(file: SourceFile) -> BatchHeader | None:
    """The header of a script for another scheduler than Slurm; None where it has none."""
    if not re.search(r"^#(?:PBS|BSUB|\$|COBALT|\s?flux:)[ \t]", file.text[:20000], re.MULTILINE):
        return None
    asked: dict[str, Asked] = {}
    scheduler = ""
    for number, raw in enumerate(file.text[:20000].splitlines()[:_MOST_LINES], start=1):
        match = _LINE.match(raw)
        if match is None:
            continue
        name = next(key for key in ("pbs", "lsf", "sge", "cobalt", "flux") if match[key])
        if scheduler and name != scheduler:
            continue
        scheduler = name
        for option in _OPTION.finditer(match["options"].rstrip()):
            start = match.start("options") + option.start()
            stop = match.start("options") + option.end()
            span = Span(file.path, number, start + 1, number, stop + 1, raw[:LONGEST_SNIPPET])
            value = (option["value"] or "").strip("\"'")
            for dest, text in _READ[scheduler](option["name"], value):
                found: Value = Known(text)
                if _BLANK.search(value):
                    found = Unresolved(f"{value} is filled in before the script is submitted")
                elif not text:
                    found = Unresolved("the header does not tell")
                asked[dest] = Asked(dest, found, span, option[0].strip())
    if not scheduler:
        return None
    _settle(asked, scheduler)
    return BatchHeader(scheduler, asked)


def _settle(asked: dict[str, Asked], scheduler: str) -> None:
    """What follows from two options together, and what does not."""
    chunks, place = asked.pop("chunks", None), asked.pop("place", None)
    if chunks is not None:
        scattered = place is not None and isinstance(place.value, Known) and "scatter" in str(place.value.value)
        gpus = asked.get("gpus_per_node")
        whole = gpus is not None and isinstance(gpus.value, Known) and int(str(gpus.value.value)) >= _WHOLE_NODE
        one = chunks.value == Known("1")
        value = chunks.value if scattered or whole or one else Unresolved("several chunks may share a host")
        asked["nodes"] = Asked("nodes", value, chunks.span, chunks.spelling)
        if not (scattered or whole or one):
            asked.pop("gpus_per_node", None)
    slots, each = asked.pop("slots", None), asked.pop("ptile", None)
    if slots is not None and each is not None:
        # Without ptile a job on one host is often started as if nobody counted its slots.
        asked["mpi_slots"] = Asked("mpi_slots", slots.value, slots.span, slots.spelling)
    if scheduler == "lsf" and "nodes" not in asked and slots is not None and each is not None:
        total, tile = slots.value, each.value
        if isinstance(total, Known) and isinstance(tile, Known):
            count, rest = divmod(int(str(total.value)), max(int(str(tile.value)), 1))
            asked["nodes"] = Asked("nodes", Known(str(count + bool(rest))), each.span, each.spelling)


def _pbs(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name == "-q":
        yield "partition", value
    if name != "-l":
        return
    for item in value.split(","):
        key, _, given = item.strip().partition("=")
        if key == "select":
            yield from _select(given)
        elif key == "nodes":
            yield from _torque(given)
        elif key == "walltime":
            yield "time", given
        elif key == "place":
            yield "place", given


def _select(given: str) -> Iterator[tuple[str, str]]:
    """`2:ncpus=64:ngpus=4:mpiprocs=4:mem=200gb`, several kinds of chunk joined by `+`."""
    kinds = [kind.split(":") for kind in given.split("+")]
    counts = ["1" if "=" in kind[0] else kind[0] for kind in kinds]
    known = all(count.isdigit() and len(count) < 7 for count in counts)
    yield "chunks", str(sum(int(count) for count in counts)) if known else ""
    resources = [dict(part.split("=", 1) for part in kind if "=" in part) for kind in kinds]
    each = [resource.get("mpiprocs", "") for resource in resources]
    if known and all(number.isdigit() and len(number) < 7 for number in each):
        yield "mpi_slots", str(sum(int(count) * int(number) for count, number in zip(counts, each, strict=True)))
    for key, dest in (("ngpus", "gpus_per_node"), ("mem", "mem")):
        found = {resource.get(key, "") for resource in resources}
        if len(found) == 1 and (text := found.pop()) and (key == "mem" or text.isdigit()):
            yield dest, text


def _torque(given: str) -> Iterator[tuple[str, str]]:
    """`4:ppn=8:gpus=2`, or names of hosts."""
    if "+" in given:
        return
    first, *rest = given.split(":")
    if first.isdigit() and len(first) < 7:
        yield "nodes", first
        for part in rest:
            key, _, number = part.partition("=")
            if key == "gpus" and number.isdigit():
                yield "gpus_per_node", number
            elif key == "ppn" and number.isdigit() and len(number) < 7:
                yield "mpi_slots", str(int(first) * int(number))


def _lsf(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name == "-nnodes" and value.isdigit():
        yield "nodes", value
    elif name == "-n" and value.split(",")[0].isdigit():
        yield "slots", value.split(",")[0]
    elif name == "-R" and (tile := re.search(r"span\[[^\]]*ptile=(\d{1,6})", value)):
        yield "ptile", tile[1]
    elif name == "-R" and re.search(r"span\[\s*hosts\s*=\s*1\s*\]", value):
        yield "nodes", "1"
    elif name == "-gpu" and (number := re.search(r"\bnum=(\d{1,4})(?!\d)(/task)?", value)) and not number[2]:
        yield "gpus_per_node", number[1]
    elif name == "-W" and re.fullmatch(r"\d{1,5}(:\d{1,2})?", value.partition("/")[0]):
        time = value.partition("/")[0]
        yield "time", f"{time}:00" if ":" in time else time
    elif name == "-q":
        yield "partition", value


def _sge(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name == "-q":
        yield "partition", value
    if name != "-l":
        return
    for item in value.split(","):
        key, _, given = item.partition("=")
        if key in ("h_rt", "s_rt"):
            yield "time", given if ":" in given else f"0:{given}"


def _cobalt(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name in ("-n", "--nodecount") and value.isdigit():
        yield "nodes", value
    elif name in ("-t", "--time"):
        yield "time", value
    elif name in ("-q", "--queue"):
        yield "partition", value


def _flux(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name in ("-N", "--nodes") and value.isdigit():
        yield "nodes", value
    elif name in ("-q", "--queue"):
        yield "partition", value
    elif name in ("-t", "--time-limit") and re.fullmatch(r"\d+(\.\d+)?m?", value):
        yield "time", value.rstrip("m").partition(".")[0]


_READ = {"pbs": _pbs, "lsf": _lsf, "sge": _sge, "cobalt": _cobalt, "flux": _flux}
