"""Translates users' transforms into ops: `walk` goes through a recipe, the other files know one library each."""

from sophon.pipeline.translation.walk import ops_from_transform

__all__ = ["ops_from_transform"]
