"""The context of ranks: interpreter, environment, copies of files, and remote start."""
