"""Write `docs/pictures/lint.svg`: a real run in a terminal, as README shows it.

The picture contains the text that the command prints today, with its colours, and refers to no font that would have to
be fetched.
"""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "lint.svg"
COLUMNS = 100
#: The command, run in the top folder of the repository.
COMMAND = "preflight lint --quiet examples/megatron-slurm/broken --select WLD,ENV"
_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"


def command_output() -> str:
    """Return the output of the command in a terminal with colours."""
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND.split(), "--color"],
        cwd=ROOT,
        env={**environment, "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 1:
        raise RuntimeError(f"{COMMAND} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def plain() -> str:
    """Return the output without colours."""
    return Text.from_ansi(command_output()).plain


def picture() -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), COMMAND))
    console.print(Text.from_ansi(command_output().rstrip("\n")))
    drawn = console.export_svg(title="preflight", theme=DIMMED_MONOKAI, unique_id="preflight")
    return _FACE.sub("", drawn).replace("Fira Code, monospace", _FONTS).rstrip() + "\n"


def picture_words(svg: str) -> list[str]:
    """Return the words of a picture, for comparison with those of a run."""
    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text class="preflight-r\d+"[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return " ".join(rows[y] for y in sorted(rows)).split()


def main() -> int:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
