"""Other loaders with remote workers, compared on the same files, cores and links."""
