"""Target: what an editor says to the language server, with a hostile workspace and text behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

from lsprotocol import types
from pygls.io_ import run_async

from preflight.config.resolve import Choices
from preflight.services.language_server import server as language_server
from tests.fuzz import folder, mutation
from tests.fuzz.jobs import loaded
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.target import Fault, Target

_ROOT = "@ROOT@"
#: Beside the workspace, so that only a file from outside has this text.
_OUTSIDE = "text-of-another-folder"
_JOB = {
    "run.sh": b"#!/bin/bash\nexport NCCL_DEBUG=INFO\nsource ../outside.sh\nsource link.sh\n"
    b"deepspeed --num_nodes 2 --num_gpus 4 --master_port 295010 train.py --deepspeed_config ds.json\n",
    "ds.json": b'{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4}\n',
    "train.py": b"import torch.distributed as dist\ndist.init_process_group('nccl')\n",
}
#: Of wall time, on a busy machine; the limits of CPU time come first.
_DEADLINE_S = 120.0


def targets() -> Iterator[Target]:
    """Messages of an editor, one a line; a line that is no object is bytes between messages."""
    yield Target("editor", _talk, _conversations, _words, mutation.lines, 16 * 1024, Limits(4.0, 192 * MIB), loaded)


def _conversations() -> Iterator[bytes]:
    document = {"uri": f"{_ROOT}/run.sh"}
    at = {"line": 4, "character": 15}
    text = _JOB["run.sh"].decode()
    opened = _notice("didOpen", {"textDocument": {**document, "languageId": "shellscript", "version": 1, "text": text}})
    changed = _notice(
        "didChange",
        {"textDocument": {**document, "version": 2}, "contentChanges": [{"text": text.replace("295010", "29501")}]},
    )
    asked = [
        _request(2, "hover", {"textDocument": document, "position": at}),
        _request(3, "definition", {"textDocument": document, "position": at}),
        _request(4, "references", {"textDocument": document, "position": at, "context": {"includeDeclaration": True}}),
        _request(
            5,
            "codeAction",
            {"textDocument": document, "range": {"start": at, "end": at}, "context": {"diagnostics": []}},
        ),
    ]
    yield b"\n".join([opened, *asked])
    yield b"\n".join([opened, changed, asked[0], _notice("didClose", {"textDocument": document})])
    yield b"\n".join([asked[3], b"Content-Length: x\r\n", b"{}", b"[]", b'{"jsonrpc": "2.0", "id": 1}', opened])
    part = {"range": {"start": at, "end": {"line": 9, "character": 0}}, "text": "\r\n\u2028\U0001f680"}
    yield b"\n".join(
        [opened, _notice("didChange", {"textDocument": {**document, "version": 3}, "contentChanges": [part]}), *asked]
    )
    for uri in ("untitled:1", "file:///etc/passwd", f"{_ROOT}/../outside.sh", f"{_ROOT}/new.sh", "file:///%00"):
        yield b"\n".join([opened.replace(f"{_ROOT}/run.sh".encode(), uri.encode()), *asked[:1]])


def _notice(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": f"textDocument/{method}", "params": params}).encode()


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": f"textDocument/{method}", "params": params}).encode()


def _words() -> Iterator[str]:
    yield from ("workspace/didChangeWatchedFiles", "workspace/didChangeWorkspaceFolders", "$/cancelRequest", "shutdown")
    yield from ("--nnodes=4", "train_batch_size", "textDocument/didSave", "file://", "../", "contentChanges", _ROOT)


class _Sent:
    """What the server has written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.data += data

    def close(self) -> None:
        """Nothing to close."""


def _talk(data: bytes) -> None:
    with folder.temporary_folder(_JOB) as root:
        (root.parent / "outside.sh").write_text(f"export NCCL_DEBUG={_OUTSIDE}\n")
        (root / "link.sh").symlink_to("../outside.sh")
        with mock.patch.multiple(language_server, TYPING_PAUSE_S=0.0, IDLE_PAUSE_S=0.0):
            sent = asyncio.run(asyncio.wait_for(_conversation(root, data), _DEADLINE_S))
    said = sent.decode("utf-8", "replace")
    if _OUTSIDE in said and _OUTSIDE.encode() not in data:
        raise Fault("a file outside the workspace was read", said[max(0, said.index(_OUTSIDE) - 300) :])
    for frame in said.split("Content-Length: ")[1:]:
        message = json.loads(frame.partition("\r\n\r\n")[2] or "{}")
        uri = str((message.get("params") or {}).get("uri", ""))
        if message.get("method") == types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS and message["params"]["diagnostics"]:
            known = unquote(uri).startswith(root.as_uri()) or uri.encode() in data
            if not known and not unquote(uri).startswith("file:///"):
                raise Fault("diagnostics of a document that nobody opened", uri)


async def _conversation(root: Path, data: bytes) -> bytes:
    server = language_server.make_server(Choices(use_file=False))
    sent = _Sent()
    server.protocol.set_writer(sent)
    start = {
        "processId": None,
        "capabilities": {},
        "rootUri": root.as_uri(),
        "workspaceFolders": [{"uri": root.as_uri(), "name": "tree"}],
    }
    opening = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
        {"jsonrpc": "2.0", "method": "initialized", "params": {}},
    ]
    try:
        await _hear(server, [json.dumps(one).encode() for one in opening])
        try:
            await _hear(server, data.replace(_ROOT.encode(), root.as_uri().encode()).split(b"\n"))
        except (asyncio.IncompleteReadError, SystemExit):
            return bytes(sent.data)  # The editor broke off, or said that it leaves.
        await server.settled()
        # Whatever was said, the next document is judged.
        uri = f"{root.as_uri()}/after.sh"
        text = "#!/bin/bash\ntorchrun --nnodes=1 --nproc_per_node=2 --master_port=99999 t.py\n"
        item = {"uri": uri, "languageId": "shellscript", "version": 1, "text": text}
        await _hear(server, [_notice("didOpen", {"textDocument": item})])
        await server.settled()
        if b"PRT001" not in bytes(sent.data).rpartition(b"after.sh")[2] and b'"method": "shutdown"' not in data:
            raise Fault("the server no longer judges", bytes(sent.data[-600:]).decode("utf-8", "replace"))
        return bytes(sent.data)
    finally:
        server.shutdown()


async def _hear(server: language_server.Server, lines: list[bytes]) -> None:
    reader = asyncio.StreamReader()
    for line in lines:
        reader.feed_data(b"Content-Length: %d\r\n\r\n%b" % (len(line), line) if line[:1] in b"{[" and line else line)
    reader.feed_eof()
    await run_async(threading.Event(), reader, server.protocol, None, server.report_server_error)
