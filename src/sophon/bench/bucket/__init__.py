"""Benchmarks of object stores, against a real server on this machine."""
