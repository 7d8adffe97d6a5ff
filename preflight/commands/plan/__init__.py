"""`preflight plan`: what each rank of a job will run, according to its files."""
