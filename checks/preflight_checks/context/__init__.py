"""Where ranks actually run: interpreter, environment, copies of files, and how they get there."""
