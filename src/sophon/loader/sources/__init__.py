"""Places to get samples from, and what was kept of them."""
