"""The memory of every node: runs kept in a database, and what they say together."""
