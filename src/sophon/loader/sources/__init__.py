"""Sources of samples, and caches of them."""
