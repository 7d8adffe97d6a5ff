"""Whether the ranks' interpreter finds packages by the names under which a script imports them; none is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from importlib import machinery
from typing import Any, Dict, List

from preflight.agent.cheap import cheap

#: The number of names that are looked for.
MAX_NAMES = 200


@dataclass(frozen=True)
class Importable:
    """The names that were found, and for each that was not, the installed distribution that claims to provide it.

    `undecided` has the reason for each name about which the import system could not tell.
    """

    executable: str
    found: List[str] = field(default_factory=list)
    missing: Dict[str, str] = field(default_factory=dict)
    path: List[str] = field(default_factory=list)
    undecided: Dict[str, str] = field(default_factory=dict)


@cheap("packages")
def importable(params: Dict[str, Any]) -> Importable:
    """Look for the top-level packages `params["names"]`, also beside the scripts `params["scripts"]`. Run it in the job
    context.
    """
    beside = [os.path.dirname(os.path.abspath(str(script))) for script in params.get("scripts", [])]
    found, missing, undecided = [], {}, {}  # type: List[str], Dict[str, str], Dict[str, str]
    for number, name in enumerate(str(name) for name in params.get("names", [])):
        if number >= MAX_NAMES:
            undecided[name] = "only %d names are looked for" % MAX_NAMES
            continue
        try:
            if _is_found(name, beside):
                found.append(name)
            else:
                missing[name] = ""
        except Exception as error:  # a finder of the job's own, or a damaged package
            undecided[name] = "%s: %s" % (type(error).__name__, error)
    if missing:
        provided = _provided()
        missing = {name: provided.get(name, "") for name in missing}
    return Importable(sys.executable or "", found, missing, [entry for entry in sys.path if entry][:50], undecided)


def _is_found(name: str, beside: List[str]) -> bool:
    """Whether the import system finds `name`. Raises whatever its finders raise."""
    if importlib.util.find_spec(name) is not None:
        return True
    return machinery.PathFinder.find_spec(name, [os.getcwd(), *beside]) is not None


def _provided() -> Dict[str, str]:
    """The distribution that its metadata names as the provider of each top-level package."""
    from importlib import metadata  # Takes longer to import than most probes run.

    listing = getattr(metadata, "packages_distributions", None)
    try:
        return {name: names[0] for name, names in listing().items()} if listing is not None else {}
    except Exception:  # broken metadata of another package
        return {}
