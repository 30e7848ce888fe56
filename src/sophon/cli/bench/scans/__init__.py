"""The same for benchmarks on scans."""
