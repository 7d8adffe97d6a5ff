"""What keeps running: the language server, the admission webhook, and the page over the history."""
