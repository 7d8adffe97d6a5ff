"""Here-documents: files that a script writes before it launches, and scripts passed on standard input."""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight._util.budget import note_skipped
from preflight.sources.base import SourceFile, WrittenFile
from preflight.sources.shell import lookup, program_output
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.expansion import expand_text, heredoc_text_of, output_text, redirected_text
from preflight.sources.shell.shell_document import Document, Lit, Piece, Place, Text
from preflight.sources.shell.state import State
from preflight.sources.shell.words import Field, known, literal

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_CHARACTERS = 100_000
_MAX_FILES = 100
#: Programs that write the file named last.
_COPYING = frozenset(("cp", "mv", "ln", "scp", "rsync", "install"))
#: Options of other programs that are followed by the path of their output.
_OUTPUT_OPTIONS = frozenset(
    ("-o", "--out", "--output", "--output-file", "--output_file", "--hostfile-out", "--save", "--save-path", "--write")
)


def standard_input(machine: Machine, state: State, document: Document, redirects: Sequence[Node]) -> Text | None:
    """The text a command reads from a here-document, a here-string, a file or a pipe; None when it is unknown."""
    for redirect in reversed(redirects):
        if redirect.type == "heredoc_redirect":
            found = heredoc_text_of(machine, state, document, redirect)
            if found is not None:
                return found[0]
        if redirect.type == "herestring_redirect" and redirect.named_children:
            return expand_text(machine, state, document, redirect.named_children[-1])
        if redirect.type == "file_redirect" and document.text_of(redirect).lstrip().startswith(("<", "0<")):
            return redirected_text(machine, state, document, redirect)
    return machine.input


def record_written_file(
    machine: Machine, state: State, document: Document, redirects: Sequence[Node], fields: Sequence[Field]
) -> None:
    """Record the file that `cat > f <<EOF`, `tee f <<EOF` or `echo ... > f` writes."""
    if not fields or machine.quiet:
        return
    words = [item.known or "" for item in fields]
    outputs = _copied_paths(words)
    machine.produced.update(name for each in outputs if (name := posixpath.basename(each)))
    for output in outputs if words[0] not in _REPLACING_ALL | _REPLACING_LAST | {"touch"} else ():
        target = lookup.locate(machine, state, output) if output else None
        if target is not None and isinstance(machine.tree.read(target), SourceFile):
            _add_file(machine, WrittenFile(target, None, fields[0].place.span))
    _record_moved(machine, state, _inner_command(words), fields[0].place)
    _record_rewritten(machine, state, words, fields[0].place)
    if not redirects or words[0] not in ("cat", "tee", "echo", "printf"):
        return
    path, appends = _destination(machine, state, document, redirects)
    if path is None and words[0] == "tee" and len(words) > 1:
        path, appends = fields[-1].text, "-a" in words
    if path is None:
        return
    content: Text | None = None
    place = fields[0].place
    if words[0] in ("cat", "tee"):
        for redirect in redirects:
            if redirect.type == "heredoc_redirect" and (found := heredoc_text_of(machine, state, document, redirect)):
                content, place = found[0], document.place_of(found[1])
                if document.text[redirect.start_byte : redirect.start_byte + 3] == "<<-":
                    content = _without_tabs(content)
    else:
        content = _printed_text(words, fields)
    if content is not None:
        _keep(machine, state, path, content, place, appends=appends)


#: Programs after which a file has another text, or none: all files that are named, or the last one.
_REPLACING_ALL = frozenset(("mv", "rm", "sed", "perl", "tee"))
_REPLACING_LAST = frozenset(("cp", "ln", "install", "rsync"))
#: The files that Python code opens to write, and those that it gives a function that writes.
_WRITES = re.compile(
    r"""open\(\s*["']([^"'\n]{1,200})["']\s*,\s*(?:mode\s*=\s*)?["'][wax]|Path\(["']([^"'\n]{1,200})["']\)\.write_"""
)


def _inner_command(words: Sequence[str]) -> Sequence[str]:
    """The command that `find ... -name FILE -exec` runs, with the file; any other command as it is."""
    if words[0] != "find" or "-exec" not in words:
        return words
    named = [following for word, following in itertools.pairwise(words) if word == "-name"]
    folder = words[1] if not words[1].startswith("-") else "."
    inner = [word for word in words[words.index("-exec") + 1 :] if word not in ("{}", "+", ";", "\\;")]
    return [*inner, *(posixpath.join(folder, name) for name in named)] if inner else words


def _record_rewritten(machine: Machine, state: State, words: Sequence[str], place: Place) -> None:
    """Record the files that `git checkout FILE` restores, and those that `python gen.py` writes."""
    paths: Sequence[str] = ()
    if words[0] == "git" and words[1:2] in (["checkout"], ["restore"]):
        paths = words[2:]
    elif re.fullmatch(r"python[\d.]*", posixpath.basename(words[0])) and len(words) > 1:
        script = lookup.read_file(machine, state, words[1]) if words[1].endswith(".py") else None
        text = words[2] if words[1] == "-c" and len(words) > 2 else script.text if script is not None else ""
        paths = [found[1] or found[2] for found in _WRITES.finditer(text)]
    for path in paths:
        _record_replaced(machine, state, path, None, place)


def _record_replaced(machine: Machine, state: State, path: str, text: str | None, place: Place) -> None:
    """Record that a file of the tree, or one that was written, has another text now; None if it is not known."""
    target = lookup.locate(machine, state, path)
    known_files = {item.path for item in machine.written_files}
    if target is not None and (target in known_files or isinstance(machine.tree.read(target), SourceFile)):
        machine.written_texts.pop(lookup.written_key(machine, state, literal(path, place)), None)
        _add_file(machine, WrittenFile(target, text, place.span))


def _record_moved(machine: Machine, state: State, words: Sequence[str], place: Place) -> None:
    """Record the files that `cp a.json b.json`, `sed -i` and the like replace, and those that `rm` removes."""
    program, paths = words[0], [word for word in words[1:] if not word.startswith("-")]
    if program in ("sed", "perl"):
        in_place = any(re.match(r"-[a-z]*i|--in-place", word) for word in words[1:])
        paths = [path for path in paths if path] if in_place else []
    if program not in _REPLACING_ALL | _REPLACING_LAST or "" in paths or not paths:
        return
    if len(paths) == 1 and program in _REPLACING_LAST:
        return
    sources, last = (paths[:-1], paths[-1]) if "-t" not in words else (paths[1:], paths[0])
    if program in ("cp", "mv", "install", "ln", "rsync") and (
        last == "." or last.endswith("/") or _is_folder(machine, state, last)
    ):
        sources = [each for source in sources for each in _named(machine, state, source)]
        paths = [*sources, *(posixpath.join(last, posixpath.basename(path)) for path in sources)]
        copied = None
    else:
        copied = lookup.read_file(machine, state, paths[0]) if program in ("cp", "mv") and len(paths) == 2 else None
    for path in paths if program in _REPLACING_ALL else paths[len(sources) :]:
        text = copied.text if copied is not None and path == paths[-1] else None
        _record_replaced(machine, state, path, text, place)


def _named(machine: Machine, state: State, path: str) -> list[str]:
    """The files that `configs/*`, `configs/.` or `configs/` name; any other path itself."""
    folder, name = posixpath.split(path)
    target = lookup.locate(machine, state, folder or ".")
    if target is None or not (name in ("", ".") or re.search(r"[*?\[]", name)):
        return [path]
    entries = machine.tree.names(target)
    return [posixpath.join(folder, each) for each in entries if fnmatch.fnmatchcase(each, name.strip(".") or "*")]


def _is_folder(machine: Machine, state: State, path: str) -> bool:
    target = lookup.locate(machine, state, path)
    return target is not None and bool(machine.tree.names(target))


def record_destinations(machine: Machine, state: State, document: Document, redirects: Sequence[Node]) -> None:
    """Record the last part of each path to which standard output is redirected, as written if the path is unknown."""
    for redirect in redirects:
        destination = redirect.child_by_field_name("destination") if redirect.type == "file_redirect" else None
        if destination is not None and document.text_of(redirect).lstrip().startswith((">", "1>", "&>")):
            path = known(expand_text(machine, state, document, destination))
            name = path or document.text_of(destination)
            machine.produced.add(posixpath.basename(name.strip("\"'")))
            target = lookup.locate(machine, state, path) if path else None
            if target is not None and ">>" not in document.text_of(redirect)[:4]:
                machine.written_texts.pop(
                    lookup.written_key(machine, state, literal(path or "", document.place_of(redirect))), None
                )
                _add_file(machine, WrittenFile(target, None, document.place_of(redirect).span))


def _copied_paths(words: Sequence[str]) -> Sequence[str]:
    """The paths that a command writes without redirection: targets of `cp` and `tee`, and the path after `--out`."""
    program = posixpath.basename(words[0])
    if program in _COPYING:
        return words[-1:]
    if program in ("tee", "touch", "truncate"):
        return words[1:]
    found = []
    for option, following in zip(words, (*words[1:], ""), strict=True):
        name, _, value = option.partition("=")
        if name in _OUTPUT_OPTIONS:
            found.append(value or following)
    return found


def record_written_by(
    machine: Machine, state: State, document: Document, body: Node, redirects: Sequence[Node]
) -> None:
    """Record the file that `{ echo ...; echo ...; } > f` writes."""
    path, appends = _destination(machine, state, document, redirects)
    content = output_text(machine, state, document, [body]) if path is not None else None
    if path is not None and content is not None:
        _keep(machine, state, path, content, document.place_of(body), appends=appends)


def _keep(machine: Machine, state: State, path: Text, content: Text, place: Place, *, appends: bool) -> None:
    """Keep the written text for a shell that runs the file, and the file, whose text counts if all of it is known."""
    if len(machine.written_texts) >= _MAX_FILES:
        note_skipped(f"only the first {_MAX_FILES} files that the script writes were read")
        return
    key = lookup.written_key(machine, state, path)
    if sum(len(piece.text) for piece in content if isinstance(piece, Lit)) > _MAX_CHARACTERS:
        note_skipped(f"{key}, which the script writes, has more than {_MAX_CHARACTERS} characters and was not read")
        return
    plain_path = known(path)
    target = lookup.locate(machine, state, plain_path) if plain_path is not None else None
    earlier = machine.written_texts.get(key) if appends else ()
    if earlier is None:
        own = machine.tree.read(target) if target is not None else None
        earlier = literal(own.text, place) if isinstance(own, SourceFile) else ()
    whole = machine.written_texts[key] = (*earlier, *content)
    plain = known(whole)
    before = next((item for item in reversed(machine.written_files) if item.path == target), None)
    # What is appended to a file of the user's own leaves its text there.
    if target is None or (plain is None and appends and before is None):
        return
    span = before.span if appends and before is not None else place.span
    _add_file(machine, WrittenFile(target, plain, span))


#: Programs that run a command on another machine, or in a container.
_ELSEWHERE = frozenset(("ssh", "pdsh", "clush", "docker", "podman", "kubectl"))


def _add_file(machine: Machine, file: WrittenFile) -> None:
    """Add a file, in place of what the same command was seen to write to it."""
    programs = (posixpath.basename(command.words[0].spelling) for command in machine.outer_commands if command.words)
    if not _ELSEWHERE.isdisjoint(programs):
        # The file of another machine, or of this one where they share it.
        file = replace(file, text=None)
    added = replace(file, condition=machine.condition, number=len(machine.commands))
    last = machine.written_files[-1:]
    if last and (last[0].path, last[0].number) == (added.path, added.number):
        machine.written_files.pop()
    machine.written_files.append(added)


def _without_tabs(content: Text) -> Text:
    """The text of a `<<-` here-document: the tabs that begin its lines are removed."""
    pieces: list[Piece] = []
    line_start = True
    for piece in content:
        if not isinstance(piece, Lit):
            pieces.append(piece)
            line_start = False
            continue
        at = 0
        for line in piece.text.splitlines(keepends=True):
            skipped = len(line) - len(line.lstrip("\t")) if line_start else 0
            pieces.append(piece.cut(at + skipped, at + len(line)))
            at += len(line)
            line_start = line.endswith("\n")
    return tuple(pieces)


def _printed_text(words: Sequence[str], fields: Sequence[Field]) -> Text | None:
    """The text that `echo` or `printf` writes; None when the format is not understood."""
    if words[0] == "printf":
        plain = program_output.printf(words[1:]) if all(item.known is not None for item in fields) else None
        return None if plain is None else literal(plain, fields[0].place)
    rest = list(fields[1:])
    end, escapes = "\n", False
    while rest and rest[0].known in ("-n", "-e", "-ne", "-en"):
        flag = rest.pop(0).known or ""
        end = "" if "n" in flag else end
        escapes = escapes or "e" in flag
    pieces: list[Piece] = []
    for number, item in enumerate(rest):
        if number:
            pieces.append(Lit(" ", item.place, False))
        for piece in item.text:
            if escapes and isinstance(piece, Lit) and "\\" in piece.text:
                pieces.append(Lit(piece.text.replace("\\n", "\n").replace("\\t", "\t"), piece.place, False))
            else:
                pieces.append(piece)
    if end:
        pieces.append(Lit(end, fields[0].place, False))
    return tuple(pieces)


def _destination(
    machine: Machine, state: State, document: Document, redirects: Sequence[Node]
) -> tuple[Text | None, bool]:
    """The file that standard output goes to, and whether it is appended to."""
    for redirect in redirects:
        candidates = [redirect]
        if redirect.type == "heredoc_redirect":
            candidates = [child for child in redirect.children if child.type == "file_redirect"]
        for candidate in candidates:
            if candidate.type != "file_redirect":
                continue
            raw = document.text_of(candidate).lstrip()
            destination = candidate.child_by_field_name("destination")
            if raw.startswith((">", "1>")) and not raw.startswith(">&") and destination is not None:
                path = expand_text(machine, state, document, destination)
                device = not path or (known(path) or "").startswith("/dev/")
                return (None if device else path), ">>" in raw[:4]
    return None, False
