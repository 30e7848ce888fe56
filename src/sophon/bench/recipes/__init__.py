"""Recipes as people write them, with and without offloading."""
