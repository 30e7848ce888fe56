"""Data sets given as objects: where their files are, and what the objects do to them."""
