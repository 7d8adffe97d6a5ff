"""Pages that show commands are followed literally, and show the real output."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools import gallery, picture, transcripts
from tools.transcripts import PAGES, ROOT, Refused, followed, steps

pytestmark = pytest.mark.thorough


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
    assert there | {"docs/nodes.md", "docs/plan.md", "docs/writing-a-rule.md", "docs/writing-a-check.md"} == set(PAGES)


#: The faults planted in the files of a newcomer's page, each with the place at which the page shows it.
PLANTED = {
    "paddle-ps": (
        *("PPS003 server.sh:6:8", "PPS002 trainer.sh:8:3", "SGD006 train.py:22:5", "PDL005 train.py:16:5"),
        "PDL010 model.py:22:9",
    ),
    "sbatch-hydra": (
        *("WLD001 train.sbatch:15:34", "HYD001 train.sbatch:15:54", "SLU002 train.sbatch:15:6"),
        *("SLU007 train.sbatch:11:1", "HYD002 conf/model/vit.yaml:4:5"),
    ),
    "deepspeed-accelerate": (
        *("ACC004 configs/two_nodes.yaml:7:3", "ACC007 configs/two_nodes.yaml:13:18", "DSP001 configs/zero3.json:9:5"),
        *("RDV001 configs/two_nodes.yaml:10:18", "BAT003 finetune.py:16:59", "TRN002 finetune.py:28:13"),
    ),
    "kubernetes-platform": (
        *("KUB001 pretrain.yaml:23:68", "KUB015 pretrain.yaml:30:50", "KUB023 pretrain.yaml:23:68"),
        *("KUB024 namespace.yaml:16:7", "KUB060 pretrain.yaml:7:32"),
    ),
    "cluster-admin": (
        "ACM201 local0",
        *(f"NOD005 command line:1:{column}" for column in (17, 35, 56, 81)),
        "ACM001 examples/megatron-slurm/good/pretrain_gpt.sbatch:3:9",
    ),
    "notebook": (
        *("CFG008 finetune.ipynb:75:1", "DAT002 finetune.ipynb:57:71", "GPU001 finetune.ipynb:110:16"),
        *("LCH020 finetune.ipynb:110:7", "PRT001 finetune.ipynb:110:35", "DAT001 finetune.ipynb:56:15"),
        *("ENV001 finetune.ipynb:27:11", "GPU001 finetune.ipynb:75:51"),
    ),
    "failing-job": (
        *("DAT002 train.py:18:71", "TRN002 train.py:28:13", "CKP002 train.py:25:9", "DAT001 train.py:17:15"),
        "ENV001 run.sh:4:8",
    ),
}


@pytest.mark.parametrize("page", PLANTED)
def test_a_newcomers_page_finds_every_planted_fault_at_its_place(page: str) -> None:
    text = (ROOT / "docs" / "start" / f"{page}.md").read_text()
    assert len(PLANTED[page]) >= 5
    for planted in PLANTED[page]:
        code, place = planted.split(" ", 1)
        concise = re.escape(place) + r": (?:error|warning)\[" + code + r"\]"
        full = r"(?:error|warning)\[" + code + r"\] [^\n]*\n(?:  [^\n]*\n)+?  --> " + re.escape(place) + r"\n"
        assert re.search(rf"^(?:{concise}|{full})", text, re.MULTILINE), planted


def test_output_is_inserted_and_state_persists() -> None:
    page = (
        '```toml title="a/b.toml"\nx = 1\n```\n```sh\ncd a\nname=b.toml\n```\n'
        "```console\n$ cat $name\nold\n$ false\n$ echo $? \\\n  and more\n```\n```text\nnot run\n```\n"
    )
    assert "```console\n$ cat $name\nx = 1\n$ false\n$ echo $? \\\n  and more\n1 and more\n```" in followed(page)


def test_a_failing_command_is_an_error() -> None:
    with pytest.raises(Refused, match="`ls /no/such` ended with 2"):
        followed("```sh\nls /no/such\n```\n")
    with pytest.raises(Refused, match="ended early"):
        followed("```sh\nexit 0\n```\n")


def test_a_hanging_page_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "DEADLINE_S", 0.3)
    with pytest.raises(Refused, match=r"more than 0\.3 s"):
        followed("```sh\nsleep 20\n```\n")


def test_the_gallery_is_current() -> None:
    assert gallery.PAGE.read_text() == gallery.page(), "write it anew: make docs"
    assert len(gallery.entries()) >= 12


def test_the_picture_is_current() -> None:
    svg = picture.PICTURE.read_text()
    ElementTree.fromstring(svg)
    ran = ["$", *picture.COMMAND.split(), *picture.plain().split()]
    assert picture.picture_words(svg) == ran, "draw it anew: make docs"
