"""Commands for many nodes."""
