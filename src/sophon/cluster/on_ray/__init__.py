"""Nodes on a Ray cluster. Ray starts and locates them; no sample passes through Ray."""
