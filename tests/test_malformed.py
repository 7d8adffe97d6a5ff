"""Malformed input of every kind: a located finding or `unknown`, exit code 3 at most, never a traceback."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight import api
from preflight._util import toml
from preflight.engine.report import to_json
from preflight.model.job import Known
from preflight.plugins import registry
from preflight.sources.base import Reading, Source, SourceFile
from preflight.sources.formats.tree import MemoryTree
from tests.samples import SAMPLES, Sample
from tests.suite.effort import THOROUGH, examples

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

GOOD_JSON = '{\n  "train_batch_size": 64,\n  "train_micro_batch_size_per_gpu": 4\n}\n'
LAUNCH = "#!/bin/bash\ndeepspeed --hostfile hostfile train.py --deepspeed_config ds_config.json\n"
HOSTS = "node1 slots=4\nnode2 slots=4\n"
#: Bytes of the over-sized file; the reader's limit is 10 MiB.
LARGE = 11 * 1024 * 1024


def make_job(folder: Path) -> None:
    (folder / "run.sh").write_text(LAUNCH)
    (folder / "hostfile").write_text(HOSTS)
    (folder / "ds_config.json").write_text(GOOD_JSON)
    (folder / "train.py").write_text("import deepspeed\n\ndeepspeed.init_distributed()\n")


def truncated(path: Path) -> None:
    path.write_text(path.read_text()[: len(path.read_text()) // 2])


def tabs(path: Path) -> None:
    path.write_text("\t" + path.read_text().replace("\n", "\n\t").replace(" ", "\t"))


def placeholders(path: Path) -> None:
    path.write_text("{{ header }}\n" + path.read_text().replace("4", "{{ slots }}"))


def nul_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10] + b"\0\0\0" + path.read_bytes()[10:])


def oversized(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"\n" + b"# filler\n" * (LARGE // 9))


def link_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def unreadable(path: Path) -> None:
    # Root can read every file, so an unreadable file is simulated by something that is not a file.
    path.unlink()
    os.mkfifo(path)


def latin(path: Path) -> None:
    path.write_bytes("# Größe\n".encode("latin-1") + path.read_bytes())


def windows_lines(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def empty(path: Path) -> None:
    path.write_text("")


HARMFUL = [truncated, nul_bytes, oversized, link_loop, unreadable]
HARMLESS = [tabs, placeholders, latin, windows_lines, empty]
FILES = ["run.sh", "hostfile", "ds_config.json", "train.py"]
#: Files that are independent of the job above.
OTHERS: dict[str, str] = toml.beside(__file__, "malformed.toml")


def lint(folder: Path, *names: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of linting these files of `folder`; an exception would be a traceback."""
    report = api.lint([folder / name for name in names], root=folder)
    return report.exit_code, json.loads(to_json(report))


def pairs(names: Iterable[str]) -> list[ParameterSet]:
    """Each kind of file with each damage; the gate tries two for each kind, and each of them on several kinds."""
    damages = [*HARMFUL, *HARMLESS]
    numbered = [
        (place - number, name, damage) for number, name in enumerate(names) for place, damage in enumerate(damages)
    ]
    return [
        pytest.param(name, damage, marks=() if turn % 5 == 0 else THOROUGH, id=f"{damage.__name__}-{name}")
        for turn, name, damage in numbered
    ]


def holds_up(folder: Path, *names: str) -> None:
    """Lint ends with a verdict of its own over these files."""
    code, report = lint(folder, *names)
    assert code in (0, 1, 3, 4)
    assert "is a bug" not in json.dumps(report)
    assert not report["coverage"]["broken"]


@pytest.mark.parametrize(("name", "damage"), pairs(FILES))
def test_damaged_files_cause_no_traceback(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    make_job(tmp_path)
    damage(tmp_path / name)
    holds_up(tmp_path, "run.sh", name)


@pytest.mark.parametrize(("name", "damage"), pairs(OTHERS))
def test_damaged_other_files_cause_no_traceback(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    (tmp_path / name).write_text(OTHERS[name])
    damage(tmp_path / name)
    holds_up(tmp_path, name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [nul_bytes, oversized, link_loop, unreadable])
def test_an_unreadable_selected_input_is_reported(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    make_job(tmp_path)
    damage(tmp_path / name)
    code, report = lint(tmp_path, name)
    told = [finding["locations"][0]["path"] for finding in report["findings"]]
    unknown_outcomes = [outcome["subject"] for outcome in report["coverage"]["unknown_outcomes"] if outcome["required"]]
    assert name in told + unknown_outcomes
    assert code in (1, 3)


def test_a_missing_reference_is_reported_with_its_location(tmp_path: Path) -> None:
    make_job(tmp_path)
    truncated(tmp_path / "ds_config.json")
    code, report = lint(tmp_path, "run.sh")
    places = [(f["locations"][0]["path"], f["locations"][0]["line"]) for f in report["findings"]]
    assert any(path == "ds_config.json" and line >= 1 for path, line in places), report["findings"]
    assert code == 1


def test_nothing_outside_the_root_is_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    make_job(inside)
    secret = tmp_path / "outside.json"
    secret.write_text('{"train_batch_size": 7777}')
    (inside / "ds_config.json").unlink()
    (inside / "ds_config.json").symlink_to(secret)
    _, report = lint(inside, "run.sh")
    assert "7777" not in json.dumps(report)


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    make_job(tmp_path / "real")
    link = tmp_path / "link"
    link.symlink_to("real")
    for path in (link, link / "run.sh"):
        report = api.lint([path], root=link)
        assert [file.path for file in report.inputs] == ["ds_config.json", "hostfile", "run.sh", "train.py"]


# Every source of the pack, by its sample: a new one joins by having one.

SOURCES: dict[str, Source] = {source.name: source for source in registry.sources() if source.name in SAMPLES}
EACH = pytest.mark.parametrize("name", sorted(SAMPLES))


def file_of(sample: Sample, text: str | bytes) -> tuple[SourceFile, MemoryTree] | None:
    tree = MemoryTree({**sample.beside, sample.path: text})
    file = tree.read(sample.path)
    return (file, tree) if isinstance(file, SourceFile) else None


def read(name: str, text: str | bytes) -> Reading | None:
    """The source's claims about a file, even one that it would not recognise: other files may refer to it."""
    found = file_of(SAMPLES[name], text)
    if found is None:
        return None
    source = SOURCES[name]
    source.recognises(found[0])
    return source.read(*found, role=next(iter(getattr(source, "roles", ())), ""))


def test_every_source_reads_its_sample() -> None:
    assert {source.name for source in registry.sources()} == set(SAMPLES)
    for name, sample in SAMPLES.items():
        found = file_of(sample, sample.text)
        assert found is not None
        assert next(source for source in registry.sources() if source.recognises(found[0])).name == name
        reading = SOURCES[name].read(*found)
        assert any(isinstance(claim.value, Known) for claim in reading.claims), name
        assert len(sample.large(10_000)) >= 9_000


@pytest.mark.parametrize(("name", "damage"), pairs(sorted(SAMPLES)))
def test_damage_to_any_kind_of_file_causes_no_traceback(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    sample = SAMPLES[name]
    for path, text in {**sample.beside, sample.path: sample.text}.items():
        (tmp_path / path).write_text(text)
    damage(tmp_path / sample.path)
    holds_up(tmp_path, sample.path)


def mutations(text: str) -> st.SearchStrategy[str]:
    """The text with pieces cut out, duplicated, moved, or replaced by invalid syntax."""
    odd = ["{{ x }}", "${", "$(", "`", '"', "'", "\\", "\x00", "\r", "\t", "<<EOF", "[", "}", ":", "- ", "#"]
    odd += ["é", "\ud800", "&a", "*a"]
    places = st.integers(0, len(text))
    step = st.one_of(
        st.tuples(st.just("cut"), places, places),
        st.tuples(st.just("twice"), places, places),
        st.tuples(st.just("put"), places, st.sampled_from(odd)),
        st.tuples(st.just("number"), places, st.sampled_from(["0", "-1", "9" * 30, "1e309", "nan", "0x10"])),
    )

    def apply(steps: list[Any]) -> str:
        found = text
        for kind, at, more in steps:
            if kind in ("put", "number"):
                found = found[:at] + more + found[at:]
            else:
                start, end = sorted((at, more))
                found = found[:start] + (found[start:end] * 2 if kind == "twice" else "") + found[end:]
        return found

    return st.lists(step, min_size=1, max_size=6).map(apply)


@EACH
@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_files_give_valid_readings(name: str, data: st.DataObject) -> None:
    text = data.draw(mutations(SAMPLES[name].text))
    reading = read(name, text.encode("utf-8", "replace"))
    if reading is None:
        return
    lines = text.encode("utf-8", "replace").decode().split("\n")
    for item in (*reading.claims, *reading.notes, *reading.references):
        if item.span.path == SAMPLES[name].path:
            assert 1 <= item.span.line <= len(lines) and item.span.column >= 1, item


@THOROUGH
@EACH
def test_reading_takes_linear_time(name: str) -> None:
    characters = 50_000

    def took(characters: int, enough_s: float = 0.0) -> float:
        """The best of three times, or the first one that is short enough."""
        text, best = SAMPLES[name].large(characters), 1e9
        # The garbage collector would repeatedly scan objects of other tests in this process.
        gc.disable()
        try:
            for _ in range(3):
                began = time.process_time()
                read(name, text)
                best = min(best, time.process_time() - began)
                if best < enough_s:
                    break
        finally:
            gc.enable()
        return best

    small = took(characters)
    # Eight times the size: linear is 8, quadratic 64; a constant cost is also allowed.
    most = 24 * small + 0.1
    assert took(8 * characters, most) < most, small
