"""What `explain` and `rules` print, on a terminal and elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.commands import rule_docs
from preflight.commands.rule_docs import explanation, listing
from preflight.plugins.authoring import HEADINGS, Check
from preflight.plugins.installed import all_items


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
    assert page.startswith("GPU001 more-processes-than-gpus\nrule: reads only files")


# The pages about rules: complete, linked, and, where committed, equal to the docstrings.


ITEMS = all_items()


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages of all rules and checks."""
    return rule_docs.pages(ITEMS)


def test_every_rule_and_check_has_its_section_with_all_headings(made: dict[str, str]) -> None:
    for item in ITEMS:
        section = made[f"{item.meta.area}.md"].partition(f"\n## {item.meta.id} {item.meta.name}\n")[2]
        section = section.partition("\n## ")[0]
        found = re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\* \S", section, re.MULTILINE)
        assert tuple(found) == (*HEADINGS, "Evidence"), item.meta.id


def test_every_link_of_the_index_leads_somewhere(made: dict[str, str]) -> None:
    links = re.findall(r"\]\(([A-Z]{3}\.md)(?:#([a-z0-9-]+))?\)", made[rule_docs.INDEX])
    assert len(links) >= len(ITEMS)
    for page, anchor in links:
        headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", made[page], re.MULTILINE)}
        assert not anchor or anchor in headings


def test_every_check_is_in_the_table_of_costs(made: dict[str, str]) -> None:
    rows = re.findall(r"^\| \[([A-Z]{3}[0-9]{3})\]", made[rule_docs.COSTS], re.MULTILINE)
    assert sorted(rows) == [item.meta.id for item in ITEMS if isinstance(item, Check)]


def test_docstrings_are_escaped(made: dict[str, str]) -> None:
    for text in made.values():
        outside = re.sub(r"`+[^`]*`+|<!--.*?-->", "", text)
        assert not re.search(r"(?<!\\)<[a-zA-Z]", outside)


def test_pages_are_written_and_old_ones_deleted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "OLD.md").write_text(made_by_us := rule_docs.pages(ITEMS[:1])[f"{ITEMS[0].meta.area}.md"])
    (tmp_path / "notes.md").write_text("mine\n")
    assert main.run(["rules", "--output", "markdown", "--to", str(tmp_path)]) == 0
    assert str(tmp_path / rule_docs.INDEX) in capfd.readouterr().out
    assert made_by_us and not (tmp_path / "OLD.md").exists()
    assert (tmp_path / "notes.md").read_text() == "mine\n"
    assert main.run(["rules", "--output", "markdown", "--to", str(tmp_path)]) == 0
    assert "is up to date" in capfd.readouterr().out
    assert main.run(["rules", "--to", str(tmp_path)]) == 2
