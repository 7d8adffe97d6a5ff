"""The jobs of one folder, as they are read and judged after each change."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.workspace import PositionCodec

from preflight import api
from preflight._util.spans import Places
from preflight._util.usage_error import UsageError
from preflight.config.resolve import Choices
from preflight.services.language_server.diagnostics import RulePages, diagnostics_of
from preflight.services.language_server.folder import Folder, Superseded, Text, Watch, path_of
from tests.hostile.shapes import misleading_names, odd_files

EXAMPLES = Path(__file__).parents[3] / "examples"
SCRIPT = "#!/bin/bash\ntorchrun --nnodes=1 --nproc_per_node=2 --master_port={port} train.py\n"


def folder_of(root: Path, choices: Choices | None = None) -> Folder:
    return Folder(root, choices or Choices(), PositionCodec(), is_workspace=True)


def watch(deadline_s: float = 60.0) -> Watch:
    return Watch(threading.Event(), deadline_s)


def findings_of(folder: Folder) -> set[tuple[str, str, str, int]]:
    return {
        (name, one.id, one.locations[0].path, one.locations[0].line)
        for name, judged in folder.jobs.items()
        for one in (judged.report.findings if judged.report is not None else ())
    }


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A folder with several jobs, two of which share a program."""
    for name in ("deepspeed-hostfile", "torchrun-two-nodes", "megatron-slurm"):
        shutil.copytree(EXAMPLES / name / "broken", tmp_path / name)
    (tmp_path / "torchrun-two-nodes" / "again.sh").write_text(SCRIPT.format(port=99999))
    return tmp_path


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("deepspeed-hostfile/run.sh", "295010", "29501"),
        ("deepspeed-hostfile/run.sh", "    train.py", "    other.py"),
        ("deepspeed-hostfile/run.sh", "deepspeed --hostfile", "echo --hostfile"),
        ("deepspeed-hostfile/hostfile", "slots=4", "slots=2"),
        ("torchrun-two-nodes/run.sh", "train.py", "../deepspeed-hostfile/train.py"),
        ("torchrun-two-nodes/train.py", "gloo", "nccl"),
        ("megatron-slurm/env.sh", "NCCL_IB_TIMEOUTT", "NCCL_IB_TIMEOUT"),
        ("megatron-slurm/pretrain_gpt.sbatch", "#SBATCH --nodes", "##SBATCH --nodes"),
    ],
)
def test_a_job_read_again_is_as_if_the_folder_were_read(several: Path, path: str, old: str, new: str) -> None:
    """After an edit the jobs that it concerns are the same that a lint of the whole folder finds."""
    text = (several / path).read_bytes()
    edited = {path: text.replace(old.encode(), new.encode())}
    kept = folder_of(several)
    kept.read_all({path: text}, watch())
    kept.read_again(edited, frozenset(), watch())
    fresh = folder_of(several)
    fresh.read_all(edited, watch())
    assert findings_of(kept) == findings_of(fresh)
    assert {name: judged.paths for name, judged in kept.jobs.items()} == {
        name: judged.paths for name, judged in fresh.jobs.items()
    }
    (several / path).write_bytes(edited[path])
    saved = api.lint([several], root=several)
    open_jobs = {name for name, judged in fresh.jobs.items() if judged.report is not None}
    paths = {file for name in open_jobs for file in fresh.jobs[name].paths}
    expected = {(one.id, one.locations[0].path, one.locations[0].line) for one in saved.findings}
    assert {one[1:] for one in findings_of(fresh)} == {one for one in expected if one[1] in paths}


def test_only_jobs_with_an_open_file_are_judged(several: Path) -> None:
    folder = folder_of(several)
    folder.read_all({"deepspeed-hostfile/hostfile": b"node1 slots=4\n"}, watch())
    assert {name for name, judged in folder.jobs.items() if judged.report} == {"deepspeed-hostfile/run.sh"}


def test_an_unchanged_text_is_not_judged_again(several: Path) -> None:
    folder = folder_of(several)
    text = (several / "torchrun-two-nodes" / "run.sh").read_bytes()
    folder.read_all({"torchrun-two-nodes/run.sh": text}, watch())
    before = folder.jobs["torchrun-two-nodes/run.sh"].report
    folder.read_again({"torchrun-two-nodes/run.sh": text}, frozenset(), watch())
    assert before is not None and folder.jobs["torchrun-two-nodes/run.sh"].report is before
    folder.read_again({"torchrun-two-nodes/run.sh": text + b"\n"}, frozenset(), watch())
    folder.read_again({"torchrun-two-nodes/run.sh": text}, frozenset(), watch())
    again = folder.jobs["torchrun-two-nodes/run.sh"].report
    assert again is not before and again is not None and again.outcomes == before.outcomes


def test_a_stopped_run_keeps_what_was_known(several: Path) -> None:
    folder = folder_of(several)
    folder.read_all({"torchrun-two-nodes/run.sh": b"#!/bin/bash\n"}, watch())
    before = dict(folder.jobs)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Superseded):
        folder.read_again({"torchrun-two-nodes/run.sh": SCRIPT.encode()}, frozenset(), Watch(stop, 60.0))
    with pytest.raises(Superseded):
        folder.read_all({"torchrun-two-nodes/run.sh": SCRIPT.encode()}, Watch(threading.Event(), -1.0))
    assert folder.jobs == before


def test_files_that_cannot_be_read_do_no_harm(tmp_path: Path) -> None:
    """FIFOs, devices, circles of links and links that leave the folder, beside a job that names them."""
    root = tmp_path / "workspace"
    root.mkdir()
    list(odd_files(root / "odd"))
    misleading_names(root / "names")
    outside = tmp_path / "outside.sh"
    outside.write_text("export NCCL_DEBUG=text-of-another-folder\n")
    (root / "link.sh").symlink_to(outside)
    named = "".join(
        f"source {name}\n" for name in ("odd/fifo.sh", "odd/loop.sh", "odd/device.sh", "link.sh", str(outside))
    )
    text = SCRIPT.format(port=99999).replace("torchrun", f"{named}torchrun")
    folder = folder_of(root)
    buffers = {
        "run.sh": text.encode(),
        "odd/fifo.sh": b"#!/bin/bash\n",
        "huge.sh": b"#" * (11 << 20),
        "nul.sh": b"#!/bin/bash\n\0",
        "odd/folder.sh/x.sh": text.encode(),
    }
    folder.read_all(buffers, watch())
    folder.read_again({**buffers, "run.sh": text.encode() + b"\n"}, frozenset({"odd/device.sh"}), watch())
    shown = diagnostics_of(folder, RulePages([root], folder=tmp_path / "cache"))
    assert "PRT001" in {one.code for one in shown["run.sh"]}
    assert "text-of-another-folder" not in repr(shown)
    assert folder.content("link.sh") is None and folder.content("../outside.sh") is None
    assert folder.content("odd/fifo.sh") == b"#!/bin/bash\n" and folder.content("odd/device.sh") is None


def test_a_workspace_loads_no_rules_of_its_own(tmp_path: Path) -> None:
    """Site rules and plugins come from the command line of the server only."""
    (tmp_path / "run.sh").write_text(SCRIPT.format(port=99999))
    (tmp_path / "plugin.py").write_text("raise SystemExit('executed')\n")
    for setting in ("site-rules", "plugin", "plugins"):
        (tmp_path / "preflight.toml").write_text(f'{setting} = ["plugin.py"]\n')
        with pytest.raises(UsageError, match=setting):
            folder_of(tmp_path).read_all({"run.sh": b""}, watch())


def test_an_excluded_file_is_not_judged_and_an_ignored_one_is(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("ignored/\n")
    (tmp_path / "preflight.toml").write_text('exclude = ["left/"]\n')
    for name in ("ignored", "left"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(SCRIPT.format(port=99999))
    folder = folder_of(tmp_path)
    text = SCRIPT.format(port=99999).encode()
    folder.read_all({"ignored/run.sh": text, "left/run.sh": text}, watch())
    assert {path for _, _, path, _ in findings_of(folder)} == {"ignored/run.sh"}


def test_pages_are_not_written_into_a_workspace(tmp_path: Path) -> None:
    inside = RulePages([tmp_path], folder=tmp_path / "cache")
    assert inside.uri("PRT001") == "" and not (tmp_path / "cache").exists()
    (tmp_path / "workspace").mkdir()
    pages = RulePages([tmp_path / "workspace"], folder=tmp_path / "cache")
    path = path_of(pages.uri("PRT001").partition("#")[0])
    assert path is not None and "PRT001" in path.read_text() and pages.uri("XXX999") == ""


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a/b%20c.sh", "/a/b c.sh"),
        ("FILE:///a/../b.sh", "/b.sh"),
        ("file://localhost/a.sh", "/a.sh"),
        ("file:///a/%C3%BC.sh", "/a/ü.sh"),
        ("file:///a.sh?x#y", "/a.sh"),
        ("file://host/a.sh", None),
        ("untitled:a.sh", None),
        ("vscode-vfs://github/a.sh", None),
        ("file:///a%00.sh", None),
        ("file:a.sh", None),
        ("", None),
        ("file://[", None),
    ],
)
def test_uris(uri: str, path: str | None) -> None:
    found = path_of(uri)
    assert (None if found is None else os.fspath(found)) == path


# Places of preflight and of an editor in one text.


_TEXTS = st.text(st.sampled_from("ab \n\r\t\x0b\x0c\x85\u2028é🚀"), max_size=40)
_ENCODINGS = st.sampled_from(list(types.PositionEncodingKind))


@given(_TEXTS, _ENCODINGS, st.data())
def test_a_place_is_the_same_there_and_back(
    text: str, encoding: types.PositionEncodingKind, data: st.DataObject
) -> None:
    made = Text(text, PositionCodec(encoding))
    offset = data.draw(st.integers(0, len(text)))
    span = Places("x", text).span(offset, offset)
    if text[:offset].endswith("\r") and text[offset:].startswith("\n"):
        return  # Between the two halves of a line end an editor has no position.
    assert made.offset(span.line, span.column) == offset
    assert made.offset_at(made.position(offset)) == offset
    assert made.place(made.position(offset)) == (span.line, span.column)


@given(_TEXTS, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_no_position_is_outside_the_text(text: str, line: int, character: int) -> None:
    made = Text(text, PositionCodec())
    assert 0 <= made.offset_at(types.Position(line, character)) <= len(text)
    assert 0 <= made.offset(line, character) <= len(text)
    made.range(line, character, character, line)


def test_units_are_those_that_the_editor_chose() -> None:
    text = "a\né🚀b\n"
    for encoding, units in (("utf-8", 6), ("utf-16", 3), ("utf-32", 2)):
        made = Text(text, PositionCodec(types.PositionEncodingKind(encoding)))
        assert made.position(text.index("b")) == types.Position(1, units)
