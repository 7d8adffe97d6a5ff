"""Private helpers. Any package may import them; they import no other package."""
