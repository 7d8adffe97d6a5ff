"""The tables of symptoms: every row matches its own lines, refers to existing rules, and is fast on any text."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from preflight import api
from preflight._util import toml
from preflight._util.json_output import to_bytes
from preflight._util.usage_error import UsageError
from preflight.commands.diagnose import diagnosis
from preflight.commands.diagnose.diagnosis import Answer, Diagnosis, Kind, LogProcess
from preflight.commands.diagnose.log_lines import (
    MAX_LENGTH,
    Finder,
    common_tagging,
    member_of_file,
    moment_in,
    ranks_by_number,
    seconds_between,
)
from preflight.commands.diagnose.pipeline import diagnose
from preflight.commands.diagnose.scan import Table, load_symptoms, needles_of, parse
from preflight.commands.rule_docs import explanation
from preflight.plugins import registry
from preflight.plugins.installed import all_items
from tests.builders import DOCS
from tests.commands.diagnose.cases import Case, cases

TABLE = load_symptoms()
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
    assert load_symptoms([own]).rows[0].symptom.id == "flux-capacitor-empty"
    own.write_text(ROW.replace("flux-capacitor-empty", "disk-full"))
    with pytest.raises(UsageError, match="two tables define the symptom 'disk-full'"):
        load_symptoms([own])
    with pytest.raises(UsageError, match="cannot be read"):
        load_symptoms([tmp_path / "absent.toml"])


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


# Logs of any kind: compressed, damaged, binary, endless lines, escapes; tags and times of many forms.


OOM = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def read(path: Path, content: bytes) -> Diagnosis:
    """The diagnosis of a file with this content."""
    path.write_bytes(content)
    return api.diagnose([path])


def assert_out_of_memory(found: Diagnosis, line: int) -> None:
    """Assert that rank 3 was out of memory, in this line."""
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.members) == ("gpu-out-of-memory", (LogProcess(rank=3),))
    assert found.cause.line.line == line


# --- bytes ---


def test_compressed_logs_are_read(tmp_path: Path) -> None:
    assert_out_of_memory(read(tmp_path / "run.log.gz", gzip.compress(b"step 1\n" + OOM)), 2)


def test_the_readable_part_of_a_damaged_archive_is_read(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000)
    whole = gzip.compress(OOM + noise)
    found = read(tmp_path / "run.log.gz", whole[: len(whole) // 2])
    assert_out_of_memory(found, 1)
    assert "damaged" in found.logs[0].problem
    assert found.notes


def test_binary_data_and_broken_text_are_harmless(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 400 + random.Random(2).randbytes(300_000)
    assert_out_of_memory(read(tmp_path / "run.log", noise.replace(b"\n", b"") + b"\n" + OOM + b"\xff\xfe"), 2)


def test_escapes_and_carriage_returns_are_removed(tmp_path: Path) -> None:
    bar = b"".join(b"\r %d%%|###   | %d/100 [00:01<00:09]" % (n, n) for n in range(100))
    found = read(tmp_path / "run.log", bar + b"\r\x1b[31m" + OOM.rstrip() + b"\x1b[0m\r\n")
    assert_out_of_memory(found, 1)
    assert found.cause is not None
    assert "\x1b" not in found.cause.line.text


def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with path.open("wb") as stream:
        stream.write(OOM)
        for _ in range(24):
            stream.write(b"x" * (1 << 20))
    tracemalloc.start()
    found = api.diagnose([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_out_of_memory(found, 1)
    assert peak < 16 << 20


@pytest.mark.thorough
def test_a_long_log_is_read_in_bounded_memory_and_its_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    line = b"[rank%d]: step %d connection reset by peer, retrying\n"
    with path.open("wb") as stream:
        for n in range(12_000):
            stream.write(line % (n, n) if n % 2 == 0 else b"[rank%d]: step %d loss 2.5\n" % (n % 8, n))
        stream.write(OOM)
    tracemalloc.start()
    found = api.diagnose([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Each line belongs to another rank: more than are kept, and the cause is not among the dropped ones.
    assert_out_of_memory(found, 12_001)
    assert peak < 32 << 20


def test_a_traceback_across_chunks_stays_complete(tmp_path: Path) -> None:
    head = b'Traceback (most recent call last):\n  File "/home/anna/train.py", line 7, in <module>\n    go()\n'
    for more in range(-120, 20, 20):
        filler = b"step 1 loss 2.5\n" * ((1 << 16) + 1)
        content = filler[: (1 << 20) + more].rpartition(b"\n")[0] + b"\n" + head + b"KeyError: 'x'\n"
        found = read(tmp_path / "run.log", content)
        assert found.cause is not None
        assert (found.cause.symptom, found.cause.frame) == ("uncaught-exception", "/home/anna/train.py:7")
        assert found.cause.line.line == content.count(b"\n")


# --- secrets and control characters ---


def test_secrets_are_hidden_and_nothing_reaches_the_terminal(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 8
    found = read(
        tmp_path / "run.log", f"ValueError: bad\n[rank3]: CUDA out of memory HF_TOKEN={token} \u202e\x9b31m".encode()
    )
    assert found.cause is not None
    assert token not in found.cause.line.text
    assert "\x9b" not in found.cause.line.text


# --- what is read ---


def test_only_the_logs_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank_3.log").write_bytes(OOM)
    (tmp_path / "model.safetensors").write_bytes(b"CUDA out of memory")
    (tmp_path / "train.py").write_bytes(b"raise ValueError\n")
    (tmp_path / ".hidden.log").write_bytes(OOM)
    (tmp_path / "link.log").symlink_to(tmp_path / "rank_3.log")
    assert [Path(log.path).name for log in api.diagnose([tmp_path]).logs] == ["rank_3.log"]


def test_standard_input_and_paths_that_cannot_be_read(tmp_path: Path) -> None:
    found = api.diagnose(["-"], given=io.BytesIO(OOM))
    assert_out_of_memory(found, 1)
    assert found.logs[0].path == "standard input"
    with pytest.raises(UsageError, match="name the logs of a run"):
        api.diagnose([tmp_path / "absent"])
    (tmp_path / "empty.log").touch()
    assert api.diagnose([tmp_path]).answer is Answer.UNREADABLE


# --- who ---


@pytest.mark.parametrize(
    ("line", "member", "rest"),
    [
        ("[default3]:[rank3]: boom", LogProcess(rank=3, local_rank=3), "boom"),
        ("[1,3]<stderr>:boom", LogProcess(rank=3), "boom"),
        ("[prterun-node1-77@1,5]<stdout>: boom", LogProcess(rank=5), "boom"),
        ("Sun Nov 22 07:16:21 2026[1,1]<stderr>:boom", LogProcess(rank=1), "boom"),
        ("[trainer2]:boom", LogProcess(local_rank=2, role="trainer"), "boom"),
        ("[pod/job-worker-1/main] boom", LogProcess(host="job-worker-1", role="worker 1"), "boom"),
        ("(Train pid=7, ip=10.0.0.2) boom", LogProcess(host="10.0.0.2", role="Train"), "boom"),
        ("worker-1  | boom", LogProcess(host="worker-1", role="worker 1"), "boom"),
        ("[E ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 6] boom", LogProcess(rank=6), None),
        ("n1:812:900 [0] NCCL INFO x", LogProcess(host="n1"), None),
        ("a plain line", LogProcess(), "a plain line"),
    ],
)
def test_tags_identify_the_writer_of_a_line(line: str, member: LogProcess, rest: str | None) -> None:
    found, _, text = common_tagging([line]).split(line)
    assert found == member
    assert text == (rest if rest is not None else line)


@pytest.mark.parametrize(
    ("tag", "member"),
    [("{n}: ", LogProcess(rank=2)), ("[{n}] ", LogProcess(rank=2)), ("node{n}: ", LogProcess(host="node2"))],
)
def test_ambiguous_tags_count_if_most_lines_have_them(tag: str, member: LogProcess) -> None:
    sample = [tag.format(n=n % 3) + f"step {n}" for n in range(30)]
    assert common_tagging(sample).split(tag.format(n=2) + "boom")[0] == member
    assert common_tagging(["plain"] * 30).split(tag.format(n=2) + "boom")[0] == LogProcess()


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("logs/7/attempt_0/3/stderr.log", LogProcess(local_rank=3)),
        ("logs/node7/x/attempt_1/0/stdout.log", LogProcess(local_rank=0, host="node7")),
        ("log/workerlog.3", LogProcess(rank=3)),
        ("log/serverlog.1", LogProcess(role="server 1")),
        ("out/1/rank.5/stderr", LogProcess(rank=5)),
        ("rank_12.log.gz", LogProcess(rank=12)),
        ("local_rank_2.txt", LogProcess(local_rank=2)),
        ("pserver.0.log", LogProcess(role="server 0")),
        ("trainer-4.log", LogProcess(rank=4)),
        ("train-worker-2.txt", LogProcess(host="train-worker-2", role="worker 2")),
        ("gpu-07/console.log", LogProcess(host="gpu-07")),
        ("slurm-4711.out", LogProcess()),
        ("lora_rank_8/rank_1.log", LogProcess(rank=1)),
    ],
)
def test_file_names_identify_their_process(path: str, member: LogProcess) -> None:
    assert member_of_file(path) == member


def test_numbered_files_are_ranks_only_if_no_number_is_missing() -> None:
    assert ranks_by_number(["a/out.0.log", "a/out.1.log"]) == {
        "a/out.0.log": LogProcess(rank=0),
        "a/out.1.log": LogProcess(rank=1),
    }
    assert ranks_by_number(["a/out.0.log", "a/out.2.log", "slurm-4711.out"]) == {}


# --- when ---


@pytest.mark.parametrize(
    ("text", "seconds", "zoned"),
    [
        ("2026-01-02 03:04:05,678 INFO x", 97445.678, False),
        ("2026-01-02T03:04:05Z x", 97445, True),
        ("2026-01-02T05:04:05.5+02:00 x", 97445.5, True),
        ("  time      : 2026-01-02_03:04:05", 97445, False),
        ("[2026/01/02 03:04:05] ppcls INFO: x", 97445, False),
        ("01/02/2026 03:04:05 - INFO - x", 97445, False),
        ("I0102 03:04:05.678901  2211 init.cc:88] x", 97445.678901, False),
        ("[rank0]:[E102 03:04:05.715298746 ProcessGroupNCCL.cpp:607] x", 97445, False),
        ("Jan  2 03:04:05 gpu-12 kernel: x", 97445, False),
    ],
)
def test_times_in_many_formats_are_read(text: str, seconds: float, zoned: bool) -> None:
    found = moment_in(text)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert found.is_utc is zoned


@pytest.mark.parametrize("text", ["step 12:30 of 99", "2026-13-40 03:04:05", "I9942 03:04:05 x", "version 10.2.3"])
def test_other_numbers_are_not_times(text: str) -> None:
    assert moment_in(text) is None


def test_times_are_compared_over_new_year_and_not_across_kinds() -> None:
    old, new, zoned = map(moment_in, ("2026-12-31 23:59:58 x", "2027-01-01 00:00:02 x", "2026-12-31T23:59:58Z x"))
    assert seconds_between(old, new) == pytest.approx(4)
    assert seconds_between(new, old) == pytest.approx(-4)
    assert seconds_between(old, zoned) is None
    assert seconds_between(None, old) is None


# Scores on public excerpts of failed runs and on logs of healthy or unrelated ones.


FOLDER = Path(__file__).parent / "excerpts"
#: Share of excerpts with the right cause or without any, and of logs without an invented cause.
GOAL = 0.95


@pytest.fixture(scope="module")
def table() -> Table:
    """The symptom tables of the checks."""
    return load_symptoms()


def rows(name: str, key: str) -> list[dict[str, Any]]:
    """The entries of one file of excerpts."""
    return list(toml.loads((FOLDER / name).read_text("utf-8"))[key])


def is_sealed(row: dict[str, Any]) -> bool:
    """Whether an excerpt is only measured."""
    return int(hashlib.sha256(row["source"].encode()).hexdigest(), 16) % 3 == 0


FAILURES = rows("failures.toml", "excerpt")
LEARNT = [row for row in FAILURES if not is_sealed(row)]
SEALED = [row for row in FAILURES if is_sealed(row)]
HEALTHY = rows("healthy.toml", "log")


def excerpt_read(row: dict[str, Any], table: Table, folder: Path) -> Diagnosis:
    """The diagnosis of an excerpt."""
    path = folder / "run.log"
    path.write_text(row["log"])
    return diagnose([path], table, lambda _: {}, version="test")


def judged(row: dict[str, Any], found: Diagnosis) -> str:
    """`right`, `unknown` (no cause is named, and none is claimed to be absent), or `wrong`."""
    if found.cause is None:
        # 4: nothing in a short excerpt shows that it is of a training run.
        return "unknown" if found.exit_code in (3, 4) else "wrong"
    return "right" if found.cause.symptom in row["causes"] else "wrong"


@pytest.mark.parametrize("row", LEARNT, ids=lambda row: row["source"].removeprefix("https://github.com/"))
def test_a_known_excerpt_gets_its_cause_or_none(row: dict[str, Any], table: Table, tmp_path: Path) -> None:
    found = excerpt_read(row, table, tmp_path)
    assert judged(row, found) != "wrong", found.cause
    if "suspects" in row:
        assert found.suspect is not None
        assert [found.suspect.member.rank, *(other.rank for other in found.suspect.others)] == row["suspects"]


def test_known_excerpts_reach_the_goal(table: Table, tmp_path: Path) -> None:
    score = Counter(judged(row, excerpt_read(row, table, tmp_path)) for row in LEARNT)
    telling = [row for row in LEARNT if row["causes"]]
    named = sum(judged(row, excerpt_read(row, table, tmp_path)) == "right" for row in telling)
    assert len(LEARNT) >= 100
    assert score["right"] + score["unknown"] >= GOAL * len(LEARNT)
    # "Unknown" is not enough where the excerpt shows the cause.
    assert named >= 0.9 * len(telling)


def test_sealed_excerpts_reach_the_goal(table: Table, tmp_path: Path) -> None:
    score = Counter(judged(row, excerpt_read(row, table, tmp_path)) for row in SEALED)
    print(f"sealed excerpts: {score['right']} right, {score['unknown']} unknown, {score['wrong']} wrong")
    assert len(SEALED) >= 50
    assert score["right"] + score["unknown"] >= GOAL * len(SEALED)


@pytest.mark.parametrize("row", HEALTHY, ids=lambda row: row.get("how") or row["source"])
def test_a_log_without_a_failure_gets_no_cause(row: dict[str, Any], table: Table, tmp_path: Path) -> None:
    found = excerpt_read(row, table, tmp_path)
    assert found.cause is None
    assert found.exit_code in (3, 4) or (row["completed"] and found.exit_code == 0)


def test_nearly_all_completed_runs_are_recognised(table: Table, tmp_path: Path) -> None:
    completed = [row for row in HEALTHY if row["completed"]]
    assert len(HEALTHY) >= 40
    assert sum(excerpt_read(row, table, tmp_path).exit_code == 0 for row in completed) >= len(completed) - 1


def test_every_excerpt_has_an_address_or_says_how_it_was_made() -> None:
    assert len({row["source"] for row in FAILURES}) == len(FAILURES) >= 150
    assert all(row["source"].startswith("https://") for row in FAILURES)
    assert all(row.get("how") or row["source"].startswith("https://") for row in HEALTHY)


# The JSON document of a diagnosis: its schema is the committed one, and documents follow it.


KINDS = {("healthy" if case.healthy else "cause" if case.symptom else "unknown"): case for case in cases()}


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "diagnosis.schema.json").read_text()
    assert committed == json.dumps(diagnosis.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_a_document_follows_the_schema_and_is_the_same_each_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    written = to_bytes(api.diagnose([Path()]), indent=2)
    document = json.loads(written)
    jsonschema.validate(document, diagnosis.schema())
    assert document["schema_version"] == 3
    assert to_bytes(api.diagnose([Path()]), indent=2) == written
