"""The comment on a pull request: what the change does to the plan, and the findings that it brings."""
