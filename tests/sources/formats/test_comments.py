"""Suppression comments."""

from __future__ import annotations

import pytest

from preflight.sources.base import SourceFile
from preflight.sources.formats import comments
from preflight.sources.formats.comments import suppressions


def found(text: str, *signs: str) -> list[tuple[int, tuple[str, ...], str]]:
    file = SourceFile("a.sh", text, "", len(text))
    read = suppressions(file, signs=signs) if signs else suppressions(file)
    return [(item.line, item.names, item.reason) for item in read]


def test_at_the_end_of_a_line() -> None:
    assert found("x\ncmd --a  # preflight: ignore[BAT001] known\n") == [(2, ("BAT001",), "known")]


def test_a_comment_alone_on_its_line_applies_to_the_next_code() -> None:
    text = "# preflight: ignore[BAT001, some-name] why not\n\n# words\n  cmd\n"
    assert found(text) == [(4, ("BAT001", "some-name"), "why not")]


def test_consecutive_comments_apply_to_the_same_code() -> None:
    text = "# preflight: ignore[A1] r\n# x\n# preflight: ignore[A2] r\na\nb # preflight: ignore[A3] r\n"
    assert [(line, names) for line, names, _ in found(text)] == [(4, ("A1",)), (4, ("A2",)), (5, ("A3",))]
    assert [line for line, _, _ in found("# preflight: ignore[A1]\n# preflight: ignore[A2]\n")] == [1, 2]


def test_thousands_of_comments_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    seen = comments._next_code
    monkeypatch.setattr(comments, "_next_code", lambda *given: looks.append(1) or seen(*given))
    most = comments._MAX_COMMENTS
    for text in ("# preflight: ignore[A1]\n" * most + "a\n", "# preflight: ignore[A1]\n" * most):
        assert [names for _, names, _ in found(text)] == [("A1",)] * most
    assert len(looks) == 2


def test_comments_beyond_the_limit_suppress_nothing() -> None:
    most = comments._MAX_COMMENTS
    *taken, last = found("# preflight: ignore[A1]\n" * (5 * most) + "a\n")
    assert len(taken) == most
    assert last == (most + 1, (), "")


def test_directives_count_as_code() -> None:
    for directive in ("#SBATCH --nodes=4", "#PBS -l select=4", "#BSUB -n 4", "#$ -pe mpi 4", "# flux: -N4"):
        assert found(f"# preflight: ignore[SLU001] r\n# more\n{directive}\n") == [(3, ("SLU001",), "r")]


def test_span_is_the_comment() -> None:
    text = "é # preflight: ignore[A1] r\r\n"
    span = suppressions(SourceFile("a.sh", text, "", 0))[0].span
    assert (span.line, span.column, span.end_column) == (1, 3, len(text) - 1)


def test_no_names_and_no_code() -> None:
    assert found("# preflight: ignore\n") == [(1, (), "")]


def test_a_comment_inside_a_string_is_text() -> None:
    assert found("x = '# preflight: ignore[A1] r'\n") == []
    assert found("x = 'a'  # preflight: ignore[A1] r\n") == [(1, ("A1",), "r")]


def test_other_comments_are_not_suppressions() -> None:
    assert found("# preflight: something else\n# ignore[A1]\n") == []


def test_json_accepts_both_comment_signs() -> None:
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
