"""The pages about rules: complete, linked, and, where committed, equal to the docstrings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.commands import rule_docs
from preflight.config.resolve import all_items
from preflight.plugins.authoring import HEADINGS, Check

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
