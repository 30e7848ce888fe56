"""From the transforms that people write to ops: `walk` goes through a recipe, the other files know one library each."""

from sophon.pipeline.translation.walk import ops_from_transform

__all__ = ["ops_from_transform"]
