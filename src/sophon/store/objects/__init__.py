"""Data sets given as objects: where their files are, and which transforms the objects apply to them."""
