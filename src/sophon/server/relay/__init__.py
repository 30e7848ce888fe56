"""Relays: servers that fetch their samples from another node."""
