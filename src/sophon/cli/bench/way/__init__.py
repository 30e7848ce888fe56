"""Commands for the benchmarks of `bench/way/`."""
