"""Communication between a trainer and a storage node."""
