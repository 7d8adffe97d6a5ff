"""Hooks of the site generator: links that leave docs/, folders in the navigation, and pages made of code.

Pages link to files of the repository (`../examples/...`). The site does not contain the repository, so such files
become pages below `files/`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from preflight.commands import rule_docs
from preflight.plugins.installed import all_items
from tools import reference

ROOT = Path(__file__).resolve().parent.parent
#: The folder of the site for files from outside docs/.
OUTSIDE = "files"
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)")
_LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_LAST = "More"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages about rules, expand folders of the navigation, and append pages that it does not name."""
    docs = Path(config.docs_dir)
    if docs == ROOT / "docs":
        rule_docs.write(docs / "rules", all_items())
    named: set[str] = set()
    config.nav = [_written_out(item, docs, named) for item in config.nav or ()]
    others = sorted({path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - named)
    if others:
        config.nav.append({_LAST: others})
    return config


def _written_out(item: Any, docs: Path, named: set[str]) -> Any:
    """Return an entry of the navigation, with folders replaced by their pages."""
    if isinstance(item, dict):
        ((title, inner),) = item.items()
        if isinstance(inner, list):
            return {title: [_written_out(one, docs, named) for one in inner]}
        return {title: _written_out(inner, docs, named)}
    if not item.endswith("/"):
        named.add(item)
        return item
    pages = sorted(path.relative_to(docs).as_posix() for path in (docs / item).glob("*.md"))
    pages.sort(key=lambda page: not page.endswith("/README.md"))
    named.update(pages)
    return pages


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the reference, and a page for each file outside docs/ that pages link to, directly or through other files."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    waiting = [("docs/" + file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        path, text = waiting.pop()
        for target in _targets(path, text):
            if _outside(target) and files.get_file_from_path(_page_of(target)) is None and (ROOT / target).exists():
                shown = _shown(ROOT / target, target)
                files.append(File.generated(config, _page_of(target), content=shown))
                waiting.append((target, shown))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ into links to their pages."""
    here = page.file.src_uri
    written_in = here[len(OUTSIDE) + 1 : -len(".md")] if here.startswith(OUTSIDE + "/") else "docs/" + here

    def led(match: re.Match[str]) -> str:
        target = _resolved(written_in, match[2])
        to = _page_of(target) if _outside(target) else target[len("docs/") :]
        return match[1] + posixpath.relpath(to, posixpath.dirname(here) or ".")

    return _outside_of_code(markdown, lambda text: _LINK.sub(led, text))


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with everything outside its fenced blocks changed."""
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def _targets(path: str, text: str) -> Iterator[str]:
    for match in _LINK.finditer(_FENCE.sub("", text)):
        yield _resolved(path, match[2])


def _resolved(path: str, link: str) -> str:
    """Return the target of a link on the page at `path`, relative to the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _outside(target: str) -> bool:
    return not target.startswith("docs/")


def _page_of(target: str) -> str:
    return f"{OUTSIDE}/{target}.md"


def _shown(path: Path, name: str) -> str:
    """Return a file as a page: Markdown unchanged, anything else as code; a folder as all of its files."""
    if path.suffix == ".md":
        return path.read_text()
    if path.is_file():
        return f"# `{name}`\n\n{_code(path)}"
    inner = sorted(one for one in path.rglob("*") if one.is_file() and "__pycache__" not in one.parts)
    return f"# `{name}`\n\n" + "\n".join(f"## `{one.relative_to(path)}`\n\n{_code(one)}" for one in inner)


def _code(path: Path) -> str:
    return f"````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n"
