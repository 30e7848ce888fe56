"""The photos that benchmarks run on: existing files, or synthetic ones."""
