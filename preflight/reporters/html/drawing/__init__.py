"""What was measured, drawn: each kind of exhibit becomes geometry and text that a template prints."""
