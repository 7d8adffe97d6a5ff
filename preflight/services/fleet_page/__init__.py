"""The page over the history: a read-only view of a fleet for administrators, served over HTTP."""
