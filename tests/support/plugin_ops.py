"""A plug-in with ops of somebody's own, as `sophon serve --import` takes it."""

from __future__ import annotations

from sophon.pipeline import register
from tests.support.misbehave import Misbehave

register(Misbehave)
