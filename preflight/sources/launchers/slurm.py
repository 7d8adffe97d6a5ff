"""Slurm: the claims of `#SBATCH` lines and of `srun` options.

Options as in the manuals of sbatch and srun, Slurm 24.05. The scope of `#SBATCH` is the whole job, the scope of `srun`
its launch; both have the scheduler's strength, so srun's narrower scope wins. A batch script itself runs on the first
node of the allocation only, so a launcher without srun before it starts only there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from preflight._util import toml
from preflight._util.budget import truncate
from preflight._util.hostnames import expand_hosts
from preflight.model.job import (
    Claim,
    Known,
    OneOf,
    Places,
    Plain,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
    one_of,
)
from preflight.sources.base import Directive, SourceFile
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    declared_options,
    declared_table,
)
from preflight.sources.shell.sbatch_directives import LONG_NAMES, MAX_COUNTS, count_range, gpus_of_gres, gpus_of_types
from preflight.sources.value_readers import as_text, product_of, sum_of

#: Longer lists do not occur in practice, and are slow to split.
_MAX_LIST_LENGTH = 4000


SRUN = declared_table("srun")
#: The options that claims are made of, by their spellings.
_DESTS = {
    spelling: dest for dest, spellings in declared_options("srun")["valued"].items() for spelling in spellings.split()
}
#: Programs that do not train: starting them with srun or ssh does not show where training runs.
HARMLESS = toml.words(__file__, "words.toml", "harmless")


def from_directives(directives: Sequence[Directive]) -> dict[str, GivenOption]:
    """Return the options of an `#SBATCH` header; if one is repeated, the last counts."""
    options: dict[str, GivenOption] = {}
    for directive in directives:
        dest = _DESTS.get(directive.option) or _DESTS.get("--" + directive.option.lstrip("-"))
        if dest is not None and directive.value is not None:
            value: Value = Known(directive.value)
            if has_placeholder(directive.value):
                value = Unresolved(f"{directive.value} is replaced before the script is submitted")
            options[dest] = GivenOption(dest, value, directive.span, directive.spelling)
    return options


def has_placeholder(text: str) -> bool:
    """Return whether a directive contains a placeholder that is replaced before submission: `{{ nodes }}`, `$NODES`,
    `<ACCOUNT>`.
    """
    return re.search(r"\{\{|\$\{?\w|<[A-Z_]+>", text) is not None


def merged_steps(steps: Sequence[ScannedLine]) -> ScannedLine:
    """Merge the components of a heterogeneous step into one command line: the first program, with the tasks of all.

    The programs of `srun --het-group=0 -n 1 a : --het-group=1 -n 8 b` form one world.
    """
    first, *others = steps
    if not others:
        return first
    given = [option for option in first.given if option.dest not in ("nodes", "ntasks", "ntasks_per_node", "nodelist")]
    counts = [option for step in steps if (option := step.last("ntasks")) is not None]
    if counts:
        unknown = Unresolved("the tasks of one of several programs")
        values = [as_int(option.value) for option in counts] + [unknown] * (len(steps) - len(counts))
        shown = " : ".join(option.spelling for option in counts)
        given.append(counts[0]._replace(value=lift(sum_of, *values), spelling=shown, parts=()))
    incomplete = any(step.incomplete for step in steps)
    return ScannedLine(tuple(given), first.rest, incomplete, first.unknown)


def from_options(options: Iterable[GivenOption]) -> dict[str, GivenOption]:
    """Return the options of one srun; if one is repeated, the last counts."""
    return {given.dest: given for given in options if given.dest in _DESTS.values()}


def state(builder: ClaimBuilder, options: dict[str, GivenOption]) -> dict[str, Claim]:
    """Add the claims of the options; returns them by quantity."""
    claims = {
        quantity: builder.add(quantity, convert(options[dest].value), options[dest])
        for dest, quantity, convert in _SIMPLE_OPTIONS
        if dest in options
    }
    if "gres" in options and "gpus_per_node" not in claims:
        value = lift(_gres, options["gres"].value)
        if 0 not in alternatives(value):
            claims["gpus_per_node"] = builder.add("gpus_per_node", value, options["gres"])
    nodes = options.get("nodes")
    if nodes is not None and any("-" in str(item) for item in alternatives(nodes.value)):
        smallest = lift(lambda item: int(str(item).partition("-")[0]), nodes.value)
        builder.add("min_nodes", smallest, nodes)
    if "gpus" in options and "gpus_per_node" not in claims and "nodes" in claims:
        total, count = lift(_gpus, options["gpus"].value), claims["nodes"]
        per_node = lift(divide_evenly, total, count.value)
        if not isinstance(per_node, Unresolved):
            claims["gpus_per_node"] = builder.add("gpus_per_node", per_node, options["gpus"], because=(count,))
    if "ntasks_per_gpu" in options and not claims.keys() & {"tasks", "tasks_per_node"}:
        _add_tasks_of_gpus(builder, options, claims)
    _add_derived_tasks(builder, claims)
    if "gpus_per_task" in claims and "gpus_per_node" not in claims and "tasks_per_node" in claims:
        each, tasks = claims["gpus_per_task"], claims["tasks_per_node"]
        value = lift(product_of, as_int(each.value), tasks.value)
        claims["gpus_per_node"] = builder.add("gpus_per_node", value, each, because=(tasks,))
    return claims


def _add_tasks_of_gpus(builder: ClaimBuilder, options: dict[str, GivenOption], claims: dict[str, Claim]) -> None:
    """Add claims for the tasks per node that follow from `--ntasks-per-gpu`, and that each task sees one GPU."""
    each = options["ntasks_per_gpu"]
    gpus = claims.get("gpus_per_node")
    count = Unresolved("no option gives the number of GPUs per node") if gpus is None else gpus.value
    value = lift(product_of, as_int(each.value), count)
    because = (gpus,) if gpus is not None else ()
    claims["tasks_per_node"] = builder.add("tasks_per_node", value, each, because=because)
    if not options.keys() & {"gpu_bind", "tres_bind"}:
        # It implies --tres-bind=gres/gpu:single:N.
        builder.add("gpu_bind", lift(lambda count: f"single:{count}", as_int(each.value)), each)


def _add_derived_tasks(builder: ClaimBuilder, claims: dict[str, Claim]) -> None:
    """Derive tasks per node from `--nodes` and `--ntasks`, or the reverse; Slurm spreads tasks evenly."""
    nodes, tasks, per_node = claims.get("nodes"), claims.get("tasks"), claims.get("tasks_per_node")
    if nodes is None or (tasks is None) == (per_node is None):
        return
    if tasks is not None and not isinstance(lift(divide_evenly, tasks.value, nodes.value), Unresolved):
        claims["tasks_per_node"] = add_tasks_per_node(builder, tasks, nodes)
    if per_node is not None and not isinstance(lift(product_of, nodes.value, per_node.value), Unresolved):
        claims["tasks"] = add_total_tasks(builder, nodes, per_node)


def add_tasks_per_node(builder: ClaimBuilder, tasks: Claim, nodes: Claim) -> Claim:
    """Add and return the claim of the tasks per node that follow from the number of tasks and the number of nodes."""
    value = lift(divide_evenly, tasks.value, nodes.value)
    return builder.add("tasks_per_node", value, tasks, because=(tasks, nodes))


def add_total_tasks(builder: ClaimBuilder, nodes: Claim, per_node: Claim) -> Claim:
    """Add and return the claim of the number of tasks that follows from the number of nodes and the tasks per node."""
    value = lift(product_of, nodes.value, per_node.value)
    return builder.add("tasks", value, per_node, because=(nodes, per_node))


def nodes_of(value: Value) -> Value:
    """Return the node counts in `4`, `2-4` or `1k`."""
    found: list[Plain] = []
    for item in alternatives(value):
        limits = count_range(str(item))
        if limits is None:
            return Unresolved(f"{item!r} is not a number of nodes")
        low, high = limits
        if high - low >= MAX_COUNTS:
            return Unresolved(f"any number of nodes from {low} to {high}")
        found.extend(range(low, high + 1) if high >= low else (low,))
    return one_of(found) if found else value


def seconds_of(value: Value) -> Value:
    """Return the seconds in Slurm's time format.

    It is `minutes`, `minutes:seconds`, `hours:minutes:seconds` or `days-hours[:minutes[:seconds]]`.
    """
    return lift(_seconds, value)


def mebibytes_of(value: Value) -> Value:
    """Return the MiB in `64G`, `512` (MiB) or `1T`; `0`, all the memory of the node, is unresolved."""
    return lift(_mebibytes, value)


def hosts_of(value: Value) -> Value:
    """Return the host names in `node[01-04,07],login1`."""
    return lift(lambda item: expand_hosts(str(item)), value)


def _gpus(item: Plain) -> Plain:
    return gpus_of_types(str(item))


def _gres(item: Plain) -> Plain:
    if len(str(item)) > _MAX_LIST_LENGTH:
        raise ValueError("the list of resources is too long")
    return gpus_of_gres(str(item))


def divide_evenly(total: Plain, parts: Plain) -> Plain:
    """Return the size of each of `parts` equal parts; ValueError if there is a remainder."""
    whole, left = divmod(int(str(total)), int(str(parts)))
    if left or not whole:
        raise ValueError(f"{total} cannot be divided evenly by {parts}")
    return whole


def _seconds(item: Plain) -> Plain:
    total = parse_seconds(str(item).strip())
    if total is None:
        raise ValueError(f"{item!r} is not a time limit")
    if not total:
        raise ValueError("0 means no time limit")
    return total


def parse_seconds(text: str) -> int | None:
    """Return the seconds in Slurm's time format; None for any other text."""
    if re.fullmatch(r"(?:\d{1,6}-)?\d{1,6}(?::\d{1,6}){0,2}", text) is None:
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # Two numbers without days are minutes and seconds.
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1, 0)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _mebibytes(item: Plain) -> Plain:
    match = re.fullmatch(r"(\d+)([KMGTkmgt]?)[bB]?", str(item).strip())
    if match is None:
        raise ValueError(f"{item!r} is not an amount of memory")
    if int(match[1]) == 0:
        raise ValueError("0 means all memory of the node")
    kibibytes = int(match[1]) * {"k": 1, "": 1024, "m": 1024, "g": 1024**2, "t": 1024**3}[match[2].lower()]
    return kibibytes // 1024


def _text(value: Value) -> Value:
    return value if isinstance(value, (Unresolved, OneOf)) else lift(str, value)


_SIMPLE_OPTIONS: tuple[tuple[str, str, Callable[[Value], Value]], ...] = (
    ("nodes", "nodes", nodes_of),
    ("ntasks", "tasks", as_int),
    ("ntasks_per_node", "tasks_per_node", as_int),
    ("gpus_per_node", "gpus_per_node", lambda value: lift(_gpus, value)),
    ("gpus_per_task", "gpus_per_task", lambda value: lift(_gpus, value)),
    ("cpus_per_task", "cpus_per_task", as_int),
    ("mem", "memory_per_node_mib", mebibytes_of),
    ("time", "time_limit_s", seconds_of),
    ("partition", "partition", _text),
    ("nodelist", "hosts", hosts_of),
    ("chdir", "working_directory", _text),
    ("gpu_bind", "gpu_bind", _text),
)


_HEADER_OPTIONS: tuple[tuple[str, str, Callable[[Value], Value]], ...] = (
    ("signal", "hand_off_signal", as_text),
    ("array", "job_array", as_text),
    ("output", "output_file", as_text),
    ("time", "time_limit", as_text),
    ("open_mode", "output_opened", as_text),
    ("mpi_slots", "batch_slots", as_int),
    ("mem_per_cpu", "memory_per_cpu_mib", mebibytes_of),
    ("mem_per_gpu", "memory_per_gpu_mib", mebibytes_of),
)
_HEADER_FLAGS = {"--requeue": ("requeue", True), "--no-requeue": ("requeue", False), "--exclusive": ("exclusive", True)}
#: Options of sbatch(1) that select nodes or decide who may use them.
_RESOURCE_OPTIONS = toml.words(__file__, "words.toml", "resource-options")
_MAX_LINES = 20_000
_PLACEHOLDER = re.compile(r"[{}<>$]")
_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+-", re.MULTILINE)
#: A quote, an escaped character, or the beginning of a comment.
_QUOTE = re.compile(r"\\.|[\"']|(?<!\S)#")
_HEREDOC = re.compile(r"<<-?[ \t]*([\"']?)(\w+)\1")
#: Lines meant as directives that are not. `##SBATCH` is the usual way to disable one, so it is not listed.
_NEAR_MISSES = (
    (re.compile(r"#[ \t]+SBATCH[ \t]+-{1,2}[A-Za-z][\w-]*[= ]?\S*[ \t]*$"), "there is a space between # and SBATCH"),
    (re.compile(r"#(?!SBATCH)[Ss][Bb][Aa][Tt][Cc][Hh][ \t]+-"), "SBATCH must be in capitals"),
    (re.compile(r"#SBATCH-"), "the space after SBATCH is missing"),
)
#: `a100:8`, `gpu:a100:8`, `gpu:nvidia_a100-sxm4-80gb:4(S:0-1)`: the kind in the middle.
_GPU_TYPE = re.compile(r"(?:^|,)(?:gres/)?(?:gpu:)?([A-Za-z0-9][\w.-]*):\d+")


def state_header(builder: ClaimBuilder, options: Mapping[str, GivenOption], directives: Sequence[Directive]) -> None:
    """Add the claims of a header; `state` states its sizes."""
    for dest, quantity, convert in _HEADER_OPTIONS:
        # Other schedulers have their own time formats.
        if dest in options and (dest != "time" or builder.source == "slurm"):
            builder.add(quantity, convert(options[dest].value), options[dest])
    # If the resource is only a number, the constraint often names the kind of GPU.
    for dest in ("gpus_per_node", "gres", "gpus", "gpus_per_task", "constraint"):
        option = options.get(dest)
        value = as_text(option.value) if option is not None and dest == "constraint" else _gpu_type_of(option)
        if option is not None and value is not None:
            builder.add("gpu_type", value, option)
            break
    if builder.source == "slurm":
        _state_request(builder, directives)
    for directive in directives:
        bare = _HEADER_FLAGS.get(directive.option)
        if bare is not None:
            builder.add(bare[0], Known(bare[1]), directive)


def _gpu_type_of(option: GivenOption | None) -> Value | None:
    """Return the kind of GPU that a resource names; None if it is only a number."""
    if option is None or isinstance(option.value, Unresolved):
        return option.value if option is not None else None
    named = isinstance(option.value, Known) and _gpu_type(option.value.value)
    return lift(_gpu_type, option.value) if named else None


def state_component_gpus(builder: ClaimBuilder, directives: Sequence[Directive]) -> None:
    """Add claims for the kind of GPU of each part of a heterogeneous job."""
    for directive in directives:
        text = str(directive.value or "")
        if directive.option in ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "-G"):
            text = str(_gpu_type(text))
        elif directive.option not in ("--constraint", "-C"):
            continue
        if text:
            builder.add("component_gpu_type", Known(text), directive)


def _state_request(builder: ClaimBuilder, directives: Sequence[Directive]) -> None:
    """Add claims for every option that selects resources, for the checks that ask Slurm whether it can grant them."""
    for directive in directives:
        name = LONG_NAMES.get(directive.option, directive.option)
        _state_directive(builder, name, directive)
        if name not in _RESOURCE_OPTIONS:
            continue
        given = "" if directive.value is None else f"={directive.value}"
        value: Value = Known(f"{name}{given}")
        if has_placeholder(given):
            value = Unresolved(f"{directive.value} is replaced before the script is submitted")
        builder.add("batch_option", value, directive)


def _state_directive(builder: ClaimBuilder, name: str, directive: Directive) -> None:
    """Add claims for an option with its value as written; short options by their long names."""
    if name and not name.startswith("--"):
        # A short option that has no long name here.
        return
    value: Value = Known((name.removeprefix("--"), directive.value))
    if _PLACEHOLDER.search(directive.spelling):
        value = Unresolved("what replaces its placeholder before the script is submitted")
    builder.add("batch_directive", value, directive)


def has_directive_like(text: str) -> bool:
    """Return whether any line of the script looks like a directive."""
    return _DIRECTIVE.search(text) is not None


def state_ignored_directives(builder: ClaimBuilder, file: SourceFile) -> None:
    """Add claims for the lines that look like directives but that sbatch ignores."""
    places = Places(file.path, file.text)
    after_command, closing, quote, start = False, "", "", 0
    for line in truncate(file.text.split("\n"), _MAX_LINES, "lines"):
        bare = line.rstrip("\r")
        if closing:
            closing = "" if bare.strip() == closing else closing
        elif quote:
            quote = _open_quote(bare, quote)
        elif bare.startswith("#"):
            why = "it comes after the first command" if after_command and _DIRECTIVE.match(bare) else ""
            if not after_command:
                why = next((reason for pattern, reason in _NEAR_MISSES if pattern.match(bare)), "")
            if why:
                span = places.span(start, start + len(bare))
                builder.add("directive_unread", Known(why), span, bare[:100])
        elif not after_command and bare.lstrip().startswith(("{%", "{{")):
            why_open = Unresolved(f"{bare.strip()[:60]}: a template that may write directives there")
            span = places.span(start, start + len(bare))
            builder.add("directive_unread", why_open, span, bare[:100])
        elif bare.strip():
            after_command = True
            heredoc = _HEREDOC.search(bare) if "<<<" not in bare else None
            closing = heredoc[2] if heredoc is not None else ""
            quote = "" if closing or not ("'" in bare or '"' in bare) else _open_quote(bare)
        start += len(line) + 1


def _open_quote(line: str, quote: str = "") -> str:
    """Return the quote that is still open at the end of a line; `quote` is the one open at its start."""
    for match in _QUOTE.finditer(line):
        found = match[0]
        if not quote and found == "#":
            break
        if quote and found == quote:
            quote = ""
        elif not quote and found in ("'", '"'):
            quote = found
    return quote


def _gpu_type(item: Plain) -> Plain:
    match = _GPU_TYPE.search(str(item)[:200])
    return match[1].lower() if match and match[1].lower() not in ("gpu", "tmpdir", "nvme") else ""
