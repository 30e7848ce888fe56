"""Data sets that are given as objects: whose files they are, where those lie, and what the objects do to them."""
