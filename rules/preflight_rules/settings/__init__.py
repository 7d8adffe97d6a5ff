"""Settings that a framework rejects at startup: single values by type and range, and combinations."""
