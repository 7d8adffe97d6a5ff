"""A fix edits the judged files completely or not at all, and does not change the rest of a file."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.cli import main
from preflight.commands.fix import Files, Plan, plan
from preflight.engine.report import Report, report_on
from preflight.model.findings import Edit, Fix
from preflight.model.job import InputFile, Span
from preflight.plugins.authoring import delete_word, failed, make_fix, replace_text
from tests.builders import job, judged, make_recording, make_rule, span

TEXT = "one two\nthree four\nfive\n"


def report(root: Path, *fixes: Fix | None, names: tuple[str, ...] = ("a.sh",)) -> Report:
    """A report on `root` with a finding for each fix."""
    files = []
    for name in names:
        content = (root / name).read_bytes()
        files.append(InputFile(name, "shell", hashlib.sha256(content).hexdigest(), len(content)))

    def verdicts(subject: object) -> object:
        return [
            failed("a.sh", f"fault {number}", at=span("a.sh", number + 1), remedy="-", fix=fix)
            for number, fix in enumerate(fixes)
        ]

    return judged(make_recording(replace(job(), files=tuple(files))), [make_rule(verdicts)])  # type: ignore[arg-type]


def edit(line: int, column: int, old: str, new: str, path: str = "a.sh") -> Edit:
    """An edit of a.sh."""
    return Edit(path, line, column, old, new)


def plan_fixes(root: Path, *fixes: Fix | None, unsafe: bool = False, names: tuple[str, ...] = ("a.sh",)) -> Plan:
    """Plan the fixes."""
    return plan(report(root, *fixes, names=names), Files(root), unsafe=unsafe).written()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file."""
    (tmp_path / "a.sh").write_text(TEXT)
    return tmp_path


def test_edits_of_several_findings_in_one_file(root: Path) -> None:
    done = plan_fixes(
        root,
        make_fix("b", edit(2, 7, "four", "4"), safe=True),
        make_fix("a", edit(1, 1, "one", "1"), edit(3, 1, "five", ""), safe=True),
        make_fix("c", edit(1, 5, "two", "2"), safe=False),
    )
    assert (root / "a.sh").read_text() == "1 two\nthree 4\n\n"
    assert (len(done.fixed), done.unsafe_left) == (2, 1)
    assert done.summary(is_preview=False).splitlines() == [
        "preflight: fixed 2 findings in 1 file",
        "preflight: 1 more with --unsafe-fixes; review them with --diff first",
    ]
    assert plan_fixes(root, make_fix("c", edit(1, 3, "two", "2"), safe=False), unsafe=True).fixed
    assert (root / "a.sh").read_text() == "1 2\nthree 4\n\n"


def test_the_first_of_two_fixes_of_one_location_is_made(root: Path) -> None:
    done = plan_fixes(
        root,
        make_fix("a", edit(1, 1, "one two", "1 2"), safe=True),
        make_fix("b", edit(1, 5, "two", "II"), edit(3, 1, "five", "V"), safe=True),
        make_fix("same", edit(1, 1, "one two", "1 2"), safe=True),
        make_fix("touching", edit(1, 8, "", "!"), safe=True),
    )
    assert (root / "a.sh").read_text() == "1 2!\nthree four\nfive\n"
    assert [refused.reason for refused in done.refused] == ["another fix also edits a.sh:1; run again"]
    assert len(done.fixed) == 3


def test_a_fix_whose_own_edits_overlap_is_not_made(root: Path) -> None:
    done = plan_fixes(root, make_fix("x", edit(1, 1, "one two", "1"), edit(1, 5, "two", "2"), safe=True))
    assert (root / "a.sh").read_text() == TEXT
    assert "overlap" in done.refused[0].reason


@pytest.mark.parametrize(
    "wrong",
    [edit(1, 2, "one", "1"), edit(9, 1, "one", "1"), edit(1, 5, "two\nthree", "-"), edit(0, 1, "one", "1")],
    ids=["column", "line", "over-the-line", "no-line"],
)
def test_an_unexpected_text_is_not_edited(wrong: Edit, root: Path) -> None:
    done = plan_fixes(root, make_fix("both", edit(3, 1, "five", "5"), wrong, safe=True))
    assert (root / "a.sh").read_text() == TEXT
    assert "no longer contains" in done.refused[0].reason
    assert done.changes == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one two\r\nthree\r\n", b"1 two\r\nthree\r\n"),
        (b"\xef\xbb\xbfone two", b"\xef\xbb\xbf1 two"),
        ("one ä\u2028two\n".encode(), "1 ä\u2028two\n".encode()),
        (b"one\x0cmore\x00\n", b"1\x0cmore\x00\n"),
    ],
    ids=["carriage-returns", "byte-order-mark", "line-separator", "control"],
)
def test_the_rest_of_the_file_is_unchanged(before: bytes, after: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(before)
    (tmp_path / "a.sh").chmod(0o750)
    done = plan_fixes(tmp_path, make_fix("a", edit(1, 1, "one", "1"), safe=True))
    assert (tmp_path / "a.sh").read_bytes() == after
    assert stat.S_IMODE((tmp_path / "a.sh").stat().st_mode) == 0o750
    assert [path.name for path in tmp_path.iterdir()] == ["a.sh"]
    assert done.diff().count("\n-") == 1 and "+1" in done.diff()


def test_a_file_that_changed_meanwhile_is_not_edited(root: Path) -> None:
    fix = make_fix("a", edit(1, 1, "one", "1"), safe=True)
    late = plan(report(root, fix), Files(root), unsafe=False)
    before = report(root, fix)
    (root / "a.sh").write_text(TEXT + "more\n")
    assert "changed since it was checked" in plan(before, Files(root), unsafe=False).refused[0].reason
    done = late.written()
    assert (done.fixed, done.changes) == ((), ())
    assert "changed since it was checked" in done.refused[0].reason
    assert (root / "a.sh").read_text() == TEXT + "more\n"


def test_links_are_followed_only_inside_the_root(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "real.sh").write_text(TEXT)
    (inside / "a.sh").symlink_to("real.sh")
    (inside / "b.sh").symlink_to(outside / "real.sh")
    fixes = (
        make_fix("a", edit(1, 1, "one", "1"), safe=True),
        make_fix("b", edit(1, 1, "one", "1", "b.sh"), safe=True),
    )
    done = plan_fixes(inside, *fixes, names=("a.sh", "b.sh"))
    assert (inside / "a.sh").is_symlink()
    assert (inside / "real.sh").read_text().startswith("1 two")
    assert (outside / "real.sh").read_text() == TEXT
    assert "is outside the root" in done.refused[0].reason


def test_binary_and_special_files_are_not_edited(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"one \xff\n")
    assert "not UTF-8" in plan_fixes(tmp_path, make_fix("a", edit(1, 1, "one", "1"), safe=True)).refused[0].reason
    before = report(tmp_path, make_fix("a", edit(1, 1, "one", "1"), safe=True))
    (tmp_path / "a.sh").unlink()
    assert "cannot be read" in plan(before, Files(tmp_path), unsafe=False).refused[0].reason
    os.mkfifo(tmp_path / "a.sh")
    assert "not a regular file" in plan(before, Files(tmp_path), unsafe=False).refused[0].reason


def at(text: str, word: str) -> Span:
    """The span of a word on its own line."""
    return Span("a.sh", 4, text.index(word) + 1, 4, text.index(word) + 1 + len(word), text)


@pytest.mark.parametrize(
    ("line", "word", "left"),
    [
        ("torchrun --node_rank=1 train.py", "--node_rank=1", "torchrun train.py"),
        ("torchrun train.py --node_rank 1", "--node_rank 1", "torchrun train.py"),
        ("    --node_rank=1 \\", "--node_rank=1", ""),
        ("    --node_rank=1", "--node_rank=1", "    "),
        ("- --node_rank=1", "--node_rank=1", None),
        ('command: ["x", "--node_rank=1"]', "--node_rank=1", None),
        ("args: --node_rank=1", "--node_rank=1", None),
    ],
)
def test_a_word_is_deleted_if_a_command_remains(line: str, word: str, left: str | None) -> None:
    found = delete_word(at(line, word))
    if left is None:
        assert found is None
    else:
        assert found is not None
        start = found.column - 1
        assert f"{line}\n"[start:].startswith(found.expected)
        assert line[:start] + line[start + len(found.expected) :] == left


def test_only_a_unique_text_is_replaced() -> None:
    assert replace_text(at("export A=1", "A=1"), "A", "B") == Edit("a.sh", 4, 8, "A", "B")
    assert replace_text(at("export A=A", "A=A"), "A", "B") is None
    assert replace_text(at("export A=$X", "A=$X"), "1", "2") is None
    assert replace_text(at("x" * 240, "xx"), "xx", "y") is None
    assert replace_text(replace(at("export A=1", "A=1"), end_line=5), "A", "B") is None
    assert make_fix("nothing", None, safe=True) is None


# --- the command ---


FAULTY = """#!/bin/bash
export NCCL_IB_TIMEOUTT=22 WANDB_API_KEY=0123456789abcdef
torchrun --rdzv_backend=c10d --rdzv_endpoint=node0:29500 --nnodes=2 --node_rank=1 train.py
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that has a safe and an unsafe fix."""
    (tmp_path / "run.sh").write_text(FAULTY)
    (tmp_path / "train.py").write_text("print('training')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_diff_shows_and_changes_nothing(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint", "--diff"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("--- a/run.sh\n+++ b/run.sh\n@@ -1,3 +1,3 @@\n")
    assert "+torchrun --rdzv_backend=c10d --rdzv_endpoint=node0:29500 --nnodes=2 train.py\n" in out
    assert "0123456789abcdef" not in out
    assert "would fix 1 finding in 1 file" in err and "1 more with --unsafe-fixes" in err
    assert (tree / "run.sh").read_text() == FAULTY
    assert main.run(["lint"]) == 0
    assert (
        "\n1 fixable with --fix, 1 more with --fix --unsafe-fixes (preview with --diff)\nGO  " in capfd.readouterr().out
    )
    assert main.run(["lint", "--statistics"]) == 0
    assert "1  warning  ENV001 variable-misspelt  (1 fixable with --fix --unsafe-fixes)\n" in capfd.readouterr().out
    assert main.run(["lint", "--diff", "--unsafe-fixes"]) == 1
    assert "+export NCCL_IB_TIMEOUT=22" in capfd.readouterr().out


def test_fix_edits_and_reports_the_rest(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint", "--fix", "--fail-on", "warning"]) == 1
    out, err = capfd.readouterr()
    assert "fixed 1 finding in 1 file" in err
    assert "ENV001" in out and "RDV007" not in out
    assert "--fix --unsafe-fixes can rename NCCL_IB_TIMEOUTT to NCCL_IB_TIMEOUT" in out
    assert main.run(["lint", "--fix", "--unsafe-fixes", "--fail-on", "warning"]) == 0
    assert main.run(["lint", "--diff", "--unsafe-fixes"]) == 0
    expected = FAULTY.replace("TIMEOUTT", "TIMEOUT").replace(" --node_rank=1", "")
    assert (tree / "run.sh").read_text() == expected


def test_suppressed_findings_are_not_fixed(tree: Path) -> None:
    assert main.run(["lint", "--diff", "--ignore", "RDV007"]) == 0
    (tree / "preflight.toml").write_text('[[waive]]\nrule = "RDV007"\nreason = "kept for later"\n')
    assert main.run(["lint", "--diff"]) == 0


def test_unsafe_fixes_need_fix_or_diff(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint", "--unsafe-fixes"]) == 2
    assert "needs --fix" in capfd.readouterr().err


# --- any text and any edits ---


class InMemory(Files):
    """One file in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, path: str) -> bytes:
        """The file."""
        return self._content


@given(st.text(alphabet="ab \r\nü", max_size=40), st.data())
def test_edits_equal_replacements_from_the_end(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]

    @st.composite
    def edits(draw: st.DrawFn) -> Edit:
        number = draw(st.integers(0, len(lines) - 1))
        first = draw(st.integers(0, len(lines[number])))
        last = draw(st.integers(first, len(lines[number])))
        return edit(number + 1, first + 1, lines[number][first:last], draw(st.sampled_from(["", "X", "YZ"])))

    fixes = data.draw(st.lists(st.lists(edits(), min_size=1, max_size=2), max_size=4))
    content = text.encode()
    files = (InputFile("a.sh", "shell", hashlib.sha256(content).hexdigest(), len(content)),)
    rule = make_rule(
        lambda subject: [
            failed("a.sh", f"{n}", at=span("a.sh"), remedy="-", fix=Fix("x", tuple(each), safe=True))
            for n, each in enumerate(fixes)
        ]
    )
    found = report_on(make_recording(replace(job(), files=files)), [rule], [])
    done = plan(found, InMemory(content), unsafe=False)
    plan_fixes = {
        (starts[e.line - 1] + e.column - 1, starts[e.line - 1] + e.column - 1 + len(e.expected)): e.replacement
        for finding in done.fixed
        if finding.fix is not None
        for e in finding.fix.edits
    }
    expected = text
    for (start, end), replacement in sorted(plan_fixes.items(), reverse=True):
        expected = expected[:start] + replacement + expected[end:]
    assert (done.changes[0].after.decode() if done.changes else text) == expected
    assert len(done.fixed) + len(done.refused) == len(found.findings)
