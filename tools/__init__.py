"""Programs for maintainers of preflight; the package does not import them."""
