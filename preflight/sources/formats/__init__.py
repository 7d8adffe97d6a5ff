"""File formats as trees whose values keep their location."""
