"""The smoke run in Paddle: its collectives, and its own parameter servers."""
