"""How long things take, always beside something comparable that is measured in the same run."""
