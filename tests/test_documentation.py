"""The configurations in README and docs are valid, and every option they name exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from preflight import api
from preflight._util.toml import parse as loads
from preflight.cli import main
from preflight.commands import rule_docs
from preflight.config.document import Settings, validated
from preflight.config.resolve import Choices, all_items
from preflight.plugins.site.loader import parse

ROOT = Path(__file__).parent.parent
PAGES = {
    name: (ROOT / name).read_text()
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in ("configuration", "formats", "using", "reads", "integrations")),
    )
}


def blocks(page: str) -> list[str]:
    """The TOML blocks of a page."""
    return re.findall(r"^```toml\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def options_of(command: click.Command) -> set[str]:
    """Every option of a command and of those below it."""
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        found |= options_of(inner)
    return found


def test_the_shown_configuration_is_valid(tmp_path: Path) -> None:
    (block,) = blocks("docs/using.md")
    (tmp_path / "preflight.toml").write_text(block)
    chosen = api.configure(Choices(file=tmp_path / "preflight.toml"), [tmp_path]).configuration
    assert chosen.waivers[0].owner == "fabric"


def test_the_documented_site_rule_and_check_are_valid() -> None:
    rule, check = blocks("docs/configuration.md")
    assert parse(rule, "site.toml").rules[0].when[0].about == "launch"
    assert parse(check, "site.toml").checks[0].command == ("mountpoint", "-q", "/scratch")


@pytest.mark.parametrize("page", PAGES)
def test_every_named_option_exists(page: str) -> None:
    named = set(re.findall(r"(?<![\w/-])--[a-z][a-z-]+", re.sub(r"```yaml.*?```", "", PAGES[page], flags=re.DOTALL)))
    # Options of other programs: launchers in quoted reports, sbatch, kubectl, podman.
    named -= {"--data-binary", "--nnodes", "--nodes", "--job-name", "--namespace", "--network", "--rm", "--ignorefile"}
    named -= {"--from"}
    assert named - options_of(main.cli) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    # The pages about rules and checks are built, not committed.
    built = {ROOT / "docs" / "rules" / name for name in rule_docs.pages(all_items())}
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", PAGES[page]):
        path = ((ROOT / page).parent / target).resolve()
        assert path in built or path.exists(), target


def test_readme_is_short_and_links_every_audience() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 75
    led_to = set(re.findall(r"\]\(docs/([^)#]+)", PAGES["README.md"]))
    assert {f"start/{path.name}" for path in (ROOT / "docs" / "start").glob("*.md")} <= led_to


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"`([a-z-]+)`", PAGES["docs/configuration.md"]))
    assert {item.name for item in fields(Settings)} <= {key.replace("-", "_") for key in documented}
    assert isinstance(validated(loads("")), Settings)


def test_shell_completion_works(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_PREFLIGHT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "preflight lint --stat")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main.run([])
    assert "--statistics" in capfd.readouterr().out


def test_the_hook_runs_an_existing_command() -> None:
    import yaml

    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    *command, verb = hook["entry"].split()
    assert (command, verb in main.cli.commands, hook["pass_filenames"]) == (
        ["python", "-I", "-m", "preflight"],
        True,
        False,
    )
