"""Long-running services: the language server, the admission webhook, and the page over the history."""
