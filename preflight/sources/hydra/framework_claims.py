"""States the claims of a composed configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Scope, Span, Strength, Unresolved, Value, lift, product
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.sources.hydra.configuration import (
    Framework,
    Key,
    Leaf,
    ListSetting,
    Place,
    Setting,
    is_missing,
    is_reference,
    leaves,
    split_key,
)
from preflight.sources.hydra.interpolation import Unreadable
from preflight.sources.hydra.run_config import RunConfig

_SOURCE = "config"
#: More settings than this are not stated.
_MAX_SETTINGS = 2000


def claims_of(run: RunConfig, scope: Scope, condition: str, at: Span, spelling: str) -> tuple[Claim, ...]:
    """The claims of a configuration.

    Args:
        run: the configuration.
        scope: the scope of the claims.
        condition: the branch in which they hold.
        at: the location of claims about the framework's defaults, which are in no file.
        spelling: the text at that location.
    """
    framework = run.framework
    found: list[Claim] = []
    if framework is not None:
        found.append(Claim("training_framework", Known(framework.name), at, spelling, _SOURCE, scope, Strength.DEFAULT))
        if run.is_variant:
            variant = Claim("framework_variant", Known(True), at, spelling, _SOURCE, scope)
            found.append(variant)
        for key in framework.keys:
            found.extend(_key_claims(run, framework, key, scope, at, spelling))
        if framework.starts_ranks:
            found.extend(_world(found, scope))
        if framework.has_settings and not run.is_variant:
            found.extend(_settings(run, framework, scope, at, spelling))
    if run.by_hydra:
        found.extend(_refusal_claims(run, scope, at, spelling))
    return tuple(replace(claim, condition=condition) for claim in found)


def _settings(run: RunConfig, framework: Framework, scope: Scope, at: Span, spelling: str) -> Iterator[Claim]:
    """Every key that the line or the user's own files give, as `setting.FRAMEWORK.KEY`."""
    prefix = f"{SETTING_PREFIX}{framework.name}."
    if run.incomplete or not run.is_installed:
        # Its own files, or words that are not known, may give further keys.
        yield Claim(f"{prefix}(call)", Unresolved("further settings"), at, spelling, _SOURCE, scope)
    for path, leaf in truncate(list(leaves(run.composition.root)), _MAX_SETTINGS, "settings of a configuration"):
        on_line = leaf.place.strength is Strength.FLAG
        if (on_line or run.is_installed) and not is_secret(path[-1]) and not is_missing(leaf):
            value = _listed(leaf) if isinstance(leaf, ListSetting) else _resolve(run, ".".join(path))
            if value is not None:
                name = f"{prefix}{'.'.join(path)}"
                yield Claim(name, value, leaf.place.span, leaf.place.spelling, _SOURCE, scope, leaf.place.strength)


def _listed(items: ListSetting) -> Value:
    """A list as a tuple; unresolved if it holds other than plain values."""
    found: list[str | int | float | None] = []
    for item in items.items:
        if not isinstance(item, Leaf) or not isinstance(item.value, Known) or isinstance(item.value.value, tuple):
            return Unresolved("a list of sections or variables")
        found.append(item.value.value)
    return Known(tuple(found))


def _key_claims(
    run: RunConfig, framework: Framework, key: Key, scope: Scope, at: Span, spelling: str
) -> Iterator[Claim]:
    composition = run.composition
    role = replace(scope, role=key.role) if key.role else scope
    for below in framework.below:
        if key.when and composition.value(_join_key(below, key.when)) != Known(True):
            continue
        for name in key.keys:
            path = _join_key(below, name)
            setting = composition.leaf(path)
            if setting is None:
                continue
            claims = tuple(_layers(run, key, path, setting, role))
            if framework.files_only:
                claims = tuple(claim for claim in claims if claim.strength is not Strength.FLAG)
            if claims:
                yield from claims
                return
    if key.default is not None and run.is_installed and not run.incomplete and framework.starts_ranks:
        shown = f"{spelling} (without {key.keys[0]})"
        yield Claim(key.quantity, Known(key.default), at, shown, _SOURCE, role, Strength.DEFAULT)


def _join_key(below: str, key: str) -> str:
    return f"{below}.{key}" if below else key


def _layers(run: RunConfig, key: Key, path: str, setting: Setting, scope: Scope) -> Iterator[Claim]:
    """The value in force and, as a weaker claim, the value that it replaces."""
    if is_missing(setting):
        return
    value = _resolve(run, path)
    if value is None or value == Known(None):
        return
    strength = setting.place.strength
    yield _claim(key, key.read(value), setting.place, scope, strength)
    before = setting.before
    if isinstance(before, Leaf) and isinstance(before.value, Known) and before.value.value not in (None, "???"):
        replaced = key.read(_plain(before.value))
        weaker = before.place.strength if before.place.strength < strength else Strength.DEFAULT
        if weaker < strength:
            yield _claim(key, replaced, before.place, scope, weaker)


def _resolve(run: RunConfig, path: str) -> Value | None:
    try:
        return run.composition.resolver.value(tuple(split_key(path)))
    except Unreadable as error:
        return Unresolved(str(error))


def _plain(value: Value) -> Value:
    if isinstance(value, Known) and "${" in str(value.value):
        return Unresolved(f"`{value.value}`, which was replaced")
    return value


def _claim(key: Key, value: Value, place: Place, scope: Scope, strength: Strength) -> Claim:
    return Claim(key.quantity, value, place.span, place.spelling, _SOURCE, scope, strength)


def _world(claims: list[Claim], scope: Scope) -> Iterator[Claim]:
    """The number of training ranks: nodes times GPUs, as computed by the program that starts them all."""
    own = [claim for claim in claims if claim.scope == scope]
    nodes, processes = (_strongest(own, quantity) for quantity in ("nodes", "processes_per_node"))
    if nodes is None or processes is None:
        return
    value = lift(product, nodes.value, processes.value)
    strength = max(nodes.strength, processes.strength)
    yield Claim(
        "world_size",
        value,
        processes.span,
        f"{nodes.spelling} x {processes.spelling}",
        _SOURCE,
        scope,
        strength,
        because=(nodes, processes),
    )


def _strongest(claims: list[Claim], quantity: str) -> Claim | None:
    return max((claim for claim in claims if claim.quantity == quantity), key=lambda c: c.strength, default=None)


def _refusal_claims(run: RunConfig, scope: Scope, at: Span, spelling: str) -> Iterator[Claim]:
    why = run.composition.resolver.incomplete
    if run.incomplete:
        why = "words of the command line that are set outside the script"
    if why:
        yield Claim("config_refused", Unresolved(why), at, spelling, "hydra", scope)
        return
    if not run.composition.refusals:
        yield from _dangling_claims(run, scope)
    for refusal in run.composition.refusals:
        if refusal.place is not None:
            yield Claim(
                "config_refused",
                Known(refusal.message),
                refusal.place.span,
                refusal.place.spelling,
                "hydra",
                scope,
                refusal.place.strength,
            )


def _dangling_claims(run: RunConfig, scope: Scope) -> Iterator[Claim]:
    """Values that Hydra composes and OmegaConf cannot resolve: the program stops when it reads one."""
    resolver = run.composition.resolver
    for path, leaf in truncate(list(leaves(run.composition.root)), _MAX_SETTINGS, "settings of a configuration"):
        if not is_reference(leaf):
            continue
        try:
            resolver.resolved(leaf, path)
        except Unreadable as why:
            if why.is_required or (why.key and _is_set_by(run.program, why.key)):
                continue
            name = ".".join(path)
            yield Claim(
                "config_unresolvable",
                Known((name, str(why))),
                leaf.place.span,
                leaf.place.spelling,
                "hydra",
                scope,
                leaf.place.strength,
            )


def _is_set_by(program: str, key: str) -> bool:
    """Whether a program assigns a key: `cfg.classes = 10`, `cfg["classes"] = 10`, `update(cfg, "classes", 10)`."""
    last = re.escape(key.rpartition(".")[2])
    return re.search(rf"\.{last}\s*=[^=]|[\"'](?:[\w.]+\.)?{last}[\"']\s*(?:\]\s*=[^=]|,)", program) is not None
