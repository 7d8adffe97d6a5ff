"""The API for authors of rules and checks, and the loading of their plugins."""
