"""Pages that show commands are followed literally, and what they show is what is printed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tools import gallery, picture, transcripts
from tools.transcripts import PAGES, ROOT, Refused, followed, steps


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str) -> None:
    text = (ROOT / page).read_text()
    assert followed(text) == text, "write it anew: make docs"


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_something_to_follow(page: str) -> None:
    commands = [step.command for step in steps((ROOT / page).read_text()) if step.command]
    assert any(command.startswith("preflight ") for command in commands)


def test_every_page_for_an_audience_is_followed() -> None:
    there = {f"docs/start/{path.name}" for path in (ROOT / "docs" / "start").glob("*.md")}
    assert there | {"docs/writing-a-rule.md", "docs/writing-a-check.md"} == set(PAGES)


def test_output_is_put_in_and_lasting_things_last() -> None:
    page = (
        '```toml title="a/b.toml"\nx = 1\n```\n```sh\ncd a\nname=b.toml\n```\n'
        "```console\n$ cat $name\nold\n$ false\n$ echo $? \\\n  and more\n```\n```text\nnot run\n```\n"
    )
    assert "```console\n$ cat $name\nx = 1\n$ false\n$ echo $? \\\n  and more\n1 and more\n```" in followed(page)


def test_a_command_that_fails_is_no_page() -> None:
    with pytest.raises(Refused, match="`ls /no/such` ended with 2"):
        followed("```sh\nls /no/such\n```\n")
    with pytest.raises(Refused, match="ended early"):
        followed("```sh\nexit 0\n```\n")


def test_a_page_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "DEADLINE_S", 0.3)
    with pytest.raises(Refused, match=r"more than 0\.3 s"):
        followed("```sh\nsleep 20\n```\n")


def test_the_gallery_is_what_is_said_today() -> None:
    assert gallery.PAGE.read_text() == gallery.page(), "write it anew: make docs"
    assert len(gallery.shown()) >= 12


def test_the_picture_shows_what_is_printed_today() -> None:
    svg = picture.PICTURE.read_text()
    ElementTree.fromstring(svg)
    ran = ["$", *picture.COMMAND.split(), *picture.plain().split()]
    assert picture.words(svg) == ran, "draw it anew: make docs"
