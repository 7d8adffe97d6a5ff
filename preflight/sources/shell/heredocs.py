"""Here-documents: files a script writes before it launches, and scripts given on standard input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.sources.base import WrittenFile
from preflight.sources.shell import expand, files, printing
from preflight.sources.shell.document import Document, Text
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import State
from preflight.sources.shell.text import Field, known

if TYPE_CHECKING:
    from tree_sitter import Node

_LONGEST = 100_000
_MOST_FILES = 100


def text_of(machine: Machine, state: State, document: Document, redirect: Node) -> tuple[Text, Node] | None:
    """The text of a here-document, and its body's node."""
    body = next((child for child in redirect.children if child.type == "heredoc_body"), None)
    start = next((child for child in redirect.children if child.type == "heredoc_start"), None)
    if body is None or start is None:
        return None
    raw = any(sign in document.of(start) for sign in "'\"\\")
    text = expand.heredoc_text(machine, state, document, body, raw=raw)
    return text, body


def standard_input(machine: Machine, state: State, document: Document, redirects: Sequence[Node]) -> Text | None:
    """What a command reads from a here-document or a here-string; None without one."""
    for redirect in redirects:
        if redirect.type == "heredoc_redirect":
            found = text_of(machine, state, document, redirect)
            if found is not None:
                return found[0]
        if redirect.type == "herestring_redirect" and redirect.named_children:
            return expand.text(machine, state, document, redirect.named_children[-1])
    return None


def record(
    machine: Machine, state: State, document: Document, redirects: Sequence[Node], fields: Sequence[Field]
) -> None:
    """Record the file that `cat > f <<EOF`, `tee f <<EOF` or `echo ... > f` writes, where all of it is known."""
    if not redirects or not fields or len(machine.written) >= _MOST_FILES:
        return
    words = [item.known or "" for item in fields]
    if words[0] not in ("cat", "tee", "echo", "printf"):
        return
    path, appends = _destination(machine, state, document, redirects)
    if path is None and words[0] == "tee" and len(words) > 1:
        path, appends = words[-1], "-a" in words
    if path is None:
        return
    content: str | None = None
    place = fields[0].place
    if words[0] in ("cat", "tee"):
        for redirect in redirects:
            if redirect.type == "heredoc_redirect" and (found := text_of(machine, state, document, redirect)):
                content, place = known(found[0]), document.at(found[1])
                if document.text[redirect.start_byte : redirect.start_byte + 3] == "<<-" and content is not None:
                    content = "\n".join(line.lstrip("\t") for line in content.split("\n"))
    else:
        content = _printed(words, fields)
    target = files.locate(machine, state, path)
    if content is None or target is None or len(content) > _LONGEST:
        return
    if appends:
        before = next((item for item in reversed(machine.written) if item.path == target), None)
        content = (before.text if before is not None else "") + content
    machine.written[:] = [item for item in machine.written if item.path != target or item.condition]
    machine.written.append(WrittenFile(target, content, place.span, "; ".join(machine.conditions)))


def _printed(words: Sequence[str], fields: Sequence[Field]) -> str | None:
    """What `echo` or `printf` writes into a file; None where a word of it is not known."""
    if any(item.known is None for item in fields):
        return None
    if words[0] == "printf":
        return printing.printf(words[1:])
    rest = list(words[1:])
    end = "\n"
    while rest and rest[0] in ("-n", "-e", "-ne", "-en"):
        flag = rest.pop(0)
        end = "" if "n" in flag else end
        if "e" in flag:
            rest = [word.replace("\\n", "\n").replace("\\t", "\t") for word in rest]
    return " ".join(rest) + end


def _destination(
    machine: Machine, state: State, document: Document, redirects: Sequence[Node]
) -> tuple[str | None, bool]:
    """The file standard output goes to, and whether it is appended to."""
    for redirect in redirects:
        candidates = [redirect]
        if redirect.type == "heredoc_redirect":
            candidates = [child for child in redirect.children if child.type == "file_redirect"]
        for candidate in candidates:
            if candidate.type != "file_redirect":
                continue
            raw = document.of(candidate).lstrip()
            destination = candidate.child_by_field_name("destination")
            if raw.startswith((">", "1>")) and not raw.startswith(">&") and destination is not None:
                path = expand.plain(machine, state, document, destination)
                return (None if path is None or path.startswith("/dev/") else path), ">>" in raw[:4]
    return None, False
