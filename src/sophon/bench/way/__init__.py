"""Benchmarks of the way of a batch: over a long link, and to a device."""
