"""What was done, what went wrong, and both in words."""
