"""Commands that take words from their input: `read`, `mapfile`, `xargs` and GNU `parallel`.

Options: the manuals of GNU findutils 4.9 and of GNU parallel 20231122.
"""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from preflight._util.budget import note_skipped
from preflight.sources.base import SourceFile, WrittenFile
from preflight.sources.shell import lookup, program_output
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.expansion import expand_text, heredoc_text_of, output_text, redirected_text
from preflight.sources.shell.shell_document import Document, Lit, Piece, Place, Text, cover
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import (
    Field,
    Part,
    hole,
    is_count,
    join_words,
    known,
    literal,
    replace_spans,
    split_fields,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_NAME = re.compile(r"[A-Za-z_]\w*")
#: Options that take a word; source: the manual of bash 5.2.
_VALUED = {"read": frozenset("adinNptu"), "mapfile": frozenset("dnOsuCc"), "readarray": frozenset("dnOsuCc")}
#: Lines of a text that are read.
MAX_LINES = 256


@dataclass(frozen=True, slots=True)
class Reader:
    """A `read` command: the variables it sets, and the array if it has `-a`.

    `plain`: whether it reads up to the end of a line; with `-d` and `-n` it ends elsewhere. `whole`: whether it reads
    all of its input (`-d ''`).
    """

    names: tuple[Field, ...]
    array: Field | None
    plain: bool
    whole: bool = False


def parse(fields: Sequence[Field]) -> Reader:
    """Return what `read -r a b` sets; the first field is the command itself."""
    names: list[Field] = []
    array: Field | None = None
    plain, whole = True, False
    valued = _VALUED.get(fields[0].known or "", _VALUED["read"])
    index = 1
    while index < len(fields):
        word = fields[index].known
        if word is not None and word.startswith("-") and len(word) > 1 and not names:
            letter = word[-1]
            plain = plain and not any(c in word[1:] for c in "dnNu")
            if letter in valued:
                index += 1
                if letter == "a" and index < len(fields):
                    array = fields[index]
                if letter == "d" and index < len(fields):
                    whole = fields[index].known in ("", "\\0")
        elif word is not None and _NAME.fullmatch(word):
            names.append(fields[index])
        index += 1
    return Reader(tuple(names), array, plain, whole and array is None and len(names) == 1)


def lines_of(text: Text) -> Iterator[Text]:
    """Yield the lines of a text, each piece with its own location; a line that ends the text may lack its newline."""
    current: list[Piece] = []
    for piece in text:
        if not isinstance(piece, Lit):
            current.append(piece)
            continue
        start = 0
        while (end := piece.text.find("\n", start)) >= 0:
            if end > start:
                current.append(piece.cut(start, end))
            yield tuple(current)
            current = []
            start = end + 1
        if start < len(piece.text):
            current.append(piece.cut(start, len(piece.text)))
    if current:
        yield tuple(current)


def assign_whole(state: State, reader: Reader, text: Text, fallback: Place) -> None:
    """Set the variable of `read -r -d '' NAME` to all of its input."""
    name = reader.names[0].known or "REPLY"
    state.put(name, Slot(Kind.TEXT, cover(text, fallback), text))


def assign_line(state: State, reader: Reader, line: Text, separators: str, fallback: Place) -> None:
    """Set the variables of `read` from one line; the last one takes the rest of the line."""
    place = cover(line, line[0].place if line else fallback)
    words = split_fields([Part(piece, split=True) for piece in line], place, separators)
    if reader.array is not None:
        state.put(reader.array.known or "_", Slot(Kind.ARRAY, place, items=tuple(words)))
        return
    names = [item.known or "_" for item in reader.names] or ["REPLY"]
    if len(words) < len(names) and any(not isinstance(piece, Lit) for piece in line):
        # What is not known may be several words.
        for name in names:
            why = f"${name} is read from the input"
            state.put(name, Slot(Kind.TEXT, place, hole(why, place, f"${name}")))
        return
    for number, name in enumerate(names):
        if number == len(names) - 1 and len(words) > len(names):
            text = join_words(words[number:], place)
        elif number < len(words):
            text = words[number].text
        else:
            text = ()
        if len(names) == 1 and not separators:
            text = line
        state.put(name, Slot(Kind.TEXT, words[number].place if number < len(words) else place, text))


def assign_array(state: State, fields: Sequence[Field], text: Text | None, place: Place) -> None:
    """Set the array of `mapfile -t NAME` to the lines of its input, or to an unknown one."""
    name = parse(fields).names[-1:] or ()
    if not name:
        return
    target = name[0].known or "MAPFILE"
    options = {word for item in fields[1:] if (word := item.known or "-?").startswith("-")}
    # `-n`, `-s`, `-d` and others select or divide lines in another way.
    lines = list(islice(lines_of(text), MAX_LINES + 1)) if text is not None and options <= {"-t"} else None
    if lines is None or len(lines) > MAX_LINES or any(known(line) is None for line in lines):
        why = f"${target} is read from the input"
        state.put(target, Slot(Kind.TEXT, place, hole(why, place, f"${target}", many=True)))
        return
    items = tuple(Field(line, cover(line, place)) for line in lines)
    state.put(target, Slot(Kind.ARRAY, place, items=items))


PROGRAMS = frozenset(("xargs", "parallel"))
#: Commands of one line that are followed.
MAX_STARTS = 64
_XARGS_VALUED = (
    "-n -P -I -L -a -d -E -s --max-args --max-procs --replace --max-lines --arg-file --delimiter --max-chars"
)
_PARALLEL_VALUED = (
    "-j --jobs -P --max-procs -C --colsep -a --arg-file -S --sshlogin --sshloginfile --slf --halt --delay --joblog"
    " --results --env -I -N -n --max-args --max-replace-args --timeout --retries --wd --workdir --tmpdir --memfree"
    " --load --tagstring -d --delimiter --basefile --bf --return --trc --transferfile --shebang --seqreplace --block"
    " --sshdelay --header --limit --nice"
)
_SOURCES = {":::": False, ":::+": False, "::::": True, "::::+": True}
_PLACEHOLDER = re.compile(r"\{(?:(\d{1,2})?(\.|/{1,2}|/\.)?|#|%)\}")
_DELIMITERS = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}


@dataclass(frozen=True, slots=True)
class Starts:
    """The commands that a line starts.

    Args:
        commands: the words of each, in order.
        code: whether a shell reads the words of each as one line of code.
        concurrent: whether they run at the same time.
        certain: whether these are all; otherwise one command with unknown arguments represents any number of them.
    """

    commands: tuple[tuple[Field, ...], ...]
    code: bool
    concurrent: bool
    certain: bool = True


@dataclass(slots=True)
class _Line:
    """The options of the program, and the words after them."""

    options: dict[str, Field | None]
    rest: list[Field]

    def text(self, *names: str) -> str | None:
        """Return the value of the first of these options that is given."""
        for name in names:
            item = self.options.get(name)
            if item is not None:
                return item.known
        return None


def starts_of(name: str, fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    """Return the commands that `xargs` or `parallel` starts; None when it names no command.

    Args:
        name: the program.
        fields: its words after its name.
        standard_input: the text; None when it is unknown.
        place: where the line is.
    """
    return _xargs(fields, standard_input, place) if name == "xargs" else _parallel(fields, standard_input, place)


def _scan(fields: Sequence[Field], valued: Sequence[str]) -> _Line:
    options: dict[str, Field | None] = {}
    index = 0
    while index < len(fields):
        item = fields[index]
        word = item.known
        if word is None or not word.startswith("-") or word == "-":
            break
        index += 1
        if word == "--":
            break
        if word in valued:
            options[word] = fields[index] if index < len(fields) else None
            index += 1
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            options[name] = Field(literal(value, item.place), item.place) if equals else None
        elif word[:2] in valued:
            options[word[:2]] = Field(literal(word[2:], item.place), item.place)
        else:
            options[word] = None
    return _Line(options, list(fields[index:]))


def _xargs(fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    line = _scan(fields, _XARGS_VALUED.split())
    if not line.rest:
        return None
    replaced = line.text("-I", "--replace") or ("{}" if {"-I", "-i", "--replace"} & set(line.options) else "")
    concurrent = (line.text("-P", "--max-procs") or "1") != "1"
    if "-a" in line.options or "--arg-file" in line.options:
        standard_input = None
    groups = _groups(line, standard_input, place, by_line=bool(replaced))
    if groups is None:
        unknown = Field(
            hole("the input of xargs", place, replaced or "an argument", many=not replaced), place, not replaced
        )
        return Starts((_fill_template(line.rest, replaced, (unknown,)),), False, concurrent, certain=False)
    return Starts(tuple(_fill_template(line.rest, replaced, group) for group in groups), False, concurrent)


def _groups(line: _Line, standard_input: Text | None, place: Place, *, by_line: bool) -> list[tuple[Field, ...]] | None:
    """Return the arguments of each command that xargs starts."""
    if standard_input is None or any(not isinstance(piece, Lit) for piece in standard_input):
        return None
    delimiter = line.text("-d", "--delimiter")
    if by_line or delimiter is not None or "-0" in line.options:
        separator = _DELIMITERS.get(delimiter or "\\n", delimiter or "\n")
        items = [
            Field(text, cover(text, place))
            for text in (lines_of(standard_input) if separator == "\n" else _cut(standard_input, separator))
        ]
        items = [item for item in items if (item.known or "").strip()]
    else:
        items = [
            word
            for text in lines_of(standard_input)
            for word in split_fields([Part(piece, split=True) for piece in text], place)
        ]
    if line.text("-L", "--max-lines") == "1" and not by_line:
        rows = [
            tuple(split_fields([Part(piece, split=True) for piece in text], place)) for text in lines_of(standard_input)
        ]
        return rows if len(rows) <= MAX_STARTS else None
    count = line.text("-n", "--max-args")
    if count is not None and not is_count(count):
        return None
    size = 1 if by_line else int(count or 0) or max(len(items), 1)
    groups = [tuple(items[at : at + size]) for at in range(0, len(items), size)]
    return groups if len(groups) <= MAX_STARTS else None


def _cut(text: Text, separator: str) -> Iterator[Text]:
    for piece in text:
        if isinstance(piece, Lit):
            at = 0
            for part in piece.text.split(separator):
                yield (piece.cut(at, at + len(part)),)
                at += len(part) + len(separator)


def _fill_template(words: Sequence[Field], replaced: str, group: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the words of one command of xargs."""
    if not replaced:
        return (*words, *group)
    value = tuple(piece for item in group for piece in item.text)
    pattern = re.compile(re.escape(replaced))
    return tuple(Field(_substitute(item.text, pattern, {replaced: value}), item.place, item.many) for item in words)


def _substitute(text: Text, pattern: re.Pattern[str], values: Mapping[str, Text]) -> Text:
    """Return the text with each match of `pattern` replaced by its value; a match without a value stays."""
    return replace_spans(
        text,
        lambda literal: (match.span() for match in pattern.finditer(literal) if match.group() in values),
        lambda found: values[found.text],
    )


def _parallel(fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    line = _scan(fields, _PARALLEL_VALUED.split())
    at = next((n for n, item in enumerate(line.rest) if (item.known or "") in _SOURCES), len(line.rest))
    template, sources = line.rest[:at], line.rest[at:]
    concurrent = line.text("-j", "--jobs", "-P", "--max-procs") != "1"
    rows = _rows(line, sources, standard_input, place)
    if rows is None or len(rows) > MAX_STARTS:
        if not template:
            return None
        unknown = hole("the arguments of parallel", place, "{}")
        return Starts((_row_words(template, [Field(unknown, place)], 1, place),), True, concurrent, certain=False)
    if not template:
        return Starts(tuple(tuple(row) for row in rows), True, concurrent)
    return Starts(
        tuple(_row_words(template, row, number, place) for number, row in enumerate(rows, start=1)), True, concurrent
    )


def _rows(line: _Line, sources: Sequence[Field], standard_input: Text | None, place: Place) -> list[list[Field]] | None:
    """Return the arguments of each command that parallel starts, one from each source of input."""
    lists: list[list[Field]] = []
    linked = "--link" in line.options or "--xapply" in line.options
    if {"-a", "--arg-file"} & set(line.options):
        return None
    if not sources:
        if standard_input is None or any(not isinstance(piece, Lit) for piece in standard_input):
            return None
        rows = [[Field(text, cover(text, place))] for text in lines_of(standard_input) if text]
        separator = line.text("-C", "--colsep")
        if separator is not None:
            rows = [_columns(row[0], separator) for row in rows]
        return rows
    for item in sources:
        word = item.known or ""
        if word in _SOURCES:
            if _SOURCES[word]:
                return None
            linked = linked or word.endswith("+")
            lists.append([])
        elif item.many:
            return None
        else:
            lists[-1].append(item)
    if linked:
        longest = max((len(items) for items in lists), default=0)
        return [[items[n % len(items)] for items in lists if items] for n in range(min(longest, MAX_STARTS + 1))]
    product = itertools.islice(itertools.product(*lists), MAX_STARTS + 1)
    return [list(row) for row in product]


def _columns(item: Field, separator: str) -> list[Field]:
    plain = item.known or ""
    try:
        parts = re.split(separator, plain) if len(separator) < 20 else [plain]
    except re.error:
        parts = [plain]
    return [Field(literal(part, item.place), item.place) for part in parts]


def _row_words(template: Sequence[Field], row: Sequence[Field], number: int, place: Place) -> tuple[Field, ...]:
    """Return the words of one command of parallel: the template with `{}`, `{1}`, `{#}` replaced."""
    whole, count = join_words(row, place), literal(str(number), place)
    values: dict[str, Text] = {"{}": whole, "{#}": count, "{%}": count}
    values.update({f"{{{at}}}": item.text for at, item in enumerate(row, start=1)})
    if not any(_PLACEHOLDER.search(piece.text) for item in template for piece in item.text if isinstance(piece, Lit)):
        return (*template, Field(whole, cover(whole, place)))
    return tuple(Field(_substitute(item.text, _PLACEHOLDER, values), item.place, item.many) for item in template)


_MAX_CHARACTERS = 100_000
_MAX_FILES = 100
#: Programs that write the file named last.
_COPYING = frozenset(("cp", "mv", "ln", "scp", "rsync", "install"))
#: Options of other programs that are followed by the path of their output.
_OUTPUT_OPTIONS = frozenset(
    ("-o", "--out", "--output", "--output-file", "--output_file", "--hostfile-out", "--save", "--save-path", "--write")
)


def standard_input(machine: Machine, state: State, document: Document, redirects: Sequence[Node]) -> Text | None:
    """Return the text a command reads from a here-document, a here-string, a file or a pipe; None when it is
    unknown.
    """
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
    """Return the command that `find ... -name FILE -exec` runs, with the file; any other command as it is."""
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
    """Return the files that `configs/*`, `configs/.` or `configs/` name; any other path itself."""
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
    """Return the paths that a command writes without redirection: targets of `cp` and `tee`, and the path after
    `--out`.
    """
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
    # What is appended to a user's file leaves its text there.
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
    """Return the text of a `<<-` here-document: the tabs that begin its lines are removed."""
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
    """Return the text that `echo` or `printf` writes; None when the format is not understood."""
    if words[0] == "printf":
        plain = program_output.printf(words[1:]) if all(item.known is not None for item in fields) else None
        return None if plain is None else literal(plain, fields[0].place)
    rest = list(fields[1:])
    end, escapes = "\n", False
    while rest and rest[0].known in ("-n", "-e", "-ne", "-en"):
        flag = rest.pop(0).known or ""
        end = "" if "n" in flag else end
        escapes = escapes or "e" in flag
    pieces = [
        Lit(piece.text.replace("\\n", "\n").replace("\\t", "\t"), piece.place, False)
        if escapes and isinstance(piece, Lit) and "\\" in piece.text
        else piece
        for piece in join_words(rest, fields[0].place)
    ]
    return (*pieces, *literal(end, fields[0].place))


def _destination(
    machine: Machine, state: State, document: Document, redirects: Sequence[Node]
) -> tuple[Text | None, bool]:
    """Return the file that standard output goes to, and whether it is appended to."""
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
