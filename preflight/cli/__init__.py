"""Click commands: they parse options, call `preflight.api` or `preflight.commands`, and set the exit code."""
