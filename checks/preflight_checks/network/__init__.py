"""What each node says of its own network: interfaces, names, routes, proxies, ports."""
