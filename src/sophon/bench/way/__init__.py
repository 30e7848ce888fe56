"""Benchmarks of a batch's path: over a long link, and to a device."""
