"""Made-up CT scans with labels, and benchmarks on them."""
