"""Command lines in Markdown documents, such as a README that says how to start the training.

Only shell code is read: fenced and indented code blocks, and code within a line, if it starts ranks of a program that
exists. Placeholders (`<ip>`, `...`, `/path/to/data`, `your_host`) are unknown. Markdown is parsed by markdown-it-py
(CommonMark).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.budget import note_skipped
from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import Command, Reading, SourceFile, Tree
from preflight.sources.secrets import secrets_of, without_secrets
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Place, Text
from preflight.sources.shell.words import replace_spans

_NAME = re.compile(r".*\.(?:md|markdown)", re.IGNORECASE)
#: Languages of fenced blocks of shell code.
_SHELL = frozenset(("", "bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "text", "cmd"))
#: Words that start ranks, or a program that may start its own.
_LAUNCHES = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate launch|paddle\.distributed\.launch|fleetrun"
    r"|horovodrun|mpirun|mpiexec|\bsrun\b|colossalai run|\bpython[\d.]*\b[^\n]*\.py\b"
)
#: A program in such a line. A document that names one which does not exist describes another project.
_PROGRAM = re.compile(r"(?<![\w./-])(?:\./)?((?:[\w.-]+/){0,8}[\w.-]+\.py)(?![\w/])")
_PROMPT = re.compile(r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[$%!>❯➜][ \t]*)+(?=\w)")
#: Lines that later commands of the block depend on.
_PREPARES = re.compile(r"export[ \t]|[A-Za-z_]\w*=\S*\s*$|cd[ \t]")
_CHANGES_FOLDER = re.compile(r"[ \t]*cd[ \t]+([\w./-]+)[ \t]*$")
_COMPOUND = re.compile(r"\b(?:for|while|until|if|case|function)[ \t]|<<|\(\)[ \t]*\{")
_PLACEHOLDER = re.compile(
    r"<[^<>\n]{1,100}>|\[[A-Za-z][^\[\]\n]{0,100}\]|\.{3,}|…|(?<![\w.-])/?path/to(?:/[\w./-]*)?"
    r"|\{\{?[^{}\n]{1,100}\}\}?|(?i:(?<![a-z])your[_-][\w.-]+|\bx{2,}(?:\.x{1,3}){0,3}\b)"
    # A number or an address given as a word: `--nproc_per_node=ngpus`, `--master_addr MASTER`.
    r"|--?[\w-]*(?:node|proc|rank|gpu|port|addr|endpoint|worker|trainer|server|\bnp\b)[\w-]*[ =]"
    r"((?!(?:auto|gpu|cpu|localhost)\b)[A-Za-z_]+)(?![\w./:])"
    # The name of the option itself: `--world_size=WORLD_SIZE`.
    r"|(?i:--?(?P<option>[a-z]\w*)[ =](?P<value>(?P=option))(?!\w))"
)
_MAX_BLOCKS = 100
#: Longer blocks and documents are logs.
_MAX_BLOCK = 16_384
_MAX_DOCUMENT = 1 << 19


class DocumentsSource:
    """Reads the launches in one Markdown document."""

    name = "document"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is Markdown, regardless of what it quotes."""
        return _NAME.fullmatch(posixpath.basename(file.path)) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the claims of the file's launches; a block without one is not read."""
        from preflight.sources.launchers.launch_lines import read_commands
        from preflight.sources.shell.evaluator import evaluate_code

        if _LAUNCHES.search(file.text) is None:
            return Reading()
        if len(file.text) > _MAX_DOCUMENT:
            note_skipped(f"{file.path} was not read: it has more than {_MAX_DOCUMENT} characters")
            return Reading()
        text = FileText(file.path, file.text)
        commands: list[Command] = []
        result = Reading()
        for number, (start, end) in enumerate(_blocks(text)):
            if number == _MAX_BLOCKS:
                note_skipped(f"only the first {_MAX_BLOCKS} blocks of {file.path} were read")
                break
            for code in _launching_code(text, start, end, file, tree):
                script = evaluate_code(file, tree, code, {}, Place(text, start, end))
                if read_commands(script.commands, {}, tree, batch=False).launches:
                    commands.extend(script.commands)
                    result = result.joined(Reading(references=script.references, notes=script.notes))
        read = read_commands(commands, {}, tree, batch=False)
        reading = replace(result.joined(read), numbers=read.numbers)
        return without_secrets(reading, secrets_of(commands))


def _blocks(text: FileText) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each block of shell code, and of each code span that starts ranks."""
    from markdown_it import MarkdownIt

    starts = [0, *(match.end() for match in re.finditer("\n", text.text)), len(text.text)]
    for token in MarkdownIt("commonmark").parse(text.text):
        if token.map is None:
            continue
        line, end = token.map
        first, last = starts[line], starts[min(end, len(starts) - 1)]
        if token.type == "code_block":
            yield first, last
        elif token.type == "fence" and (token.info.split() or [""])[0].lower().strip("{}.") in _SHELL:
            lines = token.content.rstrip("\n").count("\n") + 1
            yield starts[line + 1], starts[min(line + 1 + lines, len(starts) - 1)]
        elif token.type == "inline":
            at = first
            for span in token.children or ():
                if span.type == "code_inline" and _LAUNCHES.match(span.content):
                    at = max(text.text.find(span.content, at, last), at)
                    yield at, at + len(span.content)


def _launching_code(text: FileText, start: int, end: int, file: SourceFile, tree: Tree) -> Iterator[Text]:
    """Yield each command line of a block that may start ranks, preceded by the lines that prepare it.

    If a line begins with a prompt, the lines without one are output. A block with a loop or a function is code as a
    whole.
    """
    block = text.text[start:end]
    if not _LAUNCHES.search(block):
        return
    if len(block) > _MAX_BLOCK:
        note_skipped(f"a block of {file.path} was not read: it has more than {_MAX_BLOCK} characters")
        return
    if _COMPOUND.search(block):
        if _exists(block, file.path, tree):
            yield _with_holes((Lit(block, Place(text, start, end)),))
        return
    lines = list(_joined_lines(text.text, start, end))
    prompts = [_PROMPT.match(text.text, *line) for line in lines]
    if any(prompts):
        lines = [(prompt.end(), line[1]) for prompt, line in zip(prompts, lines, strict=True) if prompt]
    preparation: list[Lit] = []
    where = file.path
    for at, stop in lines:
        line = text.text[at:stop]
        code = Lit(f"{line}\n", Place(text, at, stop))
        if _PREPARES.match(line.lstrip()):
            preparation.append(code)
            folder = _CHANGES_FOLDER.match(line)
            inner = posixpath.normpath(posixpath.join(posixpath.dirname(where), folder[1])) if folder else ""
            # Any other folder is the project's own, by the name of its clone.
            where = posixpath.join(inner, "_") if inner and tree.names(inner) else where
        elif _LAUNCHES.search(line) and not line.lstrip().startswith("#") and _exists(line, where, tree):
            yield _with_holes((*preparation, code))


def _exists(line: str, where: str, tree: Tree) -> bool:
    found = (tree.resolve(name, relative_to=posixpath.normpath(where)) for name in _PROGRAM.findall(line))
    return any(path is not None and isinstance(tree.read(path), SourceFile) for path in found)


def _joined_lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line, including the lines that continue it after a backslash."""
    at = start
    for line in text[start:end].splitlines(keepends=True):
        stop = at + len(line)
        if not line.rstrip().endswith("\\"):
            yield start, stop - (len(line) - len(line.rstrip("\r\n")))
            start = stop
        at = stop
    if start < end:
        yield start, end


def _with_holes(code: Text) -> Text:
    return replace_spans(
        code,
        lambda text: (match.span(match.lastindex or 0) for match in _PLACEHOLDER.finditer(text)),
        lambda found: [Hole(f"{found.text} is a placeholder", found.place, found.text)],
    )
