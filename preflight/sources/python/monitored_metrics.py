"""Metrics that a scheduler, a search or a callback watches, although nothing reports one of that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.sources.python import imports
from preflight.sources.python.module import Module, argument, last, value_of

#: Calls that watch a metric, with the argument for its name: Ray 2.48, Lightning 2.5.
_RAY = {"TuneConfig": "metric", "ASHAScheduler": "metric", "PopulationBasedTraining": "metric", "run": "metric"}
_LIGHTNING = {"EarlyStopping": "monitor", "ModelCheckpoint": "monitor"}
#: Metrics that Ray adds to each report: ray/air/constants.py and ray/tune/result.py of 2.48.
_OF_RAY = frozenset(
    (
        "training_iteration",
        "time_total_s",
        "time_this_iter_s",
        "timestamp",
        "checkpoint_dir_name",
        "iterations_since_restore",
    )
)
_LOGS = re.compile(r"\.log\(\s*(f?)([\"'])([^\"']+)\2|\.log\(\s*(?![\"'f)])")
_LOGS_OTHERWISE = re.compile(r"\.log_dict\(|callback_metrics\[|log_metrics\(")


def claims(module: Module) -> Iterator[Claim]:
    """Yield the first metric of a script that is watched and never reported to Ray, or never logged by Lightning."""
    for feature, metrics in (("reported", _ray_metrics(module)), ("logged", _lightning_metrics(module))):
        missing = next((watched for watched, name, found in metrics if name not in found), None)
        if missing is not None:
            yield module.feature(f"metric_never_{feature}", missing)


def _watched(module: Module, table: dict[str, str], package: re.Pattern[str]) -> Iterator[tuple[ast.expr, str]]:
    for call in module.named(*table):
        given = argument(call, table[last(module.called(call))])
        value = module.fold(value_of(given)) if given is not None else None
        is_named = isinstance(value, Known) and isinstance(value.value, str)
        if given is not None and is_named and package.search(module.called(call)):
            yield value_of(given), str(getattr(value, "value", ""))


def _ray_metrics(module: Module) -> Iterator[tuple[ast.expr, str, set[str]]]:
    """Yield each watched metric of Ray Tune with the reported ones, if all reports are literal dictionaries.

    Source: ray/tune/execution/tune_controller.py of 2.48 (_validate_result_metrics stops the run).
    """
    reports = [
        call for call in module.named("report") if re.search(r"\b(?:ray|tune|train|session)\.", module.called(call))
    ]
    reported = set(_OF_RAY)
    for call in reports:
        given = argument(call, "metrics", 0)
        table = value_of(given) if given is not None else None
        keys = table.keys if isinstance(table, ast.Dict) else []
        names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
        # Before Ray 2, each metric was an argument.
        names += [keyword.arg for keyword in call.keywords if given is None]
        if not names or None in names or "scaling_config" in module.file.text:
            return
        reported |= set(map(str, names))
    if reports:
        for watched, name in _watched(module, _RAY, re.compile(r"\bray\b|\btune\b")):
            if "/" not in name:
                yield watched, name, reported


def _lightning_metrics(module: Module) -> Iterator[tuple[ast.expr, str, set[str]]]:
    """Yield each watched metric of Lightning with the logged ones, if all names are literal.

    Source: lightning/pytorch/callbacks/early_stopping.py and model_checkpoint.py of 2.5 (both stop without it).
    """
    watched = list(_watched(module, _LIGHTNING, re.compile(r"lightning|\bpl\b")))
    if not watched:
        return
    helpers, is_whole = imports.texts_of_modules(module)
    texts = [module.file.text, *(each.text for each in helpers)]
    logs = [match for text in texts for match in _LOGS.finditer(text)]
    if not is_whole or not logs or any(map(_LOGS_OTHERWISE.search, texts)):
        return
    if any(match[1] or match[3] is None for match in logs):
        return
    logged = {match[3] for match in logs}
    logged |= {"epoch", "step"}
    logged |= {f"{name}_{unit}" for name in logged for unit in ("step", "epoch")}
    for place, name in watched:
        if "dataloader_idx" not in name:
            yield place, name, logged
