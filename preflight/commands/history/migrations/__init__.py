"""Migrations of the history's tables, run by alembic; a new migration is a module in `versions/`."""
