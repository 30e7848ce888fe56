"""Scenarios, the data they run on, and the harness that times them."""
