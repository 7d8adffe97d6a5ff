"""Answers of the language server while a person types. Budget: 150 ms from a keystroke to the findings.

`python -m benchmarks editor [FILES]`: FILES other scripts are in the same workspace (default 500).
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from benchmarks.stopwatch import machine

JOB = Path(__file__).parents[1] / "examples" / "deepspeed-hostfile" / "broken"
COMMAND = (sys.executable, "-m", "preflight", "lsp")
ROUNDS = 25
BUDGET_MS = 150
DEADLINE_S = 120.0


def main() -> None:
    """Print a table for a workspace of one job of five files, and for one among many other jobs."""
    others = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for count in (0, others):
        with tempfile.TemporaryDirectory(prefix="preflight-editor-") as folder:
            root = Path(folder) / "workspace"
            shutil.copytree(JOB, root)
            (root / "env.sh").write_text("export NCCL_DEBUG=INFO\n")
            (root / "run.sh").write_text((root / "run.sh").read_text().replace("set -e\n", "set -e\nsource ./env.sh\n"))
            for number in range(count):
                place = root / "others" / f"job{number}"
                place.mkdir(parents=True)
                (place / "run.sh").write_text("#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=8 train.py\n")
                (place / "train.py").write_text((JOB / "train.py").read_text())
            asyncio.run(_measure(root, count))


async def _measure(root: Path, others: int) -> None:
    client = LanguageClient("benchmark", "1")
    arrived: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def publish(params: types.PublishDiagnosticsParams) -> None:
        arrived.put_nowait(params)

    await client.start_io(*COMMAND)
    assert client._server is not None
    server = psutil.Process(client._server.pid)
    folder = types.WorkspaceFolder(root.as_uri(), "workspace")
    await client.initialize_async(
        types.InitializeParams(capabilities=types.ClientCapabilities(), workspace_folders=[folder])
    )
    client.initialized(types.InitializedParams())
    uri = (root / "run.sh").as_uri()
    text = (root / "run.sh").read_text()
    began = time.perf_counter()
    client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "shellscript", 1, text)))
    await _until(arrived, uri, lambda codes: "PRT001" in codes)
    first_ms = (time.perf_counter() - began) * 1000
    await _until_idle(server)
    document = types.TextDocumentIdentifier(uri)
    at = types.Position(text[: text.index("--num_nodes")].count("\n"), 8)
    version = 1

    async def keystroke() -> None:
        nonlocal version
        version += 1
        wrong = version % 2 == 1
        client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri),
                [types.TextDocumentContentChangeWholeDocument(text if wrong else text.replace("295010", "29501"))],
            )
        )
        await _until(arrived, uri, lambda codes: ("PRT001" in codes) is wrong)

    async def hover() -> None:
        await client.text_document_hover_async(types.HoverParams(document, at))

    async def actions() -> None:
        asked = types.CodeActionParams(document, types.Range(at, at), types.CodeActionContext([]))
        await client.text_document_code_action_async(asked)

    works: dict[str, Callable[[], Awaitable[None]]] = {
        "a keystroke, until the findings are there": keystroke,
        "a hover": hover,
        "the actions of a line with a finding": actions,
    }
    print(f"a job of five files among {others} other jobs (medians of {ROUNDS}; {machine()})")
    print(f"  {'':<44}{'wall ms':>9}{'worst':>9}{'cpu ms':>9}")
    print(f"  {'the first findings after the start':<44}{first_ms:>9.1f}")
    for name, work in works.items():
        walls, cpus = [], []
        for _ in range(ROUNDS):
            before, started = _cpu_s(server), time.perf_counter()
            await asyncio.wait_for(work(), DEADLINE_S)
            walls.append((time.perf_counter() - started) * 1000)
            await _until_idle(server)
            cpus.append((_cpu_s(server) - before) * 1000)
        print(f"  {name:<44}{statistics.median(walls):>9.1f}{max(walls):>9.1f}{statistics.median(cpus):>9.1f}")
    print(f"  budget {BUDGET_MS} ms for a keystroke, of which 40 ms wait for the next one\n")
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


async def _until(
    arrived: asyncio.Queue[types.PublishDiagnosticsParams], uri: str, reached: Callable[[set[object]], bool]
) -> None:
    async def wait() -> None:
        while True:
            params = await arrived.get()
            if params.uri == uri and reached({one.code for one in params.diagnostics}):
                return

    await asyncio.wait_for(wait(), DEADLINE_S)


async def _until_idle(server: psutil.Process) -> None:
    """Wait until the server has used nothing for a while: it may read the rest of the workspace."""
    until = time.monotonic() + DEADLINE_S
    before = -1.0
    while time.monotonic() < until and _cpu_s(server) != before:
        before = _cpu_s(server)
        await asyncio.sleep(0.2 if before >= 0 else 0.6)


def _cpu_s(server: psutil.Process) -> float:
    used = server.cpu_times()
    return float(used.user + used.system)


if __name__ == "__main__":
    main()
