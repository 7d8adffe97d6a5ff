"""The tables of symptoms: every row matches its own lines, refers to existing rules, and is fast on any text."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.commands.diagnose.diagnosis import Kind
from preflight.commands.diagnose.log_lines import MAX_LENGTH, Finder
from preflight.commands.diagnose.scan import known, needles_of, parse
from preflight.commands.rule_docs import explanation
from preflight.config.resolve import all_items
from preflight.plugins import registry

TABLE = known()
#: A complete row.
ROW = """schema = 1
[[symptom]]
id = "flux-capacitor-empty"
kind = "cause"
systems = ["site"]
needles = ["flux capacitor"]
pattern = 'flux capacitor of rank (?P<rank>[0-9]{1,6}) is empty'
meaning = "It is empty."
remedy = "Fill it."
found_by = ["MEM011"]
sources = ["https://example.org/wiki"]
"""


def test_a_row_matches_its_own_lines_and_no_earlier_row_does() -> None:
    for row in TABLE.rows:
        assert row.lines, row.symptom.id
        for line in row.lines:
            found = TABLE.match(line)
            assert found is not None and found[0].id == row.symptom.id, (row.symptom.id, line)


def test_every_rule_and_check_that_a_row_names_exists() -> None:
    there = {item.meta.id for item in all_items()}
    named = {name for row in TABLE.rows for name in row.symptom.found_by}
    assert named - there == set()
    # A cause that no check looks for has a reason.
    assert not [row.symptom.id for row in TABLE.rows if not row.symptom.found_by and not row.symptom.beyond]


def test_every_symptom_that_a_row_explains_exists() -> None:
    there = {row.symptom.id for row in TABLE.rows}
    assert {name for row in TABLE.rows for name in row.symptom.explains} - there == set()


def test_no_symptom_has_the_name_of_a_rule_and_every_source_is_an_address() -> None:
    names = registry.names_of(all_items())
    assert not [row.symptom.id for row in TABLE.rows if row.symptom.id in names]
    assert not [one for row in TABLE.rows for one in row.symptom.sources if not one.startswith("https://")]
    assert max(Counter(row.symptom.id for row in TABLE.rows).values()) == 1


def test_no_repetition_in_a_pattern_is_unbounded_or_nested() -> None:
    for row in TABLE.rows:
        plain = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", row.pattern.pattern)
        assert not re.search(r"[x.)][*+]|\{\d+,\}", plain), row.symptom.id
        assert not re.search(r"\{\d+,\d+\}\??\)(?:[*+]|\{)", plain), row.symptom.id


def test_hostile_lines_end_the_search_of_every_row() -> None:
    for row in TABLE.rows:
        needle = row.needles[0]
        starts = [line[:40] for line in row.lines] + [line[:-1] for line in row.lines]
        for seed in (needle, needle + " ", *starts, "a", "1,", " "):
            row.pattern.search((seed * MAX_LENGTH)[:MAX_LENGTH])
            row.pattern.search(needle + (seed * MAX_LENGTH)[:MAX_LENGTH])


def test_the_needles_of_every_row_are_found_in_a_chunk() -> None:
    finder = Finder(needles_of(TABLE.rows))
    lines = [line for row in TABLE.rows for line in row.lines if not line.startswith("@")]
    chunk = b"".join(b"step 12 loss 0.25\n" + line.replace("\n", " ").encode() + b"\n" for line in lines)
    found = {chunk[start : chunk.find(b"\n", start)] for start in finder.starts(chunk)}
    assert {line.encode() for line in lines} <= found
    assert b"step 12 loss 0.25" not in found


def test_a_user_table_comes_first_and_must_not_reuse_an_id(tmp_path: Path) -> None:
    own = tmp_path / "site.toml"
    own.write_text(ROW)
    assert known([own]).rows[0].symptom.id == "flux-capacitor-empty"
    own.write_text(ROW.replace("flux-capacitor-empty", "disk-full"))
    with pytest.raises(UsageError, match="two tables define the symptom 'disk-full'"):
        known([own])
    with pytest.raises(UsageError, match="cannot be read"):
        known([tmp_path / "absent.toml"])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('kind = "cause"', 'kind = "reason"', "expected kind to be one of cause, consequence"),
        ("schema = 1", "schema = 2", "expected `schema = 1`"),
        ('needles = ["flux capacitor"]', 'needles = ["Flux"]', "in lower case"),
        ("(?P<rank>", "(?P<who>", "unknown groups: who"),
        ("(?P<rank>", "(", "pattern"),
        ('meaning = "It is empty."', "", "expected a string for meaning"),
        ('found_by = ["MEM011"]', 'found_by = "MEM011"', "list of strings"),
        ('systems = ["site"]', 'system = ["site"]', "unknown keys: system"),
        ("[[symptom]]", "[[symptom", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_table_is_named(old: str, new: str, why: str) -> None:
    text = ROW.replace(old, new)
    if (old, new) == ("(?P<rank>", "("):
        text = text.replace("{1,6})", "{1,6}")
    with pytest.raises(ValueError, match=re.escape(why)):
        parse(text, "site.toml")


def test_explain_describes_a_symptom() -> None:
    said = explanation("port-already-in-use")
    assert "symptom in logs · cause, named" in said
    assert "PRT011 port-in-use" in said
    assert "EADDRINUSE" in said
    with pytest.raises(UsageError, match="the nearest: port-already-in-use"):
        explanation("port-alreddy-in-use")


def test_consequences_and_causes_are_both_there() -> None:
    kinds = Counter(row.symptom.kind for row in TABLE.rows)
    assert kinds[Kind.CAUSE] >= 60
    assert kinds[Kind.CONSEQUENCE] >= 15


def test_an_error_that_the_watchdog_quotes_counts_as_that_error() -> None:
    head = "[rank0]:[E117 ProcessGroupNCCL.cpp:1595] Process group watchdog thread terminated with exception: "
    expected = {
        "CUDA error: an illegal memory access was encountered": "cuda-kernel-fault",
        "CUDA error: out of memory": "gpu-out-of-memory",
        "CUDA error: uncorrectable ECC error encountered": "gpu-hardware-fault",
        "CUDA error: uncorrectable NVLink error detected during the execution": "nvlink-fault",
        "CUDA error: unknown error": "cuda-error-unspecific",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=SEND)": "nccl-watchdog-timeout",
    }
    for text, name in expected.items():
        found = TABLE.match(head + text)
        assert found is not None, text
        assert found[0].id == name, text


def test_lists_of_possible_causes_are_no_evidence() -> None:
    line = (
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some "
        "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage."
    )
    assert TABLE.match(line) is None
    assert TABLE.match("NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file: No such file") is None


@pytest.mark.parametrize("code", ["79", "149", "31", "45", "119"])
def test_an_xid_is_explained_in_nvidias_words(code: str) -> None:
    said = TABLE.meaning_of_codes(f"kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=python")
    assert said.startswith(f"Xid {code}: ")
    assert "action " in said
    assert "docs.nvidia.com" in said


def test_every_xid_that_a_row_matches_is_explained() -> None:
    rows = [row for row in TABLE.rows if "xid" in row.needles]
    for code in range(1, 200):
        line = f"NVRM: Xid (PCI:0000:3b:00): {code}, NETIR Fatal"
        if any(row.pattern.search(line) for row in rows) and code not in (49,):
            assert TABLE.meaning_of_codes(line), code


@pytest.mark.parametrize(
    ("line", "is_end"),
    [
        ("2026-11-24 INFO Training completed.", True),
        ("[rank0]: Training has finished successfully", True),
        ("[after training is done] datetime: 2026-01-06 14:21:39", True),
        ("{'train_runtime': 71.5, 'train_loss': 0.76}", True),
        ("`Trainer.fit` stopped: `max_steps=400000` reached.", True),
        ("Epoch 3 training finished, loss 0.5", False),
        ("training not completed", False),
        ("Waiting until training is complete", False),
        ("Stage 1 training done", False),
        ("At least one job did not complete successfully.", False),
        ("training completed epoch 3", False),
        ("loading data... done", False),
    ],
)
def test_only_the_end_of_a_run_counts_as_completion(line: str, is_end: bool) -> None:
    found = TABLE.match(line)
    assert (found is not None and found[0].kind is Kind.COMPLETION) is is_end
