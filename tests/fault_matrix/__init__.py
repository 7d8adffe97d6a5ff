"""Every fault that virtual nodes can show, and the finding that a check of four nodes must have: one row each."""
