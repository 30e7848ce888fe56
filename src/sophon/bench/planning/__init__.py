"""Scenarios about planning: what it takes, and what several ranks make of it."""
