"""Each node's own network: interfaces, names, routes, proxies, ports."""
