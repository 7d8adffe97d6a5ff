"""Logic of the secondary commands, without click."""
