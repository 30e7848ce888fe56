"""The photos that benchmarks run on, found or made."""
