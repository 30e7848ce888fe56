"""Recipes as users write them, with and without offloading."""
