"""Batch headers of schedulers other than Slurm: `#PBS`, `#BSUB`, `#$`, `#COBALT`, `# flux:`.

Their options are converted to the names of Slurm's, so that one reader states the claims of every header. Sources:
qsub(1B) of OpenPBS 23 and Torque 6, bsub(1) of LSF 10.1, qsub(1) of Grid Engine 8, qsub(1) of Cobalt, flux-batch(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight._util.budget import note_skipped, spend
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import Known, Span, Unresolved, Value, is_whole_number
from preflight.sources.base import SourceFile
from preflight.sources.launchers.slurm import BatchOption

_LINE = re.compile(
    r"^(?:(?P<pbs>#PBS)|(?P<lsf>#BSUB)|(?P<sge>#\$)|(?P<cobalt>#COBALT)|(?P<flux>#\s?flux:))"
    r"[ \t]+(?P<options>\S.*)"
)
#: Options with their value: `-l select=2`, `-R "span[ptile=4]"`, `--nodes=4`, `-N4` (flux).
_OPTION = re.compile(r"""(?P<name>--?[A-Za-z_]+)(?:[= \t]*(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*|))""")
#: Directives of one script; comments and blank lines between them do not count.
_MAX_LINES = 400
_DIRECTIVE = re.compile(r"^#(?:PBS|BSUB|\$|COBALT|\s?flux:)[ \t]", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{|\$\{?\w|<\w+>|\{ ?\w+ ?\}")
#: A chunk with at least this many GPUs is taken to be a whole node.
_WHOLE_NODE = 4


class BatchHeader(NamedTuple):
    """The header of a script. `scheduler` is also the source of its claims; `options` has its options by name."""

    scheduler: str
    options: dict[str, BatchOption]


def batch_header(file: SourceFile) -> BatchHeader | None:
    """Parse the header of a script for a scheduler other than Slurm; None if it has none."""
    if not _DIRECTIVE.search(file.text):
        return None
    options: dict[str, BatchOption] = {}
    scheduler = ""
    read = 0
    for number, raw in enumerate(file.text.split("\n"), start=1):
        match = _LINE.match(raw.rstrip("\r")) if raw.startswith("#") else None
        if match is None:
            continue
        read += 1
        if read > _MAX_LINES:
            note_skipped(f"directives for the scheduler after the first {_MAX_LINES} were not read")
            break
        spend()
        name = next(key for key in ("pbs", "lsf", "sge", "cobalt", "flux") if match[key])
        if scheduler and name != scheduler:
            continue
        scheduler = name
        for option in _OPTION.finditer(match["options"].rstrip()):
            start = match.start("options") + option.start()
            stop = match.start("options") + option.end()
            span = Span(file.path, number, start + 1, number, stop + 1, raw[:MAX_SNIPPET_LENGTH])
            value = (option["value"] or "").strip("\"'")
            for dest, text in _PARSERS[scheduler](option["name"], value):
                found: Value = Known(text)
                if _PLACEHOLDER.search(value):
                    found = Unresolved(f"{value} is replaced before the script is submitted")
                elif not text:
                    found = Unresolved("the header does not determine it")
                options[dest] = BatchOption(dest, found, span, option[0].strip())
    if not scheduler:
        return None
    _combine_options(options, scheduler)
    return BatchHeader(scheduler, options)


def _combine_options(options: dict[str, BatchOption], scheduler: str) -> None:
    """Derive what two options together determine, and drop what one alone does not determine."""
    chunks, place = options.pop("chunks", None), options.pop("place", None)
    if chunks is not None:
        scattered = place is not None and isinstance(place.value, Known) and "scatter" in str(place.value.value)
        gpus = options.get("gpus_per_node")
        is_whole_node = gpus is not None and isinstance(gpus.value, Known) and int(str(gpus.value.value)) >= _WHOLE_NODE
        single_chunk = chunks.value == Known("1")
        value = (
            chunks.value
            if scattered or is_whole_node or single_chunk
            else Unresolved("several chunks may share a host")
        )
        options["nodes"] = BatchOption("nodes", value, chunks.span, chunks.spelling)
        if not (scattered or is_whole_node or single_chunk):
            options.pop("gpus_per_node", None)
    slots, slots_per_host = options.pop("slots", None), options.pop("ptile", None)
    if slots is not None and slots_per_host is not None:
        # Without ptile, jobs on one host often start more processes than they have slots.
        options["mpi_slots"] = BatchOption("mpi_slots", slots.value, slots.span, slots.spelling)
    if scheduler == "lsf" and "nodes" not in options and slots is not None and slots_per_host is not None:
        total, tile = slots.value, slots_per_host.value
        if isinstance(total, Known) and isinstance(tile, Known):
            count, rest = divmod(int(str(total.value)), max(int(str(tile.value)), 1))
            options["nodes"] = BatchOption(
                "nodes", Known(str(count + bool(rest))), slots_per_host.span, slots_per_host.spelling
            )


def _pbs(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name == "-q":
        yield "partition", value
    if name != "-l":
        return
    for item in value.split(","):
        key, _, given = item.strip().partition("=")
        if key == "select":
            yield from _pbs_select(given)
        elif key == "nodes":
            yield from _torque_nodes(given)
        elif key == "walltime":
            yield "time", given
        elif key == "place":
            yield "place", given


def _pbs_select(value: str) -> Iterator[tuple[str, str]]:
    """Parse `2:ncpus=64:ngpus=4:mpiprocs=4:mem=200gb`; several kinds of chunk are joined by `+`."""
    kinds = [kind.split(":") for kind in value.split("+")]
    counts = ["1" if "=" in kind[0] else kind[0] for kind in kinds]
    known = all(is_whole_number(count) and len(count) < 7 for count in counts)
    yield "chunks", str(sum(int(count) for count in counts)) if known else ""
    resources = [dict(part.split("=", 1) for part in kind if "=" in part) for kind in kinds]
    slots_per_host = [resource.get("mpiprocs", "") for resource in resources]
    if known and all(is_whole_number(number) and len(number) < 7 for number in slots_per_host):
        yield (
            "mpi_slots",
            str(sum(int(count) * int(number) for count, number in zip(counts, slots_per_host, strict=True))),
        )
    for key, dest in (("ngpus", "gpus_per_node"), ("mem", "mem")):
        found = {resource.get(key, "") for resource in resources}
        if len(found) == 1 and (text := found.pop()) and (key == "mem" or is_whole_number(text)):
            yield dest, text


def _torque_nodes(value: str) -> Iterator[tuple[str, str]]:
    """Parse `4:ppn=8:gpus=2`; a list of host names yields nothing."""
    if "+" in value:
        return
    first, *rest = value.split(":")
    if is_whole_number(first) and len(first) < 7:
        yield "nodes", first
        for part in rest:
            key, _, number = part.partition("=")
            if key == "gpus" and is_whole_number(number):
                yield "gpus_per_node", number
            elif key == "ppn" and is_whole_number(number) and len(number) < 7:
                yield "mpi_slots", str(int(first) * int(number))


def _lsf(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name == "-nnodes" and is_whole_number(value):
        yield "nodes", value
    elif name == "-n" and is_whole_number(value.split(",")[0]):
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
    if name in ("-n", "--nodecount") and is_whole_number(value):
        yield "nodes", value
    elif name in ("-t", "--time"):
        yield "time", value
    elif name in ("-q", "--queue"):
        yield "partition", value


def _flux(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name in ("-N", "--nodes") and is_whole_number(value):
        yield "nodes", value
    elif name in ("-q", "--queue"):
        yield "partition", value
    elif name in ("-t", "--time-limit") and re.fullmatch(r"\d+(\.\d+)?m?", value):
        yield "time", value.rstrip("m").partition(".")[0]


_PARSERS = {"pbs": _pbs, "lsf": _lsf, "sge": _sge, "cobalt": _cobalt, "flux": _flux}
