"""What was seen between nodes: who reaches whom, and how well."""
