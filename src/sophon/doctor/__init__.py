"""What is wrong with an installation, a machine, a node, a data set or a pipeline, and what to do about it."""
