"""Composes a configuration from texts, and converts it to plain values."""

from __future__ import annotations

from preflight.model.job import Known, OneOf, Span, Value
from preflight.sources.base import Word
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.hydra.composition import Composition, compose_config
from preflight.sources.hydra.configuration import ConfigFolders, ListSetting, Section, Setting, is_missing
from preflight.sources.hydra.overrides import Unreadable, from_word

_PLACE = Span("run.sh", 1, 1, 1, 1)


def compose(
    files: dict[str, str],
    *overrides: str,
    name: str = "config",
    incomplete: str = "",
    environment: dict[str, Value] | None = None,
) -> Composition:
    """The configuration of the files of one folder, with the overrides of a command line."""
    tree = MemoryTree({f"conf/{path}": text for path, text in files.items()})
    parsed = [from_word(Word(Known(text), _PLACE, text)) for text in overrides]
    given = [item for item in parsed if item is not None]
    return compose_config(ConfigFolders(tree, ("conf",), incomplete), name, given, environment or {})


def plain(composition: Composition) -> object:
    """The configuration as lists, dictionaries and values; `<why>` is an unknown or invalid value."""
    return _plain(composition, composition.root, ())


def _plain(composition: Composition, setting: Setting, path: tuple[str, ...]) -> object:
    if isinstance(setting, Section):
        return {key: _plain(composition, item, (*path, key)) for key, item in setting.members.items()}
    if isinstance(setting, ListSetting):
        return [_plain(composition, item, (*path, str(index))) for index, item in enumerate(setting.items)]
    if is_missing(setting):
        return "???"
    try:
        value = composition.resolver.resolved(setting, path)
    except Unreadable as error:
        return f"<{error}>"
    if isinstance(value, Section | ListSetting):
        return _plain(composition, value, path)
    if isinstance(value, Known):
        return list(value.value) if isinstance(value.value, tuple) else value.value
    return value.values if isinstance(value, OneOf) else f"<{value.why}>"


def kinds(composition: Composition) -> list[str]:
    """The kinds of Hydra's refusals."""
    return [refusal.kind for refusal in composition.refusals]
