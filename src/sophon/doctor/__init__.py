"""Finds what is wrong with an installation, a machine, a node, a data set or a pipeline, and how to fix it."""
