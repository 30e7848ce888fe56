"""Checks that run when a data set is opened."""
