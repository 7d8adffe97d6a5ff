"""A small editor around the client of pytest-lsp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from lsprotocol import types
from pytest_lsp import LanguageClient

DEADLINE_S = 60.0


class Editor:
    """Open files of one workspace.

    Args:
        client: connected to the server.
        root: the workspace.
    """

    def __init__(self, client: LanguageClient, root: Path) -> None:
        self.client = client
        self.root = root
        self._versions: dict[str, int] = {}

    def uri(self, path: str) -> str:
        """The URI of a file of the workspace."""
        return (self.root / path).as_uri()

    async def open(self, path: str, text: str | None = None, language: str = "plaintext") -> str:
        """Open a file, which need not exist; return its text."""
        shown = (self.root / path).read_text() if text is None else text
        self._versions[path] = 1
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(self.uri(path), language, 1, shown))
        )
        return shown

    def type(self, path: str, text: str) -> None:
        """Replace the text of an open file without saving it."""
        self._versions[path] += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._versions[path], self.uri(path)),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    def close(self, *paths: str) -> None:
        """Close files."""
        for path in paths:
            self.client.text_document_did_close(
                types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(self.uri(path)))
            )

    def shown(self, path: str) -> Sequence[types.Diagnostic]:
        """The diagnostics of a file that the server sent last."""
        return self.client.diagnostics.get(self.uri(path), ())

    def ids(self, path: str) -> set[str]:
        """The rules of these diagnostics."""
        return {str(one.code) for one in self.shown(path) if one.code}

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for diagnostics until something holds."""

        async def wait() -> None:
            while not reached():
                await self.client.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)

        await asyncio.wait_for(wait(), DEADLINE_S)

    async def hover(self, path: str, text: str, word: str) -> str:
        """What is shown for the first occurrence of a word in a text."""
        found = await self.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(self.uri(path)), position(text, word))
        )
        return found.contents.value if found is not None and isinstance(found.contents, types.MarkupContent) else ""

    async def definitions(self, path: str, text: str, word: str) -> list[tuple[str, int]]:
        """The files and lines (from 1) that a jump from a word leads to."""
        found = await self.client.text_document_definition_async(
            types.DefinitionParams(types.TextDocumentIdentifier(self.uri(path)), position(text, word))
        )
        return self._places(found)

    async def references(self, path: str, text: str, word: str) -> list[tuple[str, int]]:
        """The files and lines (from 1) that say something about the same."""
        found = await self.client.text_document_references_async(
            types.ReferenceParams(
                types.ReferenceContext(True), types.TextDocumentIdentifier(self.uri(path)), position(text, word)
            )
        )
        return self._places(found)

    async def actions(
        self, path: str, text: str, word: str, only: list[str] | None = None
    ) -> dict[str, types.CodeAction]:
        """The actions at a word, by title."""
        at = position(text, word)
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(self.uri(path)),
                types.Range(at, at),
                types.CodeActionContext([], only=only),
            )
        )
        return {one.title: one for one in found or () if isinstance(one, types.CodeAction)}

    def applied(self, path: str, text: str, action: types.CodeAction) -> str:
        """The text of a file after an action that edits only it."""
        assert action.edit is not None and action.edit.document_changes is not None
        (change,) = action.edit.document_changes
        assert isinstance(change, types.TextDocumentEdit) and change.text_document.uri == self.uri(path)
        assert change.text_document.version == self._versions[path]
        lines = text.splitlines(keepends=True)
        for edit in sorted(change.edits, key=lambda one: (one.range.start.line, one.range.start.character))[::-1]:
            assert isinstance(edit, types.TextEdit)
            start, end = edit.range.start, edit.range.end
            at = sum(map(len, lines[: start.line])) + start.character
            to = sum(map(len, lines[: end.line])) + end.character
            text = text[:at] + edit.new_text + text[to:]
            lines = text.splitlines(keepends=True)
        return text

    def _places(self, found: object) -> list[tuple[str, int]]:
        places: list[tuple[str, int]] = []
        for one in found if isinstance(found, list | tuple) else ():
            assert isinstance(one, types.Location)
            path = one.uri.removeprefix(self.root.as_uri() + "/")
            places.append((path, one.range.start.line + 1))
        return places


def position(text: str, word: str) -> types.Position:
    """Where a word begins, in units of UTF-16."""
    before = text[: text.index(word)]
    line = before.rpartition("\n")[2]
    return types.Position(before.count("\n"), len(line.encode("utf-16-le")) // 2)
