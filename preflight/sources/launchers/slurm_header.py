"""Claims of a batch header other than sizes: signals, arrays, output files, memory, kinds of GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight._util.budget import truncate
from preflight.model.job import Known, Places, Plain, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import Directive, SourceFile
from preflight.sources.launchers import slurm
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_text

_TEXT_OPTIONS = (
    ("signal", "hand_off_signal"),
    ("array", "job_array"),
    ("output", "output_file"),
    ("time", "time_limit"),
    ("open_mode", "output_opened"),
)
_MEMORY = (("mem_per_cpu", "memory_per_cpu_mib"), ("mem_per_gpu", "memory_per_gpu_mib"))
_FLAGS = {"--requeue": ("requeue", True), "--no-requeue": ("requeue", False), "--exclusive": ("exclusive", True)}
#: Options of sbatch(1) that select nodes or decide who may use them.
_RESOURCE_OPTIONS = frozenset(
    (
        *("--account", "--partition", "--qos", "--reservation", "--clusters", "--constraint", "--nodes", "--ntasks"),
        *("--ntasks-per-node", "--cpus-per-task", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--gres", "--gpus"),
        *("--gpus-per-node", "--gpus-per-task", "--cpus-per-gpu", "--nodelist", "--exclude", "--exclusive"),
        *("--switches", "--contiguous", "--licenses", "--time", "--tmp", "--mincpus", "--cores-per-socket"),
        *("--sockets-per-node", "--threads-per-core", "--hint", "--wckey", "--prefer", "--ntasks-per-gpu"),
    )
)
_LONG_NAMES = {
    "-A": "--account",
    "-p": "--partition",
    "-q": "--qos",
    "-M": "--clusters",
    "-C": "--constraint",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-c": "--cpus-per-task",
    "-G": "--gpus",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-L": "--licenses",
    "-t": "--time",
    "--tasks-per-node": "--ntasks-per-node",
}
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


def state_header(
    builder: ClaimBuilder, options: Mapping[str, slurm.BatchOption], directives: Sequence[Directive]
) -> None:
    """State the claims of a header; `slurm.state` states its sizes."""
    for dest, quantity in _TEXT_OPTIONS:
        option = options.get(dest)
        # Other schedulers have their own time formats.
        if option is not None and (dest != "time" or builder.source == "slurm"):
            _add(builder, quantity, option, as_text(option.value))
    slots = options.get("mpi_slots")
    if slots is not None:
        _add(builder, "batch_slots", slots, as_int(slots.value))
    for dest, quantity in _MEMORY:
        option = options.get(dest)
        if option is not None:
            _add(builder, quantity, option, slurm.mebibytes_of(option.value))
    for dest in ("gpus_per_node", "gres", "gpus", "gpus_per_task"):
        option = options.get(dest)
        if option is None:
            continue
        if isinstance(option.value, Unresolved):
            _add(builder, "gpu_type", option, option.value)
            break
        if isinstance(option.value, Known) and _gpu_type(option.value.value):
            _add(builder, "gpu_type", option, lift(_gpu_type, option.value))
            break
    else:
        # If the resource is only a number, the constraint often names the kind of GPU.
        option = options.get("constraint")
        if option is not None:
            _add(builder, "gpu_type", option, as_text(option.value))
    if builder.source == "slurm":
        _state_request(builder, directives)
    for directive in directives:
        bare = _FLAGS.get(directive.option)
        if bare is not None:
            builder.add(bare[0], Known(bare[1]), directive.span, directive.spelling, strength=Strength.SCHEDULER)


def state_component_gpus(builder: ClaimBuilder, directives: Sequence[Directive]) -> None:
    """State the kind of GPU of each part of a heterogeneous job."""
    for directive in directives:
        text = str(directive.value or "")
        if directive.option in ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "-G"):
            text = str(_gpu_type(text))
        elif directive.option not in ("--constraint", "-C"):
            continue
        if text:
            builder.add(
                "component_gpu_type", Known(text), directive.span, directive.spelling, strength=Strength.SCHEDULER
            )


def _state_request(builder: ClaimBuilder, directives: Sequence[Directive]) -> None:
    """State every option that selects resources, for the checks that ask Slurm whether it can grant them."""
    for directive in directives:
        name = _LONG_NAMES.get(directive.option, directive.option)
        _state_directive(builder, name, directive)
        if name not in _RESOURCE_OPTIONS:
            continue
        given = "" if directive.value is None else f"={directive.value}"
        value: Value = Known(f"{name}{given}")
        if slurm.has_placeholder(given):
            value = Unresolved(f"{directive.value} is replaced before the script is submitted")
        builder.add("batch_option", value, directive.span, directive.spelling, strength=Strength.SCHEDULER)


def _state_directive(builder: ClaimBuilder, name: str, directive: Directive) -> None:
    """State an option with its value as written; short options by their long names."""
    if name and not name.startswith("--"):
        # A short option that has no long name here.
        return
    value: Value = Known((name.removeprefix("--"), directive.value))
    if _PLACEHOLDER.search(directive.spelling):
        value = Unresolved("what replaces its placeholder before the script is submitted")
    builder.add("batch_directive", value, directive.span, directive.spelling, strength=Strength.SCHEDULER)


def has_directive_like(text: str) -> bool:
    """Whether any line of the script looks like a directive."""
    return _DIRECTIVE.search(text) is not None


def state_ignored_directives(builder: ClaimBuilder, file: SourceFile) -> None:
    """State the lines that look like directives but that sbatch ignores."""
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
                builder.add("directive_unread", Known(why), span, bare[:100], strength=Strength.SCHEDULER)
        elif not after_command and bare.lstrip().startswith(("{%", "{{")):
            why_open = Unresolved(f"{bare.strip()[:60]}: a template that may write directives there")
            span = places.span(start, start + len(bare))
            builder.add("directive_unread", why_open, span, bare[:100], strength=Strength.SCHEDULER)
        elif bare.strip():
            after_command = True
            heredoc = _HEREDOC.search(bare) if "<<<" not in bare else None
            closing = heredoc[2] if heredoc is not None else ""
            quote = "" if closing or not ("'" in bare or '"' in bare) else _open_quote(bare)
        start += len(line) + 1


def _open_quote(line: str, quote: str = "") -> str:
    """The quote that is still open at the end of a line; `quote` is the one open at its start."""
    for match in _QUOTE.finditer(line):
        found = match[0]
        if not quote and found == "#":
            break
        if quote and found == quote:
            quote = ""
        elif not quote and found in ("'", '"'):
            quote = found
    return quote


def _add(builder: ClaimBuilder, quantity: str, option: slurm.BatchOption, value: Value) -> None:
    builder.add(quantity, value, option.span, option.spelling, strength=Strength.SCHEDULER)


def _gpu_type(item: Plain) -> Plain:
    match = _GPU_TYPE.search(str(item)[:200])
    return match[1].lower() if match and match[1].lower() not in ("gpu", "tmpdir", "nvme") else ""
