"""Charts of measurements: each kind of chart becomes geometry and text that a template prints."""
