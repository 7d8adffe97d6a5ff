"""Rules and checks that a site declares in TOML."""
