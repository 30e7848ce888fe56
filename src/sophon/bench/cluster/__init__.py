"""Benchmarks of many nodes."""
