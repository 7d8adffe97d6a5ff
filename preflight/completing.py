"""What a shell completes behind options that take rules and checks: areas first, then the ids of one, then names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

#: The letters that name an area.
_AREA = 3


def ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids, names and areas that begin like the last word of a list (`RDV001,SL`)."""
    from click.shell_completion import CompletionItem

    from preflight.explain import everything

    before, comma, begun = incomplete.rpartition(",")
    metas = [item.meta for item in everything()]
    if begun[:1].islower():
        found = {meta.name: meta.id for meta in metas}
    elif len(begun) < _AREA:
        found = dict.fromkeys((meta.area for meta in metas), "")
    else:
        found = {meta.id: meta.name for meta in metas}
    known = sorted(found.items())
    return [CompletionItem(before + comma + word, help=said) for word, said in known if word.startswith(begun)]
