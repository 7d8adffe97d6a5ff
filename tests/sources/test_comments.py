"""Suppression comments."""

from __future__ import annotations

import pytest

from preflight.sources import comments
from preflight.sources.base import SourceFile
from preflight.sources.comments import suppressions


def found(text: str, *signs: str) -> list[tuple[int, tuple[str, ...], str]]:
    file = SourceFile("a.sh", text, "", len(text))
    read = suppressions(file, signs=signs) if signs else suppressions(file)
    return [(item.line, item.names, item.reason) for item in read]


def test_at_the_end_of_a_line() -> None:
    assert found("x\ncmd --a  # preflight: ignore[BAT001] known\n") == [(2, ("BAT001",), "known")]


def test_alone_speaks_of_the_next_code() -> None:
    text = "# preflight: ignore[BAT001, some-name] why not\n\n# words\n  cmd\n"
    assert found(text) == [(4, ("BAT001", "some-name"), "why not")]


def test_one_below_the_other_they_speak_of_the_same_code() -> None:
    text = "# preflight: ignore[A1] r\n# x\n# preflight: ignore[A2] r\na\nb # preflight: ignore[A3] r\n"
    assert [(line, names) for line, names, _ in found(text)] == [(4, ("A1",)), (4, ("A2",)), (5, ("A3",))]
    assert [line for line, _, _ in found("# preflight: ignore[A1]\n# preflight: ignore[A2]\n")] == [1, 2]


def test_thousands_of_them_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    seen = comments._next_code
    monkeypatch.setattr(comments, "_next_code", lambda *given: looks.append(1) or seen(*given))
    assert (
        len(found("# preflight: ignore[A1]\n" * 5000 + "a\n")) == len(found("# preflight: ignore[A1]\n" * 5000)) == 5000
    )
    assert len(looks) == 2


def test_directives_count_as_code() -> None:
    for directive in ("#SBATCH --nodes=4", "#PBS -l select=4", "#BSUB -n 4", "#$ -pe mpi 4", "# flux: -N4"):
        assert found(f"# preflight: ignore[SLU001] r\n# more\n{directive}\n") == [(3, ("SLU001",), "r")]


def test_span_is_the_comment() -> None:
    text = "é # preflight: ignore[A1] r\r\n"
    span = suppressions(SourceFile("a.sh", text, "", 0))[0].span
    assert (span.line, span.column, span.end_column) == (1, 3, len(text) - 1)


def test_no_names_and_no_code() -> None:
    assert found("# preflight: ignore\n") == [(1, (), "")]


def test_inside_a_string_it_is_text() -> None:
    assert found("x = '# preflight: ignore[A1] r'\n") == []
    assert found("x = 'a'  # preflight: ignore[A1] r\n") == [(1, ("A1",), "r")]


def test_other_words_are_not_it() -> None:
    assert found("# preflight: something else\n# ignore[A1]\n") == []


def test_json_has_two_signs() -> None:
    text = (
        "// preflight: ignore[BAT001] a\n# words\n"
        '{"a": 1, // preflight: ignore[BAT002] b\n'
        '"b": 2 # preflight: ignore[BAT003] c\n}\n'
    )
    both = [(3, ("BAT001",), "a"), (3, ("BAT002",), "b"), (4, ("BAT003",), "c")]
    assert found(text, "//", "#") == both


def test_the_sign_of_another_language_begins_no_comment() -> None:
    assert found("x //  preflight: ignore[A1] r\n") == []
    assert found('{"url": "http:// preflight: ignore[A1] r"}\n', "//", "#") == []


def test_span_of_a_comment_with_two_slashes_starts_at_the_first() -> None:
    text = "{ // preflight: ignore[A1] r\n}\n"
    (one,) = suppressions(SourceFile("a.json", text, "", 0), signs=("//", "#"))
    assert (one.span.line, one.span.column, one.span.end_column) == (1, 3, 29)
