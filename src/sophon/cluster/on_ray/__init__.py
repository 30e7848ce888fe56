"""Nodes on a Ray cluster. Ray starts them and says where they are; no sample goes through it."""
