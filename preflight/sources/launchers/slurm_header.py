"""What an `#SBATCH` header asks for beside sizes: signals, arrays, output files, memory, kinds of GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight.job import Known, Places, Plain, Strength, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Directive, SourceFile
from preflight.sources.launchers import slurm
from preflight.sources.launchers.stating import Stating, as_text

_TEXTS = (
    ("signal", "hand_off_signal"),
    ("array", "job_array"),
    ("output", "output_file"),
    ("gpu_bind", "gpu_bind"),
    ("time", "time_limit"),
    ("open_mode", "output_opened"),
)
_MEMORY = (("mem_per_cpu", "memory_per_cpu_mib"), ("mem_per_gpu", "memory_per_gpu_mib"))
_BARE = {"--requeue": ("requeue", True), "--no-requeue": ("requeue", False), "--exclusive": ("exclusive", True)}
#: The options of sbatch(1) by which nodes are chosen, and who may have them.
_CHOOSING = frozenset(
    (
        *("--account", "--partition", "--qos", "--reservation", "--clusters", "--constraint", "--nodes", "--ntasks"),
        *("--ntasks-per-node", "--cpus-per-task", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--gres", "--gpus"),
        *("--gpus-per-node", "--gpus-per-task", "--cpus-per-gpu", "--nodelist", "--exclude", "--exclusive"),
        *("--switches", "--contiguous", "--licenses", "--time", "--tmp", "--mincpus", "--cores-per-socket"),
        *("--sockets-per-node", "--threads-per-core", "--hint", "--wckey", "--prefer", "--ntasks-per-gpu"),
    )
)
_LONG = {
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
_MOST_LINES = 20_000
_DIRECTIVE = lazy_pattern(r"^#SBATCH[ \t]+-", re.MULTILINE)
#: What opens or closes a string, or begins a comment.
_QUOTE = lazy_pattern(r"\\.|[\"']|(?<!\S)#")
_HEREDOC = lazy_pattern(r"<<-?[ \t]*([\"']?)(\w+)\1")
#: What is meant as a directive and is none. `##SBATCH` is how people switch one off, and is let be.
_NEARLY = (
    (lazy_pattern(r"#[ \t]+SBATCH[ \t]+-{1,2}[A-Za-z][\w-]*[= ]?\S*[ \t]*$"), "a blank stands between # and SBATCH"),
    (lazy_pattern(r"#(?!SBATCH)[Ss][Bb][Aa][Tt][Cc][Hh][ \t]+-"), "SBATCH must be in capitals"),
    (lazy_pattern(r"#SBATCH-"), "no blank stands behind SBATCH"),
)
#: `a100:8`, `gpu:a100:8`, `gpu:nvidia_a100-sxm4-80gb:4(S:0-1)`: the kind in the middle.
_KIND = lazy_pattern(r"(?:^|,)(?:gres/)?(?:gpu:)?([A-Za-z0-9][\w.-]*):\d+")


def state_header(stating: Stating, asked: Mapping[str, slurm.Asked], directives: Sequence[Directive]) -> None:
    """State what the header says; sizes are `slurm.state`'s."""
    for dest, quantity in _TEXTS:
        option = asked.get(dest)
        # How a time is written is another scheduler's own matter.
        if option is not None and (dest != "time" or stating.source == "slurm"):
            _say(stating, quantity, option, as_text(option.value))
    slots = asked.get("mpi_slots")
    if slots is not None:
        _say(stating, "batch_slots", slots, as_int(slots.value))
    for dest, quantity in _MEMORY:
        option = asked.get(dest)
        if option is not None:
            _say(stating, quantity, option, slurm.mebibytes_of(option.value))
    for dest in ("gpus_per_node", "gres", "gpus", "gpus_per_task"):
        option = asked.get(dest)
        if option is None:
            continue
        if isinstance(option.value, Unresolved):
            _say(stating, "gpu_type", option, option.value)
            break
        if isinstance(option.value, Known) and _kind(option.value.value):
            _say(stating, "gpu_type", option, lift(_kind, option.value))
            break
    else:
        # Where the resource is a bare number, the kind of node often tells.
        option = asked.get("constraint")
        if option is not None:
            _say(stating, "gpu_type", option, as_text(option.value))
    if stating.source == "slurm":
        _state_request(stating, directives)
    for directive in directives:
        bare = _BARE.get(directive.option)
        if bare is not None:
            stating.say(bare[0], Known(bare[1]), directive.span, directive.spelling, strength=Strength.SCHEDULER)


def _state_request(stating: Stating, directives: Sequence[Directive]) -> None:
    """State every option that chooses resources as sbatch takes it, for whoever asks Slurm for the same."""
    for directive in directives:
        name = _LONG.get(directive.option, directive.option)
        if name not in _CHOOSING:
            continue
        given = "" if directive.value is None else f"={directive.value}"
        value: Value = Known(f"{name}{given}")
        if slurm.is_open(given):
            value = Unresolved(f"{directive.value} is filled in before the script is submitted")
        stating.say("batch_option", value, directive.span, directive.spelling, strength=Strength.SCHEDULER)


def has_directive_like(text: str) -> bool:
    """Whether some line of a script is written like a directive, wherever it stands."""
    return _DIRECTIVE.search(text) is not None


def state_unread(stating: Stating, file: SourceFile) -> None:
    """State the lines that look like directives and that sbatch does not read."""
    places = Places(file.path, file.text)
    commanded, closing, quote, start = False, "", "", 0
    for line in file.text.split("\n")[:_MOST_LINES]:
        bare = line.rstrip("\r")
        if closing:
            closing = "" if bare.strip() == closing else closing
        elif quote:
            quote = _open_quote(bare, quote)
        elif bare.startswith("#"):
            why = "it stands behind the first command" if commanded and _DIRECTIVE.match(bare) else ""
            if not commanded:
                why = next((reason for pattern, reason in _NEARLY if pattern.match(bare)), "")
            if why:
                span = places.span(start, start + len(bare))
                stating.say("directive_unread", Known(why), span, bare[:100], strength=Strength.SCHEDULER)
        elif not commanded and bare.lstrip().startswith(("{%", "{{")):
            why_open = Unresolved(f"{bare.strip()[:60]}: a template that may write directives there")
            span = places.span(start, start + len(bare))
            stating.say("directive_unread", why_open, span, bare[:100], strength=Strength.SCHEDULER)
        elif bare.strip():
            commanded = True
            heredoc = _HEREDOC.search(bare) if "<<<" not in bare else None
            closing = heredoc[2] if heredoc is not None else ""
            quote = "" if closing or not ("'" in bare or '"' in bare) else _open_quote(bare)
        start += len(line) + 1


def _open_quote(line: str, quote: str = "") -> str:
    """The quote that is open at the end of a line; `quote` is open at its start."""
    for match in _QUOTE.finditer(line):
        found = match[0]
        if not quote and found == "#":
            break
        if quote and found == quote:
            quote = ""
        elif not quote and found in ("'", '"'):
            quote = found
    return quote


def _say(stating: Stating, quantity: str, option: slurm.Asked, value: Value) -> None:
    stating.say(quantity, value, option.span, option.spelling, strength=Strength.SCHEDULER)


def _kind(item: Plain) -> Plain:
    match = _KIND.search(str(item)[:200])
    return match[1].lower() if match and match[1].lower() not in ("gpu", "tmpdir", "nvme") else ""
