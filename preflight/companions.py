"""Which configuration of a folder belongs to its one launch although no file names it: ds.json beside run.sh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.job import Job, Launch

#: Kinds of configuration, and the launchers (or words of a launch) that show that a launch wants one of them.
_WANTED_BY = {"deepspeed": ("deepspeed",), "accelerate": ("accelerate",)}
#: How a file refers to a configuration of such a kind.
_ROLES = {"deepspeed": "config", "accelerate": "accelerate"}


def companions(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """For each entry that is a launch or its configuration, both, the launch first.

    Guesswork, so as narrow as it can be: the folder holds one script with launches that want such a configuration,
    which names none, and one configuration of that kind, which no file names.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for kind, signs in _WANTED_BY.items():
        folders: dict[str, list[str]] = {}
        for path in entries:
            if path not in joined:
                folders.setdefault(path.rpartition("/")[0], []).append(path)
        for here in folders.values():
            configurations = [path for path in here if _is_configuration(built[path], kind)]
            launching = [path for path in here if any(job.launches for job in built[path])]
            if len(configurations) == 1 and len(launching) == 1 and _wants(built[launching[0]], kind, signs):
                pair = (launching[0], configurations[0])
                joined.update(dict.fromkeys(pair, pair))
    return joined


def _is_configuration(jobs: Sequence[Job], kind: str) -> bool:
    return len(jobs) == 1 and not jobs[0].launches and [file.kind for file in jobs[0].files] == [kind]


def _wants(jobs: Sequence[Job], kind: str, signs: Sequence[str]) -> bool:
    """Whether this is one job whose launches all want such a configuration and name none, wherever it may lie."""
    if len(jobs) != 1 or any(file.kind == kind for file in jobs[0].files):
        return False
    named = any(reference.role == _ROLES[kind] for reference in jobs[0].references)
    return not named and all(_shows(launch, signs) for launch in jobs[0].launches)


def _shows(launch: Launch, signs: Sequence[str]) -> bool:
    return launch.launcher in signs and None not in launch.arguments
