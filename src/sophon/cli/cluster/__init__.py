"""Commands for clusters of nodes."""
