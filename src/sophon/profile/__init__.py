"""What a sample costs: the table, and the two stages that measure it."""
