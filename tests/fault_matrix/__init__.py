"""Every fault that virtual nodes can show, and what a check of four nodes must say about it: one row each."""
