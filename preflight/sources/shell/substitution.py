"""`$( ... )`: folded where it follows from constants and files, otherwise named for what it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.job.symbols import Symbol
from preflight.sources.shell import arithmetic, expand, files, filters, hosts, printing
from preflight.sources.shell.document import Document, Hole, Lit, Place, Text
from preflight.sources.shell.machine import DEEPEST, Machine
from preflight.sources.shell.state import Positional, State
from preflight.sources.shell.text import Field, hole, known, literal, mapped, options, reasons, strings

if TYPE_CHECKING:
    from tree_sitter import Node


def output(machine: Machine, state: State, document: Document, node: Node) -> Text:
    """What a command substitution gives, without its last newlines."""
    start = document.start_of(node)
    place = document.place(start, node.end_byte)
    spelling = document.text[start : node.end_byte]
    reader = _Reader(machine, document, place, spelling)
    if machine.depth >= DEEPEST:
        return hole("it is nested too deeply to follow", place, spelling)
    machine.depth += 1
    try:
        found = reader.sequence(state.copy(), [child for child in node.named_children if child.type != "comment"])
    finally:
        machine.depth -= 1
    if found is None:
        return reader.unknown(spelling.strip("$()` \t\n"))
    if options(found) is not None and any(not isinstance(piece, Lit) for piece in found):
        return mapped(found, lambda item: item.rstrip("\n"), place, spelling)
    return _stripped(found)


def _stripped(text: Text) -> Text:
    pieces = list(text)
    while pieces:
        last = pieces[-1]
        if not isinstance(last, Lit):
            break
        cut = last.text.rstrip("\n")
        if cut == last.text:
            break
        pieces.pop()
        if cut:
            pieces.append(last.cut(0, len(cut)))
            break
    return tuple(pieces)


class _Reader:
    def __init__(self, machine: Machine, document: Document, place: Place, spelling: str) -> None:
        self.machine = machine
        self.document = document
        self.place = place
        self.spelling = spelling

    def unknown(self, command: str) -> Text:
        """The output of something nobody can fold."""
        shown = " ".join(command.split())
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return hole(f"the output of `{shown}`", self.place, self.spelling, many=True)

    def symbol(self, symbol: Symbol) -> Text:
        """One of the recognised run-time values; the hosts of an allocation are several words."""
        return hole(symbol.value, self.place, self.spelling, many=symbol is Symbol.ALLOCATED_HOSTS)

    def said(self, value: str) -> Text:
        """A computed output."""
        return literal(value, self.place, self.spelling)

    def printed(self, value: str | None) -> Text | None:
        """A computed output, where it could be computed."""
        return None if value is None else self.said(value)

    def sequence(self, state: State, nodes: Sequence[Node]) -> Text | None:
        """The output of statements one after the other."""
        pieces: list[Text] = []
        for node in nodes:
            found = self.statement(state, node)
            if found is None:
                return None
            if found:
                if pieces and not (known(pieces[-1]) or "\n").endswith("\n"):
                    pieces.append(literal("\n", self.place, ""))
                pieces.append(found)
        return tuple(piece for text in pieces for piece in text)

    def statement(self, state: State, node: Node) -> Text | None:
        """The output of one statement; None when it is not known at all."""
        self.machine.step()
        kind = node.type
        if kind == "command":
            return self.command(state, node)
        if kind == "pipeline":
            return self.pipeline(state, node.named_children)
        if kind == "list":
            return self.list(state, node)
        if kind in ("compound_statement", "subshell", "program"):
            return self.sequence(state, node.named_children)
        if kind == "redirected_statement":
            return self.redirected(state, node)
        if kind == "file_redirect":
            return self.file(state, node)
        if kind in ("variable_assignment", "declaration_command", "variable_assignments"):
            self.effect(state, node)
            return ()
        return None

    def effect(self, state: State, node: Node) -> None:
        """Follow a statement for what it does to the shell, recording no command."""
        from preflight.sources.shell import control

        self.machine.quiet += 1
        try:
            control.run(self.machine, state, self.document, node)
        finally:
            self.machine.quiet -= 1

    def list(self, state: State, node: Node) -> Text | None:
        left, right = node.named_children[0], node.named_children[-1]
        sign = next((child.type for child in node.children if not child.is_named), "")
        first = self.statement(state, left)
        if first is None or sign == "||":
            return first
        second = self.statement(state, right)
        return None if second is None else first + second

    def redirected(self, state: State, node: Node) -> Text | None:
        body = node.child_by_field_name("body")
        source: Text | None = None
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "file_redirect" and self.document.of(redirect).lstrip().startswith("<"):
                source = self.file(state, redirect)
            elif redirect.type == "herestring_redirect" and redirect.named_children:
                source = expand.text(self.machine, state, self.document, redirect.named_children[-1])
            elif redirect.type == "file_redirect":
                raw = self.document.of(redirect).lstrip()
                if not raw.startswith(("2", "&")) and "/dev/stderr" not in raw:
                    return ()
        if body is None:
            return source
        if source is not None and body.type == "command":
            fields = expand.fields(self.machine, state, self.document, _words(body))
            return self.filter(state, source, fields)
        return self.statement(state, body)

    def file(self, state: State, node: Node) -> Text | None:
        """The content of a file that is read from."""
        destination = node.child_by_field_name("destination")
        if destination is None:
            return None
        path = expand.plain(self.machine, state, self.document, destination)
        return None if path is None else self.content(state, path)

    def content(self, state: State, path: str) -> Text | None:
        """A file of the tree as text."""
        found = files.read(self.machine, state, path)
        if found is None:
            return None
        target = files.locate(self.machine, state, path)
        if target is not None:
            self.machine.refer(target, "data", self.place)
        return self.said(found.text) if len(found.text) < 100_000 else None

    def pipeline(self, state: State, nodes: Sequence[Node]) -> Text | None:
        commands = [node for node in nodes if node.type != "comment"]
        if not commands:
            return None
        current = self.statement(state, commands[0])
        if current is None:
            current = self.unknown(self.document.of(commands[0]))
        for node in commands[1:]:
            body = node
            if node.type == "redirected_statement":
                body = node.child_by_field_name("body") or node
            if body.type != "command":
                return None
            fields = expand.fields(self.machine, state, self.document, _words(body))
            found = self.filter(state, current, fields)
            if found is None:
                return None
            current = found
        return current

    def filter(self, state: State, source: Text, fields: Sequence[Field]) -> Text | None:
        """What a filter makes of its input."""
        words = strings(fields)
        if not words:
            return None
        plain = options(source)
        if plain is not None:
            if words[0] == "bc":
                return arithmetic.of_text(self.machine, state, _stripped(source), self.place, self.spelling)
            function = filters.known_filter(words)
            return None if function is None else mapped(source, function, self.place, self.spelling)
        return self.symbolic(state, reasons(source), words)

    def symbolic(self, state: State, why: str, words: Sequence[str]) -> Text | None:
        """What a filter makes of an input that only run time knows."""
        from preflight.sources.shell.lookup import allocated_nodes

        if words[0] == "wc" and why == Symbol.ALLOCATED_HOSTS.value:
            return allocated_nodes(self.machine, state, self.place, self.spelling)
        if words[0] in ("wc", "grep") and ("nvidia-smi" in why or "/dev/nvidia" in why or "CUDA" in why):
            return self.symbol(Symbol.GPU_COUNT)
        result = filters.symbol_after(why, words)
        if result is None:
            return None
        return hole(result, self.place, self.spelling, many=result == Symbol.ALLOCATED_HOSTS.value)

    def command(self, state: State, node: Node) -> Text | None:
        """The output of a simple command."""
        fields = expand.fields(self.machine, state, self.document, _words(node))
        if not fields:
            return ()
        name = fields[0].known
        if name is None:
            return None
        arguments = fields[1:]
        function = state.functions.get(name)
        if function is not None:
            return self.function(state, name, arguments, *function)
        name = name.rpartition("/")[2]
        if name in ("echo",):
            return self.echo(arguments)
        if name in ("cd", "pushd", "export", "set", "module", "source", ".", "true", ":", "shift"):
            self.effect(state, node)
            return ()
        if name == "pwd":
            if state.directory is None:
                return hole("the directory it is started in", self.place, self.spelling)
            return self.said(state.directory or ".")
        if name in hosts.PROGRAMS:
            asked = hosts.asked_for(name, arguments, batch=state.batch)
            return None if asked is None else self.symbol(asked)
        simple = _SIMPLE.get(name)
        if simple is not None:
            return self.symbol(simple)
        if name in printing.PATHS:
            return self.path(name, arguments)
        if name == "nvidia-smi":
            if any("count" in (item.known or "") for item in arguments):
                return self.symbol(Symbol.GPU_COUNT)
            return self.unknown("nvidia-smi")
        if name == "expr":
            return self.expression(state, arguments)
        if name in _READERS and arguments and reasons(arguments[-1].text) == Symbol.NODE_FILE.value:
            lines = self.symbol(Symbol.NODE_FILE_LINES)
            return lines if name == "cat" else self.filter(state, lines, [fields[0], *arguments[:-1]])
        words = strings(arguments)
        if words is None:
            return None
        if name == "printf":
            return self.printed(printing.printf(words))
        if name == "seq":
            return self.printed(printing.seq(words))
        if name == "cat" and len(words) == 1 and not words[0].startswith("-"):
            return self.content(state, words[0])
        if name in ("wc", "head", "tail") and words and not words[-1].startswith("-"):
            content = self.content(state, words[-1])
            return None if content is None else self.filter(state, content, [fields[0], *arguments[:-1]])
        return None

    def function(
        self, state: State, name: str, arguments: Sequence[Field], document: Document, body: Node
    ) -> Text | None:
        """What a function of the script prints."""
        if self.machine.calling.count(name) >= 2 or self.machine.depth >= DEEPEST - 2:
            return None
        inside = state.copy()
        inside.positional = Positional(tuple(arguments), name)
        inside.locals.append({})
        self.machine.calling.append(name)
        self.machine.depth += 1
        outer, self.document = self.document, document
        try:
            return self.sequence(inside, [each for each in body.named_children if each.type != "comment"])
        finally:
            self.document = outer
            self.machine.depth -= 1
            self.machine.calling.pop()

    def echo(self, arguments: Sequence[Field]) -> Text:
        rest = list(arguments)
        while rest and rest[0].known in ("-n", "-e", "-ne", "-en", "-E"):
            rest.pop(0)
        pieces: list[Text] = []
        for number, item in enumerate(rest):
            if number:
                pieces.append(literal(" ", self.place, " "))
            text = item.text
            if item.many and len(text) == 1 and isinstance(text[0], Hole):
                text = hole(text[0].why, text[0].place, text[0].spelling, many=True)
            pieces.append(text)
        if not any(item.known in ("-n", "-ne", "-en") for item in arguments[:2]):
            pieces.append(literal("\n", self.place, ""))
        return tuple(piece for text in pieces for piece in text)

    def path(self, name: str, arguments: Sequence[Field]) -> Text | None:
        """A path that is given, as `dirname` and its like change it."""
        rest = [item for item in arguments if item.known is None or not item.known.startswith("-")]
        if not rest:
            return None
        suffix = rest[1].known if name == "basename" and len(rest) > 1 else None
        return mapped(rest[0].text, printing.path_change(name, suffix or ""), self.place, self.spelling)

    def expression(self, state: State, arguments: Sequence[Field]) -> Text | None:
        pieces: list[Text] = []
        for item in arguments:
            if item.known in (":", "substr", "index", "match", "length"):
                return None
            pieces += [item.text, literal(" ", self.place, " ")]
        inner = tuple(piece for text in pieces for piece in text)
        return arithmetic.of_text(self.machine, state, inner, self.place, self.spelling)


def _words(node: Node) -> list[Node]:
    return [
        child
        for index, child in enumerate(node.children)
        if node.field_name_for_child(index) in ("name", "argument") and child.is_named
    ]


#: Programs that read the file which is named last.
_READERS = frozenset(("cat", "head", "tail", "sort", "uniq", "awk", "sed", "cut"))
_SIMPLE = {
    "nproc": Symbol.CORE_COUNT,
    "shuf": Symbol.RANDOM_NUMBER,
    "date": Symbol.TIME,
    "whoami": Symbol.USER,
}
