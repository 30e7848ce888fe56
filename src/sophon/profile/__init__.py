"""The cost of each sample: the table, and the two stages that measure it."""
