"""Synthetic CT scans with labels, and benchmarks that use them."""
