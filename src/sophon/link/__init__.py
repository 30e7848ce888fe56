"""How a trainer and a storage node talk."""
