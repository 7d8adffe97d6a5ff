"""What a job requires of its nodes, as its claims state it: endpoints, backends, interface filters, hosts."""
