"""`$( ... )`: folded where it follows from constants and files, otherwise named for what it stands for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight.sources.shell import arithmetic, expand, files, filters
from preflight.sources.shell.document import Document, Hole, Lit, Place, Text
from preflight.sources.shell.machine import DEEPEST, Machine
from preflight.sources.shell.state import Positional, State
from preflight.sources.shell.symbols import Symbol
from preflight.sources.shell.text import Field, hole, known, literal, mapped, options, reasons, strings

if TYPE_CHECKING:
    from tree_sitter import Node

_LONGEST_SEQUENCE = 2_000
_ADDRESS_FLAGS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))
_RESOLVERS = frozenset(("getent", "host", "dig", "nslookup", "ping"))


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
        found = reader.sequence(
            state.copy(), [child for child in node.named_children if child.type != "comment"]
        )
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

    def symbol(self, symbol: Symbol, *, many: bool = False) -> Text:
        """One of the recognised run-time values."""
        return hole(symbol.value, self.place, self.spelling, many=many)

    def said(self, value: str) -> Text:
        """A computed output."""
        return literal(value, self.place, self.spelling)

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
        if name in ("hostname", "uname"):
            return self.hostname(state, name, arguments)
        if name == "srun":
            return self.srun(state, arguments)
        simple = _SIMPLE.get(name)
        if simple is not None:
            return self.symbol(simple)
        if name in ("dirname", "basename", "realpath", "readlink", "cygpath"):
            return self.path(name, arguments)
        if name in ("getent", "host", "dig", "nslookup", "ping"):
            return self.resolver(arguments)
        words = strings(arguments)
        if name == "scontrol":
            if any(item.known in ("hostname", "hostnames") for item in arguments):
                return self.symbol(Symbol.ALLOCATED_HOSTS, many=True)
            return None
        if name in ("nodeset", "hostlist", "expand_hostlist", "python-hostlist"):
            return self.symbol(Symbol.ALLOCATED_HOSTS, many=True)
        if name in ("ip", "ifconfig"):
            return self.symbol(Symbol.FIRST_ALLOCATED_ADDRESS if state.batch else Symbol.THIS_ADDRESS)
        if name == "nvidia-smi":
            if any("count" in (item.known or "") for item in arguments):
                return self.symbol(Symbol.GPU_COUNT)
            return self.unknown("nvidia-smi")
        if name == "expr":
            return self.expression(state, arguments)
        if words is None:
            return None
        if name == "printf":
            formatted = filters.printf(words)
            return None if formatted is None else self.said(formatted)
        if name == "seq":
            return self.seq(words)
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

    def hostname(self, state: State, name: str, arguments: Sequence[Field]) -> Text | None:
        flags = {item.known for item in arguments}
        if name == "uname" and "-n" not in flags:
            return None
        address = bool(flags & _ADDRESS_FLAGS)
        if state.batch:
            return self.symbol(Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST)
        return self.symbol(Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST)

    def srun(self, state: State, arguments: Sequence[Field]) -> Text | None:
        """`srun -N1 -n1 -w "$head" hostname --ip-address`: the head's name or address."""
        at = next(
            (n for n, item in enumerate(arguments) if (item.known or "").rpartition("/")[2] == "hostname"),
            None,
        )
        options_text = " ".join(
            reasons(item.text) if item.known is None else item.known for item in arguments[:at]
        )
        one = re.search(r"(^| )(-w|--nodelist|-N ?1\b|--nodes[= ]1\b|-n ?1\b|--ntasks[= ]1\b)", options_text)
        text = " ".join(item.known or "" for item in arguments)
        if at is None:
            if one and re.search(r"hostname -[iI]|ip (-|a|r)|ifconfig", text):
                return self.symbol(Symbol.FIRST_ALLOCATED_ADDRESS)
            if one and re.search(r"\bhostname\b", text):
                return self.symbol(Symbol.FIRST_ALLOCATED_HOST)
            return None
        address = any(item.known in _ADDRESS_FLAGS for item in arguments[at:])
        if Symbol.THIS_HOST.value in options_text:
            return self.symbol(Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST)
        if Symbol.OTHER_ALLOCATED_HOST.value in options_text:
            return self.symbol(Symbol.OTHER_ALLOCATED_HOST)
        if one:
            return self.symbol(Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST)
        return self.symbol(Symbol.ALLOCATED_HOSTS, many=True)

    def resolver(self, arguments: Sequence[Field]) -> Text | None:
        for item in arguments:
            why = reasons(item.text) if item.known is None else ""
            if why in (Symbol.FIRST_ALLOCATED_HOST.value, Symbol.FIRST_ALLOCATED_ADDRESS.value):
                return self.symbol(Symbol.FIRST_ALLOCATED_ADDRESS)
            if why in (Symbol.THIS_HOST.value, Symbol.THIS_ADDRESS.value):
                return self.symbol(Symbol.THIS_ADDRESS)
        return None

    def path(self, name: str, arguments: Sequence[Field]) -> Text | None:
        rest = [item for item in arguments if item.known is None or not item.known.startswith("-")]
        if not rest:
            return None
        suffix = rest[1].known if name == "basename" and len(rest) > 1 else ""
        function: Callable[[str], str]
        if name == "dirname":
            function = _dirname
        elif name == "basename":

            def function(item: str) -> str:
                base = posixpath.basename(item.rstrip("/"))
                return base.removesuffix(suffix or "") or base

        else:
            function = posixpath.normpath
        return mapped(rest[0].text, function, self.place, self.spelling)

    def expression(self, state: State, arguments: Sequence[Field]) -> Text | None:
        pieces: list[Text] = []
        for item in arguments:
            if item.known in (":", "substr", "index", "match", "length"):
                return None
            pieces += [item.text, literal(" ", self.place, " ")]
        inner = tuple(piece for text in pieces for piece in text)
        return arithmetic.of_text(self.machine, state, inner, self.place, self.spelling)

    def seq(self, words: Sequence[str]) -> Text | None:
        separator = "\n"
        rest = list(words)
        if rest[:1] == ["-s"] and len(rest) > 1:
            separator, rest = rest[1], rest[2:]
        try:
            numbers = [int(word) for word in rest]
        except ValueError:
            return None
        if not 1 <= len(numbers) <= 3:
            return None
        first = numbers[0] if len(numbers) > 1 else 1
        step = numbers[1] if len(numbers) == 3 else 1
        last = numbers[-1]
        if step == 0 or abs(last - first) // abs(step) > _LONGEST_SEQUENCE:
            return None
        turns = range(first, last + (1 if step > 0 else -1), step)
        return self.said(separator.join(str(turn) for turn in turns) + "\n")


def _dirname(item: str) -> str:
    return posixpath.dirname(item.rstrip("/")) or ("/" if item.startswith("/") else ".")


def _words(node: Node) -> list[Node]:
    return [
        child
        for index, child in enumerate(node.children)
        if node.field_name_for_child(index) in ("name", "argument") and child.is_named
    ]


_SIMPLE = {
    "nproc": Symbol.CORE_COUNT,
    "shuf": Symbol.RANDOM_NUMBER,
    "date": Symbol.TIME,
    "whoami": Symbol.USER,
}
