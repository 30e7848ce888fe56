"""Scenarios about planning: its cost, and its effect with several ranks."""
