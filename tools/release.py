"""Make a release: `make release VERSION=0.2.0`, which is `python -m tools.release 0.2.0`.

The version is set in its one place and where pages and templates pin it, the changelog gets its date, and both are
committed and tagged. Nothing is pushed: pushing the tag starts `.github/workflows/release.yml`.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
#: The file with the version itself, and those that tell users to install exactly this one.
SOURCE = "preflight/__init__.py"
PINS = ("integrations/gitlab/preflight.gitlab-ci.yml", "docs/start/ci.md", "docs/integrations.md", "README.md")
CHANGELOG = "CHANGELOG.md"
_VERSION = re.compile(r'^__version__ = "([^"\n]+)"$', re.MULTILINE)
_UNRELEASED = re.compile(r"^## (\S+) \(unreleased\)$", re.MULTILINE)
_SECTION = re.compile(r"^## ", re.MULTILINE)


class Refused(Exception):
    """The release cannot be made; the message gives the reason and the remedy."""


def current_version(root: Path) -> str:
    found = _VERSION.search((root / SOURCE).read_text())
    if found is None:
        raise Refused(f'{SOURCE} has no line `__version__ = "..."`')
    return found[1]


def release(root: Path, version: str, date: datetime.date) -> str:
    """Change, commit and tag; return the tag.

    Raises Refused if the version is not newer, the tree has changes, or the changelog has nothing to release.
    """
    old = current_version(root)
    text = (root / CHANGELOG).read_text()
    open_section = _UNRELEASED.search(text)
    _check_version(version, old, unreleased=open_section[1] if open_section is not None else "")
    if open_section is None:
        raise Refused(f"{CHANGELOG} has no section `## {version} (unreleased)`; add one that lists the changes")
    notes = _SECTION.split(text[open_section.end() :])[0].strip()
    if not notes:
        raise Refused(f"the section {open_section[0][3:]} of {CHANGELOG} is empty")
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise Refused(f"the tree has changes; commit or discard them first:\n{changed}")
    tag = f"v{version}"
    if _git(root, "tag", "--list", tag):
        raise Refused(f"the tag {tag} already exists")
    heading = f"## {version} ({date.isoformat()})"
    (root / CHANGELOG).write_text(text[: open_section.start()] + heading + text[open_section.end() :])
    source = (root / SOURCE).read_text()
    (root / SOURCE).write_text(_VERSION.sub(f'__version__ = "{version}"', source))
    for name in PINS:
        if (root / name).exists():
            _set_pins(root / name, old, version)
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", f"Release {version}")
    _git(root, "tag", "--annotate", tag, "--cleanup=verbatim", "--message", f"preflight {version}\n\n{notes}\n")
    return tag


def _check_version(version: str, old: str, *, unreleased: str) -> None:
    try:
        wanted = Version(version)
    except InvalidVersion:
        raise Refused(f"{version!r} is not a version; expected digits and dots, as in 0.2.0") from None
    if str(wanted) != version:
        raise Refused(f"{version!r} is written {str(wanted)!r}")
    # The version of the tree counts as released once the changelog has a date for it.
    if wanted < Version(old) or (wanted == Version(old) and unreleased != old):
        raise Refused(f"{version} is not later than {old}, the version of {SOURCE}")


def _set_pins(path: Path, old: str, new: str) -> None:
    """Replace the version in `preflight-train==` and `preflight@v`."""
    text = path.read_text()
    path.write_text(re.sub(rf"(preflight-train==|/preflight@v){re.escape(old)}(?![\w.]*\d)", rf"\g<1>{new}", text))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Refused(f"`git {words[0]}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", help="the version to release, such as 0.2.0")
    given = parser.parse_args()
    try:
        tag = release(ROOT, given.version, datetime.datetime.now(datetime.timezone.utc).date())
    except Refused as why:
        print(f"not released: {why}", file=sys.stderr)
        return 1
    print(f"committed and tagged {tag}; to publish it: git push origin HEAD {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
