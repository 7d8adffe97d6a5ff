"""Another project's client (pytest-lsp) drives the server as an editor does."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient

from tests.rules.case_files import case_named
from tests.services.language_server.editor import Editor

ROOT = Path(__file__).parents[3]
# One server for all of them: its start takes longer than the tests.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("language-server"),
]

LOCAL_RANK = """\
import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with a job for each language."""
    root = tmp_path_factory.mktemp("workspace")
    examples = ROOT / "examples"
    shutil.copytree(examples / "deepspeed-hostfile" / "broken", root / "deepspeed")
    shutil.copytree(examples / "kubernetes-job" / "broken", root / "kubernetes")
    shutil.copytree(examples / "torchrun-two-nodes" / "broken", root / "torchrun")
    case_named("PAR020", "fail-torchtitan-override").write(root).rename(root / "titan")
    (root / "local").mkdir()
    (root / "local" / "run.sh").write_text(
        "#!/bin/bash\npython -m torch.distributed.launch --nproc_per_node=2 train.py\n"
    )
    (root / "local" / "train.py").write_text(LOCAL_RANK)
    return root


@pytest_lsp.fixture(
    config=ClientServerConfig(server_command=[sys.executable, "-m", "preflight", "lsp"]), scope="module"
)
async def client(lsp_client: LanguageClient, workspace: Path) -> AsyncIterator[None]:
    """The server, started as an editor starts it."""
    workspace_edit = types.WorkspaceEditClientCapabilities(document_changes=True)
    await lsp_client.initialize_session(
        types.InitializeParams(
            capabilities=types.ClientCapabilities(
                workspace=types.WorkspaceClientCapabilities(workspace_edit=workspace_edit)
            ),
            workspace_folders=[types.WorkspaceFolder(workspace.as_uri(), "workspace")],
        )
    )
    yield
    await lsp_client.shutdown_session()


@pytest.fixture
def editor(client: LanguageClient, workspace: Path) -> Editor:
    """The editor in which the workspace is open."""
    return Editor(client, workspace)


async def test_a_finding_goes_and_comes_while_a_person_types(editor: Editor) -> None:
    text = await editor.open("deepspeed/run.sh", language="shellscript")
    await editor.until(lambda: "PRT001" in editor.ids("deepspeed/run.sh"))
    (found,) = [one for one in editor.shown("deepspeed/run.sh") if one.code == "PRT001"]
    assert found.source == "preflight" and found.severity == types.DiagnosticSeverity.Error
    assert (found.range.start.line, found.range.start.character) == (14, 4)
    assert "295010" in found.message and "Use a port from" in found.message
    assert found.code_description is not None
    page = Path(unquote(urlsplit(found.code_description.href).path))
    assert "## PRT001 port-invalid" in page.read_text()
    assert found.code_description.href.endswith("#prt001-port-invalid")

    editor.type("deepspeed/run.sh", text.replace("295010", "29501"))
    await editor.until(lambda: "PRT001" not in editor.ids("deepspeed/run.sh"))
    # The file itself was not touched.
    assert "295010" in (editor.root / "deepspeed" / "run.sh").read_text()
    editor.type("deepspeed/run.sh", text)
    await editor.until(lambda: "PRT001" in editor.ids("deepspeed/run.sh"))
    editor.close("deepspeed/run.sh")
    await editor.until(lambda: not editor.shown("deepspeed/run.sh"))


async def test_every_file_of_the_job_is_marked_and_cleared(editor: Editor) -> None:
    """An edit of the script changes what is wrong in files that are not open."""
    text = await editor.open("deepspeed/run.sh")
    files = ("run.sh", "ds_config.json", "hostfile", "train.py")
    await editor.until(lambda: all(editor.ids(f"deepspeed/{name}") for name in files))
    (batch,) = [one for one in editor.shown("deepspeed/ds_config.json") if one.code == "BAT001"]
    others = {(one.location.uri, one.location.range.start.line) for one in batch.related_information or ()}
    assert (editor.uri("deepspeed/run.sh"), 11) in others
    # Without the launch these files belong to no job.
    editor.type("deepspeed/run.sh", text.replace("deepspeed --hostfile", "echo --hostfile"))
    await editor.until(lambda: not any(editor.ids(f"deepspeed/{name}") for name in ("ds_config.json", "hostfile")))
    editor.close("deepspeed/run.sh")
    await editor.until(lambda: not any(editor.shown(f"deepspeed/{name}") for name in files))


async def test_an_edit_of_the_json_is_judged_with_the_script(editor: Editor) -> None:
    text = await editor.open("deepspeed/ds_config.json", language="json")
    await editor.until(lambda: "BAT001" in editor.ids("deepspeed/ds_config.json"))
    editor.type("deepspeed/ds_config.json", text.replace('"train_batch_size": 100', '"train_batch_size": 128'))
    await editor.until(lambda: "BAT001" not in editor.ids("deepspeed/ds_config.json"))
    editor.type("deepspeed/ds_config.json", text)
    hover = await editor.hover("deepspeed/ds_config.json", text, '"train_batch_size"')
    assert "`100`" in hover and "8 ranks on 2 nodes" in hover
    assert ("deepspeed/run.sh", 12) in await editor.definitions("deepspeed/ds_config.json", text, "100")
    editor.close("deepspeed/ds_config.json")


async def test_yaml(editor: Editor) -> None:
    text = await editor.open("kubernetes/job.yaml", language="yaml")
    await editor.until(lambda: {"WLD001", "GPU001"} <= editor.ids("kubernetes/job.yaml"))
    hover = await editor.hover("kubernetes/job.yaml", text, "--nnodes=4")
    assert "decided here by `--nnodes=4`" in hover, hover
    assert "not what `parallelism: 2` at kubernetes/job.yaml:17 gives: `2`" in hover, hover
    assert ("kubernetes/job.yaml", 17) in await editor.definitions("kubernetes/job.yaml", text, "--nnodes=4")
    actions = await editor.actions("kubernetes/job.yaml", text, "--nnodes=4")
    (title,) = [title for title in actions if "Suppress WLD001" in title]
    fixed = editor.applied("kubernetes/job.yaml", text, actions[title])
    assert "            # preflight: ignore[WLD001]" in fixed
    editor.type("kubernetes/job.yaml", fixed)
    await editor.until(lambda: editor.ids("kubernetes/job.yaml") == {"GPU001", "KUB002"})
    editor.type("kubernetes/job.yaml", text.replace("--nnodes=4", "--nnodes=2").replace("node=8", "node=4"))
    await editor.until(lambda: not {"WLD001", "GPU001"} & editor.ids("kubernetes/job.yaml"))
    editor.close("kubernetes/job.yaml")


async def test_toml_that_the_command_line_overrides(editor: Editor) -> None:
    text = await editor.open("titan/llama.toml", language="toml")
    await editor.until(lambda: "PAR020" in editor.ids("titan/run.sh"))
    hover = await editor.hover("titan/llama.toml", text, "tensor_parallel_degree")
    assert "overridden" in hover and "run.sh:2" in hover and "`3`" in hover, hover
    assert ("titan/run.sh", 2) in await editor.definitions("titan/llama.toml", text, "tensor_parallel_degree")
    assert ("titan/llama.toml", 15) in await editor.references("titan/llama.toml", text, "tensor_parallel_degree")
    # A word that decides nothing for the ranks.
    assert await editor.hover("titan/llama.toml", text, "[job]") == ""
    script = await editor.open("titan/run.sh")
    hover = await editor.hover("titan/run.sh", script, "--parallelism.tensor")
    assert "overrides" in hover and "llama.toml:15" in hover, hover
    editor.close("titan/llama.toml", "titan/run.sh")


async def test_python_and_a_safe_fix(editor: Editor) -> None:
    text = await editor.open("local/train.py", language="python")
    await editor.until(lambda: "LRK001" in editor.ids("local/train.py"))
    actions = await editor.actions("local/train.py", text, '"--local_rank"')
    (title,) = [title for title in actions if "(LRK001)" in title]
    assert actions[title].is_preferred
    fixed = editor.applied("local/train.py", text, actions[title])
    assert "--local-rank" in fixed
    editor.type("local/train.py", fixed)
    await editor.until(lambda: "LRK001" not in editor.ids("local/train.py"))
    editor.type("local/train.py", text)
    everything = await editor.actions("local/train.py", text, "import", ["source.fixAll"])
    assert editor.applied("local/train.py", text, everything["Apply all of preflight's safe fixes"]) == fixed
    editor.close("local/train.py")


async def test_an_unsafe_fix_says_so_and_is_not_applied_with_all(editor: Editor) -> None:
    text = await editor.open("torchrun/run.sh")
    await editor.until(lambda: "ENV001" in editor.ids("torchrun/run.sh"))
    actions = await editor.actions("torchrun/run.sh", text, "GLOO_SOCKET")
    (title,) = [title for title in actions if "rename" in title]
    assert "unsafe" in title and not actions[title].is_preferred
    assert "GLOO_SOCKET_IFNAME=eth0" in editor.applied("torchrun/run.sh", text, actions[title])
    assert await editor.actions("torchrun/run.sh", text, "GLOO_SOCKET", ["source.fixAll"]) == {}
    editor.close("torchrun/run.sh")


async def test_a_suppression_stands_above_a_continued_command(editor: Editor) -> None:
    text = await editor.open("deepspeed/run.sh")
    await editor.until(lambda: "PRT001" in editor.ids("deepspeed/run.sh"))
    actions = await editor.actions("deepspeed/run.sh", text, "--master_port")
    fixed = editor.applied("deepspeed/run.sh", text, actions["Suppress PRT001 port-invalid here with a comment"])
    assert "# preflight: ignore[PRT001] say why\ndeepspeed --hostfile" in fixed
    editor.type("deepspeed/run.sh", fixed)
    await editor.until(lambda: editor.ids("deepspeed/run.sh") == {"WLD002"})
    editor.close("deepspeed/run.sh")


async def test_columns_are_those_of_the_editor(editor: Editor) -> None:
    """An emoji is one character, and two units of UTF-16."""
    await editor.open(
        "new.sh", "#!/bin/bash\nA='🚀🚀'; torchrun --nnodes=1 --nproc_per_node=2 --master_port=99999 t.py\n"
    )
    await editor.until(lambda: "PRT001" in editor.ids("new.sh"))
    (found,) = [one for one in editor.shown("new.sh") if one.code == "PRT001"]
    assert found.range.start == types.Position(1, len("A='....'; torchrun --nnodes=1 --nproc_per_node=2 "))
    editor.close("new.sh")
    await editor.until(lambda: not editor.shown("new.sh"))


async def test_a_file_that_the_job_misses_is_read_once_it_is_written(editor: Editor) -> None:
    """An unsaved new file that an open script names becomes part of its job."""
    await editor.open("later.sh", "#!/bin/bash\ndeepspeed --num_gpus 4 t.py --deepspeed_config later.json\n")
    await editor.open("later.json", '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}\n')
    await editor.until(lambda: bool(editor.ids("later.json")))
    editor.close("later.sh", "later.json")
    await editor.until(lambda: not editor.shown("later.json"))


async def test_a_broken_configuration_is_told_and_mended(editor: Editor) -> None:
    await editor.open("torchrun/run.sh")
    await editor.until(lambda: "ENV001" in editor.ids("torchrun/run.sh"))
    configuration = editor.root / "preflight.toml"
    changed = types.DidChangeWatchedFilesParams([types.FileEvent(configuration.as_uri(), types.FileChangeType.Changed)])
    configuration.write_text('ignore = ["ENV001"\n')
    editor.client.workspace_did_change_watched_files(changed)
    await editor.until(lambda: not editor.shown("torchrun/run.sh"))
    assert any("preflight.toml" in one.message for one in editor.client.messages)
    configuration.write_text('ignore = ["ENV001"]\n')
    editor.client.workspace_did_change_watched_files(changed)
    await editor.until(lambda: editor.ids("torchrun/run.sh") == {"RDV001"})
    configuration.unlink()
    editor.client.workspace_did_change_watched_files(changed)
    await editor.until(lambda: "ENV001" in editor.ids("torchrun/run.sh"))
    editor.close("torchrun/run.sh")


@pytest.mark.parametrize(
    "uri",
    [
        "untitled:Untitled-1",
        "http://example.org/run.sh",
        "file://elsewhere/run.sh",
        "file:///proc/self/environ",
        "file:///dev/zero",
        "file:///tmp/%00.sh",
        "file:///%ff%fe/run.sh",
        "file:///tmp/../../../etc/passwd",
        "file://[::1/x",
        "",
        "file:///" + "a" * 20_000,
    ],
)
async def test_odd_documents_do_not_end_the_server(editor: Editor, uri: str) -> None:
    document = types.TextDocumentIdentifier(uri)
    start = types.Position(0, 0)
    text = "#!/bin/bash\nsource /etc/passwd\ntorchrun --master_port=99999 t.py\n"
    client = editor.client
    client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "x", 1, text)))
    far = types.Position(2**31 - 1, 2**31 - 1)
    for at in (start, far):
        await asyncio.wait_for(client.text_document_hover_async(types.HoverParams(document, at)), 30)
        await asyncio.wait_for(client.text_document_definition_async(types.DefinitionParams(document, at)), 30)
        context = types.CodeActionContext([])
        asked = types.CodeActionParams(document, types.Range(at, at), context)
        await asyncio.wait_for(client.text_document_code_action_async(asked), 30)
    client.text_document_did_close(types.DidCloseTextDocumentParams(document))
    # A change of a document that is not open.
    client.text_document_did_change(
        types.DidChangeTextDocumentParams(
            types.VersionedTextDocumentIdentifier(3, uri), [types.TextDocumentContentChangeWholeDocument("x")]
        )
    )
    await editor.open("torchrun/run.sh")
    await editor.until(lambda: "ENV001" in editor.ids("torchrun/run.sh"))
    editor.close("torchrun/run.sh")
    await editor.until(lambda: not editor.shown("torchrun/run.sh"))


async def test_what_is_not_open_is_not_read_for_a_request(editor: Editor) -> None:
    """Only open files are answered; a document of the disk would be read by the library."""
    for uri in (editor.uri("torchrun/run.sh"), "file:///etc/passwd"):
        asked = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(1, 1))
        assert await editor.client.text_document_hover_async(asked) is None
