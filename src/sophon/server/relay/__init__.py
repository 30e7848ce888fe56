"""A relay: a server whose store is another node."""
