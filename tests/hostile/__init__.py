"""Input made to exhaust its reader: shapes that grow with a number, and a tree full of them."""
