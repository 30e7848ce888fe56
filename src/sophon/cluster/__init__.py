"""Many nodes: who holds what, where they are, and what keeps them running."""
