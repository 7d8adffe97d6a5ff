"""Finds what will kill or hang a distributed training job before it is submitted.

The commands are functions too: `from preflight import lint, check, judge`. Importing this package costs nothing; each
function loads what it needs when it is called. docs/python.md has an example of each.
"""

__version__ = "0.1.0"

# Nothing is imported here, not even typing: `python -m preflight` runs this before it has removed the working
# directory, which may be hostile, from the import path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from preflight._util.usage_error import UsageError
    from preflight.api import check, diagnose, diff, judge, lint, smoke
    from preflight.commands.diagnose.diagnosis import Diagnosis
    from preflight.commands.diff.difference import Difference
    from preflight.engine.report import Report
    from preflight.model.configuration import Configuration, RunOptions, SmokeOptions
    from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
    from preflight.model.recording import Recording

__all__ = [
    "Configuration",
    "Diagnosis",
    "Difference",
    "Finding",
    "Outcome",
    "Recording",
    "Report",
    "RunOptions",
    "Severity",
    "SmokeOptions",
    "Status",
    "UsageError",
    "VerdictKind",
    "__version__",
    "check",
    "diagnose",
    "diff",
    "judge",
    "lint",
    "nodes",
    "smoke",
]

#: The module that defines each public name.
_HOMES = {
    **dict.fromkeys(("check", "diagnose", "diff", "judge", "lint", "nodes", "smoke"), "api"),
    **dict.fromkeys(("Finding", "Outcome", "Severity", "Status", "VerdictKind"), "model.findings"),
    "RunOptions": "model.configuration",
    "Configuration": "model.configuration",
    "Diagnosis": "commands.diagnose.diagnosis",
    "Difference": "commands.diff.difference",
    "Recording": "model.recording",
    "Report": "engine.report",
    "UsageError": "_util.usage_error",
    "SmokeOptions": "model.configuration",
}

# Hidden from type checkers, for which every name would exist otherwise.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Return the command, or a class of its arguments or result, loaded on first access."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'preflight' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"preflight.{home}"), name)
        return found

    def __dir__():
        """Return all names, also for the interpreter's hints about a misspelt one."""
        return sorted(__all__)
