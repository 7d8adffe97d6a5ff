"""Data, checkpoints and the file systems they lie on."""
