"""Write `docs/gallery.md`: real failures, their symptoms, and what preflight reports for the smallest such job.

The jobs are those of tests/incidents; `gallery.toml` selects some of them and describes the symptoms.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from preflight._util import toml
from tests.incidents.cases import Incident, incidents
from tools import transcripts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
_SELECTION = Path(__file__).with_name("gallery.toml")
_HEAD = """\
# Real failures

The symptoms of real failures, the smallest job with the same fault, and the output of `preflight lint` for it. Written
by `make docs`; [incidents.md](incidents.md) lists all of them, including those that files alone do not show.
"""
_LANGUAGES = {".sh": "bash", ".sbatch": "bash", ".slurm": "bash", ".py": "python", ".json": "json", ".yaml": "yaml"}


@dataclass(frozen=True)
class GalleryEntry:
    title: str
    saw: str
    incident: Incident


def entries() -> list[GalleryEntry]:
    """Return the failures in gallery order. Raises KeyError if tests/incidents lacks this source and fault."""
    known = {(one.source, one.fault): one for one in incidents()}
    rows = toml.loads(_SELECTION.read_text())["shown"]
    return [GalleryEntry(row["title"], row["saw"], known[row["source"], row["fault"]]) for row in rows]


def page() -> str:
    chosen = entries()
    # One page contains the commands of all failures, so that they run together.
    script = "".join(_followable(number, one.incident) for number, one in enumerate(chosen))
    outputs = re.findall(r"```console\n(.*?)```", transcripts.followed(script), re.DOTALL)
    return _HEAD + "".join(_section(one, output) for one, output in zip(chosen, outputs, strict=True))


def _followable(number: int, incident: Incident) -> str:
    parts = [f"```sh\nmkdir -p ~/{number}; cd ~/{number}\n```\n"]
    for name, text in incident.files.items():
        body = text.removeprefix("\n")
        parts.append(f'```text title="{name}"\n{body}{"" if body.endswith(chr(10)) else chr(10)}```\n')
    return "".join(parts) + f"```console\n$ preflight lint --quiet {_folder_of(incident)}\n```\n"


def _folder_of(incident: Incident) -> str:
    return " ".join(incident.files) if incident.together else "."


def _section(one: GalleryEntry, output: str) -> str:
    source = one.incident.source
    issue = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", source)
    where = f"[{source}](https://github.com/{issue[1]}/issues/{issue[2]})" if issue else source
    parts = [f"\n## {one.title}\n\nReported in {where}. {one.saw}\n"]
    for name, text in one.incident.files.items():
        parts.append(f"\n`{name}`:\n\n```{_LANGUAGES.get(Path(name).suffix, 'text')}\n{text.strip()}\n```\n")
    return "".join(parts) + f"\npreflight says:\n\n```console\n{output}```\n"


def main() -> int:
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
