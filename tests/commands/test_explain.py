"""What `explain` and `rules` print, on a terminal and elsewhere."""

from __future__ import annotations

import pytest

from preflight.commands.rule_docs import explanation, listing
from preflight.config.resolve import all_items


@pytest.mark.parametrize("width", [30, 80, 200])
def test_lines_are_wrapped_to_the_terminal_without_losing_words(width: int) -> None:
    for item in all_items()[:20]:
        plain, filled = explanation(item.meta.id), explanation(item.meta.id, width=width)
        assert plain.split() == filled.split()
        for line in filled.split("\n")[1:]:
            assert len(line) <= width or " " not in line.strip(), line
    assert listing("text").split() == listing("text", width=width).split()


def test_a_rule_has_one_line_if_it_fits() -> None:
    assert listing("text") == listing("text", width=1000)
    assert len(listing("text").splitlines()) == len(all_items())


def test_paragraphs_and_headings_are_separate() -> None:
    page = explanation("GPU001", width=60)
    assert "\n\nWhat it checks: Processes per node are" in page
    assert page.startswith("GPU001 more-processes-than-gpus\nrule: reads files only")
