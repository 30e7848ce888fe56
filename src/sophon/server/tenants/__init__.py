"""What each tenant of a node gets: turns on the cores, and what it pays for messages."""
