"""From named files to jobs: walks folders, runs sources, and joins files that belong together."""
