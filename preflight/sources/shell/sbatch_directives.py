"""The `#SBATCH` header: its options, and the variables that Slurm sets from them.

sbatch reads directives only up to the first line that is neither blank nor a comment. The variables follow the section
"OUTPUT ENVIRONMENT VARIABLES" of the sbatch manual: several are set only when their option was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight._util import toml
from preflight._util.budget import note_skipped
from preflight.model.job import is_whole_number
from preflight.sources.base import Directive
from preflight.sources.shell.shell_document import GAP, Document
from preflight.sources.shell.words import spelling_of

_DIRECTIVE = re.compile(r"#SBATCH(?=[ \t]|$)")
#: A word; `#` begins a comment within one, too (_get_argument of Slurm's sbatch/opt.c), but not in JUBE's `#NODES#`.
_TOKEN = re.compile(r"""(?:\\\S|[^\s'"#]|'[^'\n]*'|"[^"\n]*"|#\w+#)+""")
_OPTIONS = toml.beside(__file__, "sbatch_options.toml")
_BARE_LONG = frozenset(_OPTIONS["bare"].split())
_BARE_SHORT = frozenset("HhIkOQsvVWXK")
#: Short options, and one that is deprecated, and their names (sbatch manual).
LONG_NAMES: dict[str, str] = _OPTIONS["names"]
#: Words that separate the parts of a heterogeneous job.
_HETEROGENEOUS = frozenset(("hetjob", "packjob", ":"))
_PLACEHOLDER = re.compile(r"[{}<>$\ue000]|%\w+%")
_MAX_DIRECTIVES = 300
_COUNT = re.compile(r"(\d{1,7})([kKmM]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
#: A range such as `2-40` of more numbers is left open.
MAX_COUNTS = 16


def directives(document: Document) -> tuple[Directive, ...]:
    """Return the directives that sbatch reads, in order."""
    found: list[Directive] = []
    text = document.text
    at = 0
    while at < len(text):
        if len(found) >= _MAX_DIRECTIVES:
            note_skipped(f"only the first {_MAX_DIRECTIVES} #SBATCH options were read")
            break
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        if line.strip() and not line.startswith("#"):
            break
        if _DIRECTIVE.match(line):
            found.extend(_parse_line(document, at + len("#SBATCH"), end))
        at = end + 1
    return tuple(found)


def _parse_line(document: Document, start: int, end: int) -> list[Directive]:
    found: list[Directive] = []
    text = document.text
    tokens: list[tuple[int, int]] = []
    at = start
    while at < end:
        if text[at] in " \t\r":
            at += 1
            continue
        match = _TOKEN.match(text, at, end)
        if match is None:
            if text[at] == "#":
                break
            at += 1
            continue
        tokens.append(match.span())
        at = match.end()
    index = 0
    while index < len(tokens):
        first, last = tokens[index]
        word = text[first:last]
        index += 1
        option, value = word, None
        takes_next = False
        if word.startswith("--"):
            option, equals, given = word.partition("=")
            value = given if equals else None
            takes_next = not equals and option[2:] not in _BARE_LONG
        elif word.startswith("-") and len(word) > 1:
            option = word[:2]
            if len(word) > 2:
                value = word[2:].removeprefix("=")
            takes_next = len(word) == 2 and word[1] not in _BARE_SHORT
        else:
            if word not in _HETEROGENEOUS and not _PLACEHOLDER.search(text, start, end):
                # A word that belongs to no option, which sbatch refuses.
                found.append(Directive("", word, document.place(first, last).span, word))
            continue
        if takes_next and index < len(tokens) and text[tokens[index][0]] != "-":
            value = text[slice(*tokens[index])]
            last = tokens[index][1]
            index += 1
        if value is not None:
            value = _unquote(document, last - len(value), last, value)
        place = document.place(first, last)
        found.append(Directive(option, value, place.span, spelling_of(document.slice(first, last))))
    return found


def _unquote(document: Document, start: int, end: int, value: str) -> str:
    if GAP in value:
        value = spelling_of(document.slice(start, end))
    return value.replace('"', "").replace("'", "")


@dataclass(frozen=True, slots=True)
class Header:
    """The options of a header by their long names; if one is repeated, the last counts, as in sbatch."""

    options: Mapping[str, str]
    present: bool

    def count(self, *names: str) -> tuple[int, ...]:
        """Return the numbers that the first given option allows (`2-4` allows three); empty when it is not a number."""
        for name in names:
            if name in self.options:
                return counts(self.options[name])
        return ()

    def gpus(self, name: str) -> tuple[int, ...]:
        """Return the number of GPUs that the option requests, as a 1-tuple; empty when it is unknown."""
        text = self.options.get(name, "")
        try:
            total = gpus_of_gres(text) if name == "--gres" else gpus_of_types(text)
        except ValueError:
            return ()
        return (total,) if total > 0 else ()


def header_of(lines: Sequence[Directive]) -> Header:
    """Build the header from its directives."""
    options: dict[str, str] = {}
    for directive in lines:
        options[LONG_NAMES.get(directive.option, directive.option)] = directive.value or ""
    return Header(options, bool(lines))


def counts(value: str) -> tuple[int, ...]:
    """Return the whole numbers that `4`, `2-4` or `1k` allow; empty when it is not a number or allows too many."""
    low, high = count_range(value) or (0, 0)
    # sbatch takes 0 for the least that the rest of the header needs.
    return tuple(range(low, high + 1)) if high - low < MAX_COUNTS and low > 0 else ()


def count_range(value: str) -> tuple[int, int] | None:
    """Return the lowest and the highest number of `4`, `2-4` or `1k`; None for any other text."""
    low, dash, high = value.partition("-")
    found = [_COUNT.fullmatch(text.strip()) for text in ((low, high) if dash else (low, low))]
    numbers = [int(match[1]) * _UNITS[match[2].lower()] for match in found if match is not None]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def gpus_of_gres(value: str) -> int:
    """Return the number of GPUs in `gpu:a100:8(S:0-1),nvme:1`, the form of `--gres`."""
    total = 0
    for part in re.split(r",(?![^(]*\))", value):
        pieces = part.split("(")[0].split(":")
        if pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if is_whole_number(pieces[-1]) else 1
    return total


def gpus_of_types(value: str) -> int:
    """Return the number of GPUs in `8` or `a100:4,h100:4`, the form of `--gpus-per-node`.

    Raises:
        ValueError: a count is missing.
    """
    return sum(int(part.split("(")[0].rpartition(":")[2]) for part in value.split(","))


def slurm_variable(header: Header, name: str, script: str) -> tuple[str, ...] | str | None:
    """Return the possible values of a variable that Slurm sets, or why it is unknown; None for any other variable."""
    nodes = header.count("--nodes")
    per_node = header.count("--ntasks-per-node")
    tasks = header.count("--ntasks")
    if not tasks and nodes and per_node and "--ntasks" not in header.options:
        tasks = tuple(dict.fromkeys(n * p for n in nodes for p in per_node))
    if name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        if not nodes and "--nodes" not in header.options and tasks == (1,):
            nodes = (1,)
        return _values_or_reason(nodes, header, name, "--nodes")
    if name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        return _values_or_reason(tasks, header, name, "--ntasks", "--ntasks-per-node")
    if name in ("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"):
        option = _option_of(name)
        return _values_or_reason(header.count(option), header, name, option)
    if name in ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"):
        option = _option_of(name)
        return _values_or_reason(header.gpus(option), header, name, option)
    if name == "SLURM_GPUS_ON_NODE":
        return _values_or_reason(gpus_on_node(header), header, name, "--gpus-per-node", "--gres=gpu")
    if name == "SLURM_JOB_NAME":
        return (header.options.get("--job-name") or script.rpartition("/")[2],)
    if name == "SLURM_JOB_PARTITION":
        given = header.options.get("--partition", "")
        return (given,) if given and "," not in given else f"${name} is the partition that the job is submitted to"
    if name == "SLURM_TASKS_PER_NODE" and per_node and len(nodes) == 1:
        return tuple(f"{p}(x{nodes[0]})" if nodes[0] > 1 else str(p) for p in per_node)
    return None


def gpus_on_node(header: Header) -> tuple[int, ...]:
    """Return the number of GPUs that the job has on each node, if the header determines it."""
    per_task, tasks = header.gpus("--gpus-per-task"), header.count("--ntasks-per-node")
    return (
        header.gpus("--gpus-per-node")
        or header.gpus("--gres")
        or tuple(dict.fromkeys(g * t for g in per_task for t in tasks))
    )


def _option_of(variable: str) -> str:
    return "--" + variable.removeprefix("SLURM_").lower().replace("_", "-")


def _values_or_reason(values: tuple[int, ...], header: Header, name: str, *options: str) -> tuple[str, ...] | str:
    if values:
        return tuple(str(value) for value in values)
    for option in options:
        if option in header.options:
            return f"${name} follows from {option}={header.options[option]}"
    return f"${name} is set only with {' or '.join(options)}, which is not in the #SBATCH header"
