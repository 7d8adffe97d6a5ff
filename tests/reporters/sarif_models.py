"""Models of the SARIF standard that validate our logs, stricter than the library's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from sarif_pydantic import Sarif
from sarif_pydantic.sarif import Notification
from sarif_pydantic.sarif import Suppression as SarifSuppression


def holds(model: type[BaseModel]) -> Callable[[Any], None]:
    """A validator of a list whose items this model describes."""

    def look(values: Any) -> None:
        for value in values:
            found = model.model_validate(value)
            assert not [path for path, extra in unknown_keys(found, model.__name__) if extra]

    return look


def is_a(*allowed: object) -> Callable[[Any], None]:
    """A validator of a value of one of these types."""

    def look(value: Any) -> None:
        assert value in allowed

    return look


#: Keys of run, invocation and result in SARIF 2.1.0 that sarif-pydantic 0.6 does not model where
#: they belong, each with what it must be.
LEFT_OUT: dict[str, Callable[[Any], None]] = {
    "columnKind": is_a("unicodeCodePoints"),
    "exitCode": is_a(0, 1, 3, 4, 5, 130, 143),
    "toolExecutionNotifications": holds(Notification),
    "toolConfigurationNotifications": holds(Notification),
    "suppressions": holds(SarifSuppression),
}


def log_of(data: bytes) -> dict[str, Any]:
    """The one run of a log, validated by the models."""
    document = json.loads(data)
    model = Sarif.model_validate(document)
    # The models accept any key; a key that they do not declare is unknown to SARIF, or missing in the models.
    for path, extra in unknown_keys(model, "sarif"):
        for key, value in extra.items():
            assert key in LEFT_OUT, f"{path}.{key}"
            LEFT_OUT[key](value)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert isinstance(run, dict)
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert ids == sorted(set(ids))
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
    return run


def unknown_keys(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model below `value` with the keys it does not declare; property bags may hold anything."""
    if isinstance(value, BaseModel):
        yield path, dict(value.model_extra or {})
        for name in type(value).model_fields:
            if name != "properties":
                yield from unknown_keys(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from unknown_keys(item, f"{path}[{index}]")
