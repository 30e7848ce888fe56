"""Measuring and planning while a loader runs."""
