"""Storage nodes on a Ray cluster: ``sophon.ray.serve({...})``, and ``DataLoader("sophon+ray://train", …)``."""

from __future__ import annotations

from sophon.cluster.on_ray.layout import Layout
from sophon.cluster.on_ray.serving import down, serve, status

__all__ = ["Layout", "down", "serve", "status"]
