"""Rendezvous addresses, ports and networks."""
