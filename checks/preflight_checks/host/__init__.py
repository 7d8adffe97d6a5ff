"""The resources of a node for the processes of a job (processors, memory, limits, time), and its other users."""
