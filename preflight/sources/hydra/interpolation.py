"""Resolves OmegaConf's interpolations in a composed configuration: `${a.b}`, `${.c}`, `${..c}`, `${oc.env:VAR,x}`.

Source: omegaconf/grammar/OmegaConfGrammarParser.g4 and omegaconf/resolvers (omegaconf 2.3). A resolver that a program
registers itself, and what depends on time or on Hydra's own run, stays unresolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from preflight._util.budget import spend
from preflight.model.job import Known, OneOf, Plain, Unresolved, Value, alternatives, lift
from preflight.sources.given_variables import assume_not_set
from preflight.sources.hydra.configuration import (
    MISSING,
    Leaf,
    ListSetting,
    Place,
    Section,
    Setting,
    copy_setting,
    is_reference,
    split_key,
    text_of,
)
from preflight.sources.hydra.overrides import OverrideError, as_value, parse_value

#: Links of a chain of references; no configuration has more.
_MAX_DEPTH = 40
#: Primus' own form of a variable with a default, `${NNODES:2}` (primus/core/config/yaml_loader.py).
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*", re.DOTALL)
_RESOLVER = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*:(.*)", re.DOTALL)


class Unreadable(Exception):
    """An interpolation that Hydra itself cannot resolve: a cycle, a missing key, broken syntax.

    `key` is the dotted name of a key without a value, which a program may set; otherwise it is empty.
    """

    def __init__(self, message: str, *, key: str = "", is_required: bool = False) -> None:
        super().__init__(message)
        self.key = key
        #: Whether the key is `???`: somebody must give it, which a program may do.
        self.is_required = is_required


@dataclass(slots=True)
class Resolver:
    """Resolves values of one configuration.

    Args:
        root: the configuration.
        environment: variables that the program sees, as far as the files show.
        incomplete: why some keys that the program will find may be missing; empty if all keys are known.
    """

    root: Section
    environment: Mapping[str, Value] = field(default_factory=dict)
    incomplete: str = ""
    #: Keys at which a mapping meets a list, which OmegaConf does not merge.
    clashes: list[tuple[str, Place]] = field(default_factory=list)
    _active: set[tuple[str, ...]] = field(default_factory=set)

    def at(self, path: tuple[str, ...]) -> Setting | None:
        """The value at a path of keys, following references on the way; None if there is none.

        Raises:
            Unreadable: a reference on the way cannot be resolved.
        """
        found, _ = self._walk(path)
        return found

    def value(self, path: tuple[str, ...]) -> Value | None:
        """The resolved value at a path; None if there is none.

        Raises:
            Unreadable: Hydra cannot resolve it either.
        """
        found, path = self._walk(path)
        if found is None:
            return None
        resolved = self.resolved(found, path)
        if isinstance(resolved, Section):
            return Unresolved("a mapping")
        if isinstance(resolved, ListSetting):
            return self._list(resolved, path)
        return resolved

    def resolved(self, setting: Setting, path: tuple[str, ...]) -> Value | Section | ListSetting:
        """A leaf's value, or the container that it refers to.

        Raises:
            Unreadable: Hydra cannot resolve it either.
        """
        if not isinstance(setting, Leaf):
            return setting
        if not is_reference(setting):
            return setting.value
        if path in self._active or len(self._active) >= _MAX_DEPTH:
            raise Unreadable(f"`{'.'.join(path)}` refers to itself")
        self._active.add(path)
        try:
            return self._text(text_of(setting) or "", path)
        finally:
            self._active.discard(path)

    def _list(self, sequence: ListSetting, path: tuple[str, ...]) -> Value:
        items: list[Plain] = []
        for index, item in enumerate(sequence.items):
            value = self.resolved(item, (*path, str(index)))
            if isinstance(value, Unresolved):
                return value
            if not isinstance(value, Known) or isinstance(value.value, tuple):
                return Unresolved("a list of lists, mappings or alternatives")
            items.append(value.value)
        return Known(tuple(items))  # type: ignore[arg-type]

    def _walk(self, path: tuple[str, ...]) -> tuple[Setting | None, tuple[str, ...]]:
        at: Setting | None = self.root
        where: tuple[str, ...] = ()
        for key in path:
            spend()
            if isinstance(at, Leaf) and is_reference(at):
                target = self.resolved(at, where)
                at = target if isinstance(target, Section | ListSetting) else None
            if isinstance(at, Section):
                at = at.members.get(key)
            elif isinstance(at, ListSetting):
                at = at.items[int(key)] if key.isdecimal() and len(key) < 6 and int(key) < len(at.items) else None
            else:
                at = None
            if at is None:
                return None, path
            where = (*where, key)
        return at, where

    def _text(self, text: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        """The value of a string with interpolations; a single one keeps its type."""
        pieces = _pieces(text)
        if len(pieces) == 1 and pieces[0][0]:
            return self._reference(pieces[0][1], path)
        found: list[Value] = []
        for is_own, piece in pieces:
            if not is_own:
                found.append(Known(piece))
                continue
            value = self._reference(piece, path)
            if not isinstance(value, Known | OneOf | Unresolved):
                value = Unresolved("a mapping inside a string")
            found.append(value)
        return lift(lambda *parts: "".join(map(str, parts)), *found)

    def _inner(self, text: str, path: tuple[str, ...]) -> str | Unresolved:
        """The text of a key that itself contains interpolations."""
        if "${" not in text:
            return text
        value = self._text(text, path)
        if isinstance(value, Known):
            return str(value.value)
        return value if isinstance(value, Unresolved) else Unresolved("a key that depends on a branch")

    def _reference(self, inside: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        spend()
        resolver = _RESOLVER.fullmatch(inside)
        if resolver is not None and "${" not in resolver[1]:
            return self._resolver(resolver[1], resolver[2], path)
        key = self._inner(inside.strip(), path)
        if isinstance(key, Unresolved):
            return key
        return self._key(key, path)

    def _key(self, key: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        dots = len(key) - len(key.lstrip("."))
        if dots > len(path):
            raise Unreadable(f"`${{{key}}}` leads above the configuration")
        base = path[: len(path) - dots] if dots else ()
        rest = key[dots:]
        target = (*base, *split_key(rest)) if rest else base
        if target[:1] == ("hydra",):
            return Unresolved("known only while Hydra runs")
        found, where = self._walk(target)
        if found is None:
            if self.incomplete:
                return Unresolved(self.incomplete)
            raise Unreadable(f"`${{{key}}}` refers to `{'.'.join(target)}`, which does not exist", key=".".join(target))
        if text_of(found) == MISSING:
            dotted = ".".join(target)
            raise Unreadable(f"`${{{key}}}` refers to `{dotted}`, which is `???`", key=dotted, is_required=True)
        if not isinstance(found, Leaf) and where == path[: len(where)]:
            raise Unreadable(f"`${{{key}}}` refers to the mapping that contains it")
        return self.resolved(found, where)

    def _resolver(self, name: str, arguments: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        if name in ("oc.env", "env"):
            return self._variable(arguments, path)
        if name == "oc.select":
            key, _, default = arguments.partition(",")
            wanted = self._inner(key.strip(), path)
            if isinstance(wanted, Unresolved):
                return wanted
            found, where = self._walk(tuple(split_key(wanted)))
            if found is None and self.incomplete:
                return Unresolved(self.incomplete)
            if found is None or text_of(found) == MISSING:
                return self._argument(default, path)
            return self.resolved(found, where)
        if name == "oc.decode":
            bare = _unquote(arguments.strip())
            value = self._text(bare, path) if "${" in bare else Known(bare)
            return lift(_decode, value) if isinstance(value, Known | OneOf | Unresolved) else value
        if _VARIABLE.fullmatch(name):
            return self._variable(f"{name},{arguments}", path)
        return Unresolved(f"${{{name}:...}}, which the program computes")

    def _variable(self, arguments: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        name, comma, default = arguments.partition(",")
        wanted = self._inner(name.strip(), path)
        if isinstance(wanted, Unresolved):
            return wanted
        known = self.environment.get(wanted)
        if known is not None:
            return lift(str, known)
        if not comma:
            return Unresolved(f"${wanted}, which the caller sets", (wanted,))
        value = self._argument(default, path)
        if not isinstance(value, Known | OneOf):
            return value
        shown = ", ".join(map(str, alternatives(value)))
        if not assume_not_set(wanted, shown):
            return Unresolved(f"${wanted}, set by the caller, default {shown}", (wanted,))
        # The resolver returns strings, as the environment does.
        return lift(lambda item: item if item is None else str(item), value)

    def _argument(self, text: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        if not text.strip():
            return Known(None)
        if "${" not in text:
            return lift(_decode, Known(text.strip()))
        return self._text(_unquote(text.strip()), path)


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _decode(item: Plain) -> Plain:
    if not isinstance(item, str):
        return item
    try:
        value = as_value(parse_value(item))
    except OverrideError:
        return item
    found = alternatives(value)
    return found[0] if len(found) == 1 else item


def _pieces(text: str) -> list[tuple[bool, str]]:
    """The text in pieces: those inside an interpolation, and those outside.

    Raises:
        Unreadable: an interpolation is not closed.
    """
    pieces: list[tuple[bool, str]] = []
    plain = ""
    at = 0
    while at < len(text):
        if text.startswith("\\${", at):
            plain, at = plain + "${", at + 3
            continue
        if not text.startswith("${", at):
            plain, at = plain + text[at], at + 1
            continue
        depth, end = 0, at
        while end < len(text):
            if text.startswith("${", end):
                depth, end = depth + 1, end + 1
            elif text[end] == "{":
                depth += 1
            elif text[end] == "}":
                depth -= 1
                if not depth:
                    break
            end += 1
        if end >= len(text):
            raise Unreadable(f"`{text[:60]}` is not closed")
        if plain:
            pieces.append((False, plain))
        pieces.append((True, text[at + 2 : end]))
        plain, at = "", end + 1
    if plain:
        pieces.append((False, plain))
    return pieces


def merge(into: Section, other: Section, resolver: Resolver, path: tuple[str, ...] = ()) -> None:
    """Merge another mapping into one, as OmegaConf does: mappings key by key; everything else is replaced."""
    for key, new in other.members.items():
        spend()
        old = into.members.get(key)
        if isinstance(old, Leaf) and is_reference(old):
            try:
                target = resolver.resolved(old, (*path, key))
            except Unreadable:
                target = old.value
            if isinstance(target, Section | ListSetting):
                old = copy_setting(target)
                into.members[key] = old
        if isinstance(old, Section) and isinstance(new, Section):
            merge(old, new, resolver, (*path, key))
        elif old is None or text_of(new) != MISSING:
            if not isinstance(old, Leaf | None) and not isinstance(new, Leaf) and type(old) is not type(new):
                resolver.clashes.append((".".join((*path, key)), new.place))
            new.before = old
            into.members[key] = new
