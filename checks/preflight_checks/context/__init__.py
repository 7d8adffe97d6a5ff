"""Where ranks really run: interpreter, environment, copies of files, and how they get there."""
