"""Fairness between tenants of a node: turns on the cores, and the price of messages."""
