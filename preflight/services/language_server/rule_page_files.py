"""The page of each rule as a file in the user's cache directory, for the link of a diagnostic.

The pages are those of `preflight rules -o markdown`; an editor opens the file at once, with no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from preflight import __version__
from preflight._util.cache import default_folder, is_outside
from preflight.commands import rule_pages
from preflight.config.names import declared_by
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule
from preflight.services.language_server.uris import uri_of


class RulePages:
    """The pages, written when the first link is needed.

    Args:
        roots: folders of the editor; nothing is written inside them.
        site_rules: files of rules that the user named.
        folder: where they are written; by default in the user's cache directory.
    """

    def __init__(self, roots: Sequence[Path], site_rules: tuple[Path, ...] = (), folder: Path | None = None) -> None:
        base = folder or default_folder()
        usable = base is not None and all(is_outside(base, root) for root in roots)
        self._folder = base / f"rules-{__version__}" if base is not None and usable else None
        self._site_rules = site_rules
        self._uris: dict[str, str] | None = None

    def uri(self, id: str) -> str:
        """The URI of the page of a rule; empty if it cannot be written."""
        if self._uris is None:
            self._uris = self._write()
        return self._uris.get(id, "")

    def _write(self) -> dict[str, str]:
        if self._folder is None:
            return {}
        items: list[Rule | Check] = list(registry.rules())
        if self._site_rules:
            from preflight.plugins.site.loader import load

            items += declared_by(load(self._site_rules))
        # Another version of a pack has other pages; servers of several editors must not undo each other's.
        state = hashlib.sha256(repr(sorted((item.meta.id, item.meta.doc) for item in items)).encode()).hexdigest()
        folder = self._folder.with_name(f"{self._folder.name}-{state[:12]}")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            rule_pages.write(folder, items)
        except OSError:
            return {}
        return {
            item.meta.id: f"{uri_of(folder / f'{item.meta.area}.md')}#{item.meta.id.lower()}-{item.meta.name}"
            for item in items
        }
