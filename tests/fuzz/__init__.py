"""Coverage-guided fuzzing: targets, seeds, mutations, and the definition of a fault."""
