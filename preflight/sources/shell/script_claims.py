"""Claims about a script as a whole: rejected exports, Slurm variables that it reads, hostfiles that it writes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from preflight.model.job import Claim, Known, Places, Reference, Scope, Strength, Unresolved
from preflight.sources.base import Script, SourceFile

#: `export NCCL_IB-DISABLE=1`: a letter, then an intended name with a character that no name may contain.
_EXPORTED = re.compile(
    r"^[ \t]*export[ \t]+(?P<assignment>"
    r"(?P<name>[A-Za-z_$][\w${}]{0,60}[-.][\w.${}-]{0,60})=(?P<value>[^\s;&|]{0,80}))",
    re.MULTILINE,
)
#: The beginning of a here-document, whose content is not run.
_HEREDOC = re.compile(r"<<-?[ \t]*[\"']?([A-Za-z_]\w*)[\"']?")
_READ = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+)")
# The lookbehind comes second, so that the search jumps from one `SLURM_` to the next.
_ASSIGNED = re.compile(r"SLURM_(?<![\w$]SLURM_)[A-Z0-9_]+(?=\+?=)")
_READ_OR_UNSET = re.compile(r"\b(?:read|unset)\s+(?:-\w+\s+)*(SLURM_[A-Z0-9_]+)")


def rejected_exports(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each exported name that the shell rejects: `export NCCL_IB-DISABLE=1` sets nothing."""
    if "export" not in file.text:
        return
    places: Places | None = None
    for match in _EXPORTED.finditer(file.text):
        if _is_in_heredoc(file.text, match.start()):
            continue
        places = places or Places(file.path, file.text)
        span = places.span(match.start("assignment"), match.end("assignment"))
        name = match["name"]
        value = Unresolved("a variable in the name") if "$" in name else Known(name)
        yield Claim("refused_variable", value, span, match["assignment"], "shell", scope)


#: `export NAME=value` on a line of its own, with a constant value.
_CONSTANT = re.compile(r"export[ \t]+(?P<name>[A-Za-z_]\w*)=(?P<value>[^\s;&|$`()]+)[ \t]*(?:#.*)?")


def overwritten_exports(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each constant that the script exports and, with only exports between, replaces."""
    if file.text.count("export") < 2:
        return
    places: Places | None = None
    block: dict[str, tuple[str, int, int]] = {}
    start = 0
    for line in file.text.split("\n"):
        match = _CONSTANT.fullmatch(line.rstrip("\r"))
        if match is not None:
            name, value = match["name"], match["value"]
            old = block.get(name)
            if old is not None and old[0] != value and not _is_in_heredoc(file.text, start):
                places = places or Places(file.path, file.text)
                reason = Claim(
                    "overwritten_export", Known(name), places.span(start, start + len(line)), line, "shell", scope
                )
                spelling = file.text[old[1] : old[2]]
                span = places.span(old[1], old[2])
                yield Claim("overwritten_export", Known(name), span, spelling, "shell", scope, because=(reason,))
            block[name] = (value, start, start + match.end("value"))
        elif line.strip() and not line.lstrip().startswith("#"):
            block = {}
        start += len(line) + 1


def produced_hostfiles(script: Script, references: Iterable[Reference], scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each hostfile of a launch that the script itself writes before, whatever its content."""
    for reference in references:
        if reference.role == "hostfile" and posixpath.basename(reference.target) in script.produced:
            yield Claim("produced_hostfile", Known(reference.target), reference.span, reference.target, "shell", scope)


def _is_in_heredoc(text: str, at: int) -> bool:
    """Whether the last here-document before an offset is still open there."""
    before = text[max(0, at - 20_000) : at]
    opened = list(_HEREDOC.finditer(before))
    return bool(opened) and re.search(rf"^\s*{opened[-1][1]}$", before[opened[-1].end() :], re.MULTILINE) is None


def slurm_variables_read(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each Slurm variable that the script reads and does not set, at its first use."""
    if "SLURM_" not in file.text:
        return
    skipped = {*_ASSIGNED.findall(file.text), *_READ_OR_UNSET.findall(file.text)}
    places = Places(file.path, file.text)
    start = 0
    for line in file.text.split("\n"):
        for match in _READ.finditer(line) if "SLURM_" in line and not line.lstrip().startswith("#") else ():
            name = match.group(1)
            if name in skipped:
                continue
            skipped.add(name)
            end = match.end() + (line[match.end() : match.end() + 1] == "}")
            span = places.span(start + match.start(), start + end)
            spelling = line[match.start() : end]
            yield Claim("variable_read", Known(name), span, spelling, "shell", scope=scope, strength=Strength.FLAG)
        start += len(line) + 1
