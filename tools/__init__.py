"""Programs for whoever maintains preflight; nothing of the package imports them."""
