"""What `explain` and `rules` print, on a terminal and elsewhere."""

from __future__ import annotations

import pytest

from preflight.explain import everything, explanation, listing


@pytest.mark.parametrize("width", [30, 80, 200])
def test_on_a_terminal_no_line_is_wider_and_no_word_is_lost(width: int) -> None:
    for item in everything()[:20]:
        plain, filled = explanation(item.meta.id), explanation(item.meta.id, width=width)
        assert plain.split() == filled.split()
        for line in filled.split("\n")[1:]:
            assert len(line) <= width or " " not in line.strip(), line
    assert listing("text").split() == listing("text", width=width).split()


def test_elsewhere_and_where_there_is_room_a_rule_has_one_line() -> None:
    assert listing("text") == listing("text", width=1000)
    assert len(listing("text").splitlines()) == len(everything())


def test_paragraphs_and_headings_stay_apart() -> None:
    page = explanation("GPU001", width=60)
    assert "\n\nWhat it checks:\n    Processes per node are" in page
    assert page.startswith("GPU001 more-processes-than-gpus\nrule: reads files only")
