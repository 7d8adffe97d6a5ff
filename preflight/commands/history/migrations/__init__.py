"""The steps that lead to the tables of today, run by alembic; a new step is a module in `versions/`."""
