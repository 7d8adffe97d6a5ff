"""The pages about rules: complete, linked, and equal to what the docstrings say where they are committed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from preflight import cli, pages
from preflight.explain import everything
from preflight.judgement import HEADINGS, Check

COMMITTED = Path(__file__).parent.parent / "docs" / "rules"
ITEMS = everything()


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages of everything there is."""
    return pages.pages(ITEMS)


def test_every_rule_and_check_has_its_section_with_all_headings(made: dict[str, str]) -> None:
    for item in ITEMS:
        section = made[f"{item.meta.area}.md"].partition(f"\n## {item.meta.id} {item.meta.name}\n")[2]
        section = section.partition("\n## ")[0]
        found = re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\* \S", section, re.MULTILINE)
        assert tuple(found) == HEADINGS, item.meta.id


def test_every_link_of_the_index_leads_somewhere(made: dict[str, str]) -> None:
    links = re.findall(r"\]\(([A-Z]{3}\.md)(?:#([a-z0-9-]+))?\)", made[pages.INDEX])
    assert len(links) >= len(ITEMS)
    for page, anchor in links:
        headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", made[page], re.MULTILINE)}
        assert not anchor or anchor in headings


def test_every_check_stands_in_the_table_of_costs(made: dict[str, str]) -> None:
    rows = re.findall(r"^\| \[([A-Z]{3}[0-9]{3})\]", made[pages.COSTS], re.MULTILINE)
    assert sorted(rows) == [item.meta.id for item in ITEMS if isinstance(item, Check)]


def test_nothing_in_a_docstring_is_taken_for_markup(made: dict[str, str]) -> None:
    for text in made.values():
        outside = re.sub(r"`+[^`]*`+|<!--.*?-->", "", text)
        assert not re.search(r"(?<!\\)<[a-zA-Z]", outside)


def test_pages_are_written_and_old_ones_taken_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "OLD.md").write_text(made_by_us := pages.pages(ITEMS[:1])[f"{ITEMS[0].meta.area}.md"])
    (tmp_path / "notes.md").write_text("mine\n")
    assert cli.run(["rules", "--output", "markdown", "--to", str(tmp_path)]) == 0
    assert str(tmp_path / pages.INDEX) in capfd.readouterr().out
    assert made_by_us and not (tmp_path / "OLD.md").exists()
    assert (tmp_path / "notes.md").read_text() == "mine\n"
    assert cli.run(["rules", "--output", "markdown", "--to", str(tmp_path)]) == 0
    assert "is up to date" in capfd.readouterr().out
    assert cli.run(["rules", "--to", str(tmp_path)]) == 2


@pytest.mark.skipif(not (COMMITTED / pages.INDEX).exists(), reason="the pages are not committed")
def test_the_committed_pages_are_the_generated_ones(made: dict[str, str]) -> None:
    committed = {path.name: path.read_text() for path in COMMITTED.glob("*.md")}
    assert committed == made, "a docstring changed: run `make docs`"
