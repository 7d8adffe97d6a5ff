"""Finds what will kill or hang a distributed training job before it is submitted.

The verbs are functions too: `from preflight import lint, check, judge`. Importing this package costs nothing;
each verb loads what it needs when it is called. docs/python.md has an example of each.
"""

__version__ = "0.1.0"

# Nothing is imported here, not even typing: `python -m preflight` comes past this before it has taken the working
# directory, which may be hostile, off the import path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from preflight.api import check, diagnose, diff, judge, lint, smoke
    from preflight.check_options import CheckOptions
    from preflight.configuration import Configuration
    from preflight.diagnosis.model import Diagnosis
    from preflight.difference.model import Difference
    from preflight.errors import UsageError
    from preflight.outcome import Finding, Outcome, Severity, Status, VerdictKind
    from preflight.recording import Recording
    from preflight.report import Report
    from preflight.wish import Wish

__all__ = [
    "CheckOptions",
    "Configuration",
    "Diagnosis",
    "Difference",
    "Finding",
    "Outcome",
    "Recording",
    "Report",
    "Severity",
    "Status",
    "UsageError",
    "VerdictKind",
    "Wish",
    "__version__",
    "check",
    "diagnose",
    "diff",
    "judge",
    "lint",
    "smoke",
]

#: Where each of them stands: module by name.
_HOMES = {
    **dict.fromkeys(("check", "diagnose", "diff", "judge", "lint", "smoke"), "api"),
    **dict.fromkeys(("Finding", "Outcome", "Severity", "Status", "VerdictKind"), "outcome"),
    "CheckOptions": "check_options",
    "Configuration": "configuration",
    "Diagnosis": "diagnosis.model",
    "Difference": "difference.model",
    "Recording": "recording",
    "Report": "report",
    "UsageError": "errors",
    "Wish": "wish",
}

# Hidden from type checkers, for which every name would exist otherwise.
if not TYPE_CHECKING:

    def __getattr__(name):
        """The verb, or the class of what it takes or returns, loaded when it is first asked for."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'preflight' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"preflight.{home}"), name)
        return found

    def __dir__():
        """What there is, also for the hints of the interpreter at a misspelt name."""
        return sorted(__all__)
