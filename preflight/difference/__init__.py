"""What changed between two reports: findings, what could be told, nodes, versions, and what was measured."""
