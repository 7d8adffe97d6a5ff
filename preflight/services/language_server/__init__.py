"""The language server: `preflight lint` and `preflight plan` while a job is edited (docs/editor.md)."""
