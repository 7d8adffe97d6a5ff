"""The server: messages of an editor in, diagnostics and answers out.

The loop of asyncio reads messages; everything that reads or judges files runs in one worker thread. A change interrupts
the reading of a whole folder, and a newer change makes the result of an older one stale: it is not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from lsprotocol import types
from pygls.io_ import run_async
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from preflight import __version__
from preflight._util.budget import BudgetExceeded
from preflight._util.sanitize import clean
from preflight._util.usage_error import UsageError
from preflight.commands.plan.compose import plan_of
from preflight.config.resolve import Choices
from preflight.plugins import registry
from preflight.services.language_server import diagnostics as word_lookup
from preflight.services.language_server.diagnostics import KINDS, RulePages, actions, diagnostics_of, hover_text
from preflight.services.language_server.folder import Folder, Superseded, Watch, closest, path_of, uri_of

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Open files that are judged with their unsaved texts; further ones are ignored.
MAX_OPEN_FILES = 200
#: Delay in seconds after the last keystroke before the job is judged.
TYPING_PAUSE_S = 0.04
#: Delay in seconds after the last change before a whole folder is read in the background.
IDLE_PAUSE_S = 0.3
#: Time limits in seconds for a run over a job, a run over a folder, and the response to a request.
JOB_DEADLINE_S, FOLDER_DEADLINE_S, ANSWER_DEADLINE_S = 20.0, 120.0, 10.0
#: First bytes of every message, whichever header comes first.
_FIRST_BYTES = b"Content-"
#: Files that determine which files of a folder are read.
_DECIDING = frozenset((".gitignore", "preflight.toml", "pyproject.toml"))


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is open in the editor: its URI as the editor writes it, its path, version and content."""

    uri: str
    path: Path
    version: int | None
    content: bytes


class Server(LanguageServer):
    """The language server of preflight; a workspace cannot change the command line's `choices`."""

    def __init__(self, choices: Choices) -> None:
        # Full texts: an editor ends lines at other characters than Python does, so that its ranges may not fit here.
        super().__init__("preflight", __version__, types.TextDocumentSyncKind.Full)
        self._choices = choices
        self._worker = ThreadPoolExecutor(1, "judge")
        self._open: dict[str, OpenFile] = {}
        self._folders: dict[Path, Folder] = {}
        self._touched: set[Path] = set()
        self._published: dict[str, list[types.Diagnostic]] = {}
        self._pages: RulePages | None = None
        self._shown_texts: set[str] = set()
        #: Grows with every change; a result of an older one is stale.
        self._generation = 0
        self._judged = 0
        self._changed_at = 0.0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._stop_folder = threading.Event()
        self._stop_job = threading.Event()
        self._loop_task: asyncio.Task[None] | None = None

    # --- notifications from the editor ---

    def start_judging(self) -> None:
        """Start judging in the background; called in the event loop, when the editor is ready."""
        if self._loop_task is None:
            self._loop_task = asyncio.get_running_loop().create_task(self._judge_forever())
            # The first finding must not wait until every rule has been imported.
            self._worker.submit(registry.rules)
            self._worker.submit(registry.sources)

    def set_text(self, uri: str, version: int | None) -> None:
        """Use the editor's present text of a file."""
        path = path_of(uri)
        document = self.workspace.text_documents.get(unquote(uri))
        if path is None or document is None:
            return
        if uri not in self._open and len(self._open) >= MAX_OPEN_FILES:
            log.info("more than %d files are open; %s is checked as last saved", MAX_OPEN_FILES, path)
            return
        # Only a document that is not open has no source of its own, and would be read from disk.
        self._open[uri] = OpenFile(uri, path, version, document.source.encode("utf-8", "replace"))
        self._change()

    def close_text(self, uri: str) -> None:
        """Drop the text of a closed file, so that the file is read from disk."""
        if self._open.pop(uri, None) is not None:
            self._change()

    def touch(self, uri: str, *, exists: bool) -> None:
        """Handle a file that was changed, created or deleted on disk."""
        path = path_of(uri)
        if path is None:
            return
        folder = self._folders.get(self._root_of(path)[0])
        if folder is None:
            # Its configuration could not be used.
            if path.name in _DECIDING:
                self._change()
            return
        known = bool(folder.jobs_with(folder.relative(path)))
        if path.name in _DECIDING or not (known and exists):
            folder.is_complete = False
        elif not any(file.path == path for file in self._open.values()):
            self._touched.add(path)
        else:
            return
        self._change()

    async def settled(self) -> None:
        """Wait until everything that the editor has sent so far is judged."""
        if self._loop_task is not None:
            await self._idle.wait()

    def shutdown(self) -> None:
        if self._loop_task is not None:
            self._loop_task.cancel()
            self._loop_task = None
        self._stop_folder.set()
        self._stop_job.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        super().shutdown()  # type: ignore[no-untyped-call]

    def forget_folders(self) -> None:
        """Handle a change of the editor's folders."""
        self._folders.clear()
        self._change()

    def _change(self) -> None:
        self._generation += 1
        self._idle.clear()
        self._changed_at = time.monotonic()
        self._stop_folder.set()
        self._stop_job.set()
        self._wake.set()

    # --- judging ---

    def _roots(self) -> Iterator[Path]:
        uris = [folder.uri for folder in self.workspace.folders.values()]
        if not uris and self.workspace.root_uri:
            uris = [self.workspace.root_uri]
        for uri in uris:
            path = path_of(uri)
            if path is not None:
                yield path

    def _root_of(self, path: Path) -> tuple[Path, bool]:
        """Return the editor's folder with a file, and whether there is one; otherwise the file's own folder."""
        root = closest(self._roots(), path)
        return (root, True) if root is not None else (path.parent, False)

    def _buffers_by_folder(self) -> dict[Path, dict[str, bytes]]:
        """Return the open files of each folder, by path relative to it."""
        found: dict[Path, dict[str, bytes]] = {folder: {} for folder in self._folders}
        for file in self._open.values():
            root, is_workspace = self._root_of(file.path)
            if root not in self._folders:
                codec = PositionCodec(self.workspace.position_encoding)
                self._folders[root] = Folder(root, self._choices, codec, is_workspace=is_workspace)
            folder = self._folders[root]
            found.setdefault(root, {})[folder.relative(file.path)] = file.content
        return found

    async def _judge_forever(self) -> None:
        while True:
            if not self._wake.is_set():
                self._idle.set()
            await self._wake.wait()
            self._wake.clear()
            try:
                while (calm := time.monotonic() - self._changed_at) < TYPING_PAUSE_S:
                    await asyncio.sleep(TYPING_PAUSE_S - calm)
                await self._judge_jobs()
                await self._read_folders()
            except asyncio.CancelledError:
                raise
            except Exception:
                # A bug here must not end the judging of later changes.
                log.exception("judging failed")

    async def _judge_jobs(self) -> None:
        """Judge the present jobs of every open file, and send the result unless it is stale."""
        generation = self._generation
        self._stop_job.clear()
        for root, buffers in self._buffers_by_folder().items():
            folder = self._folders[root]
            touched = frozenset(folder.relative(path) for path in self._touched if root in path.parents)
            watch = Watch(self._stop_job, JOB_DEADLINE_S)
            done = await self._run(partial(folder.read_again, buffers, touched, watch), root)
            if generation != self._generation:
                return
            if done:
                self._touched -= {path for path in self._touched if root in path.parents}
        self._judged = generation
        await self._publish(generation)

    async def _read_folders(self) -> None:
        """Read each folder with unknown jobs, once the user stops typing."""
        while not all(folder.is_complete for folder in self._folders.values()):
            generation = self._generation
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), IDLE_PAUSE_S)
                return  # Something changed, and comes first.
            self._stop_folder.clear()
            for root, buffers in self._buffers_by_folder().items():
                folder = self._folders[root]
                if folder.is_complete or not buffers:
                    folder.is_complete = True
                    continue
                watch = Watch(self._stop_folder, FOLDER_DEADLINE_S)
                if not await self._run(partial(folder.read_all, buffers, watch), root):
                    if generation == self._generation and not self._stop_folder.is_set():
                        log.info("reading all of %s was stopped; jobs are found only through open files", root)
                        folder.is_complete = True
                    break
            await self._publish(generation)

    async def _run(self, work: Callable[[], object], root: Path) -> bool:
        """Run `work` in the worker. Returns whether it completed."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except UsageError as error:
            self._show_once(f"{root}: {error}")
            self._folders.pop(root, None)
            return False
        except (Superseded, BudgetExceeded):
            return False
        return True

    def _show_once(self, text: str) -> None:
        shown = clean(text)
        if shown not in self._shown_texts and len(self._shown_texts) < MAX_OPEN_FILES:
            self._shown_texts.add(shown)
            self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, f"preflight: {shown}"))

    async def _publish(self, generation: int) -> None:
        by_document: dict[str, list[types.Diagnostic]] = {}
        by_path = {file.path: file for file in self._open.values()}
        if self._pages is None:
            self._pages = RulePages([*self._roots(), *self._folders], self._choices.site_rules)
        for root, folder in list(self._folders.items()):
            made = await self._ask_worker(partial(diagnostics_of, folder, self._pages), JOB_DEADLINE_S)
            for path, diagnostics in (made or {}).items():
                file = by_path.get(root / path)
                by_document[file.uri if file is not None else uri_of(root / path)] = diagnostics
        if generation != self._generation:
            return
        for uri in {*by_document, *self._published}:
            diagnostics = by_document.get(uri, [])
            if diagnostics != self._published.get(uri, []) or (uri in self._open and uri not in self._published):
                version = self._open[uri].version if uri in self._open else None
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics, version))
        self._published = {uri: by_document[uri] for uri in by_document if by_document[uri] or uri in self._open}

    # --- answers ---

    async def answer(self, uri: str, make: Callable[[Folder, str, Watch], T]) -> T | None:
        """Return the result of `make(folder, path, watch)` for an open file's present text; None if it is late."""
        file = self._open.get(uri)
        if file is None:
            return None
        root = self._root_of(file.path)[0]
        buffers = self._buffers_by_folder()[root]
        folder = self._folders[root]
        self._stop_folder.set()
        stop = threading.Event()

        def work() -> T:
            watch = Watch(stop, ANSWER_DEADLINE_S)
            folder.read_again(buffers, frozenset(), watch)
            return make(folder, folder.relative(file.path), watch)

        try:
            return await self._ask_worker(work, ANSWER_DEADLINE_S)
        finally:
            stop.set()
            self._wake.set()

    async def _ask_worker(self, work: Callable[[], T], deadline_s: float) -> T | None:
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._worker, work), deadline_s)
        except asyncio.TimeoutError:
            log.info("an answer took longer than %g s", deadline_s)
        except (Superseded, BudgetExceeded, UsageError):
            pass
        return None

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log an error in the handling of a message; a window for each malformed message would hide the editor."""
        log.warning("%s: %s", type(error).__name__, clean(str(error))[:500])

    def versions(self, root: Path) -> dict[str, int]:
        """Return the versions of the open files below a folder, by path relative to it."""
        folder = self._folders[root]
        return {
            folder.relative(file.path): file.version
            for file in self._open.values()
            if root in file.path.parents and file.version is not None
        }

    def adapt_edit_to_client(self, edit: types.WorkspaceEdit | None) -> types.WorkspaceEdit | None:
        """Return an edit without versions if the editor does not support edits of versioned documents."""
        workspace = self.client_capabilities.workspace
        supported = workspace.workspace_edit.document_changes if workspace and workspace.workspace_edit else False
        if edit is None or supported:
            return edit
        changes = {
            one.text_document.uri: list(one.edits)
            for one in edit.document_changes or ()
            if isinstance(one, types.TextDocumentEdit)
        }
        return types.WorkspaceEdit(changes=changes)  # type: ignore[arg-type]


def make_server(choices: Choices) -> Server:
    """Return a server that handles every request that it announces."""
    server = Server(choices)

    @server.feature(types.INITIALIZED)
    def initialized(params: types.InitializedParams) -> None:
        server.start_judging()
        _watch_files(server)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        server.start_judging()
        server.set_text(params.text_document.uri, params.text_document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        server.set_text(params.text_document.uri, params.text_document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def did_save(params: types.DidSaveTextDocumentParams) -> None:
        server.touch(params.text_document.uri, exists=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        server.close_text(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_files(params: types.DidChangeWatchedFilesParams) -> None:
        for change in params.changes:
            server.touch(change.uri, exists=change.type == types.FileChangeType.Changed)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def did_change_folders(params: types.DidChangeWorkspaceFoldersParams) -> None:
        server.forget_folders()

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        def make(folder: Folder, path: str, watch: Watch) -> str:
            text = folder.text(path)
            jobs = folder.planned_jobs(path, watch)
            plans = [[launch for job in plan_of([one]).jobs for launch in job.launches] for one in jobs]
            return hover_text(jobs, plans, path, text, text.place(params.position))

        text = await server.answer(params.text_document.uri, make)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text)) if text else None

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: types.DefinitionParams) -> list[types.Location] | None:
        return await server.answer(
            params.text_document.uri,
            lambda folder, path, watch: word_lookup.definitions(folder, path, folder.text(path).place(params.position)),
        )

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    async def references(params: types.ReferenceParams) -> list[types.Location] | None:
        return await server.answer(
            params.text_document.uri,
            lambda folder, path, watch: word_lookup.references(folder, path, folder.text(path).place(params.position)),
        )

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(list(KINDS)))
    async def code_action(params: types.CodeActionParams) -> list[types.CodeAction] | None:
        only = [getattr(kind, "value", kind) for kind in params.context.only] if params.context.only else None
        found = await server.answer(
            params.text_document.uri,
            lambda folder, path, watch: actions(folder, path, params.range, only, server.versions(folder.root), watch),
        )
        for action in found or ():
            action.edit = server.adapt_edit_to_client(action.edit)
        return found

    return server


def _watch_files(server: Server) -> None:
    """Request events about files that change outside the editor, if the editor supports them."""
    workspace = server.client_capabilities.workspace
    if workspace and workspace.did_change_watched_files and workspace.did_change_watched_files.dynamic_registration:
        options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher("**/*")])
        registration = types.Registration("files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
        server.client_register_capability(types.RegistrationParams([registration]))


def serve(choices: Choices, address: tuple[str, int] | None = None) -> None:
    """Serve one editor until it disconnects, on standard input and output or `address`. Raises UsageError."""
    server = make_server(choices)
    if address is not None:
        with contextlib.suppress(SystemExit):
            asyncio.run(_serve_first(server, *address))
        return
    # Any other output would break the protocol.
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    server.start_io(sys.stdin.buffer, out)


class _PrefixedStream:
    """A stream whose first bytes were already read."""

    def __init__(self, first: bytes, rest: asyncio.StreamReader) -> None:
        self._first = first
        self._rest = rest

    async def readline(self) -> bytes:
        """Return the next line. The first bytes do not hold its end."""
        first, self._first = self._first, b""
        return first + await self._rest.readline()

    async def readexactly(self, count: int) -> bytes:
        return await self._rest.readexactly(count)


async def _serve_first(server: Server, host: str, port: int) -> None:
    """Serve the first editor that connects. Further connections are refused, and the server ends with the first one.

    Any page in a browser can send a request to a port of the same machine, with messages to the server as its body.
    Therefore a connection counts only if it begins with a header of the protocol.
    """
    connected: asyncio.Future[tuple[_PrefixedStream, asyncio.StreamWriter]]
    connected = asyncio.get_running_loop().create_future()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(len(_FIRST_BYTES))
        except (OSError, EOFError):
            first = b""
        if first != _FIRST_BYTES or connected.done():
            log.info("a connection was refused: it is not the first, or does not begin with a protocol header")
            writer.close()
        else:
            connected.set_result((_PrefixedStream(first, reader), writer))

    try:
        listener = await asyncio.start_server(connect, host, port)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    reader, writer = await connected
    listener.close()
    server.protocol.set_writer(writer)
    try:
        await run_async(threading.Event(), reader, server.protocol, log, server.report_server_error)
    except (OSError, EOFError, ValueError) as error:
        log.info("the connection to the editor ended: %s", error)
    finally:
        server.shutdown()
