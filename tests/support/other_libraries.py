"""Loaded by a storage node: stands for other releases of what decides about bits, which it does not hide."""

import sophon.pipeline.probe
import sophon.server.executor
from sophon.pipeline import ops

_apply, _versions = ops.RandomHorizontalFlip.apply, sophon.pipeline.probe.versions


def _darker(self, value, params):
    made = _apply(self, value, params)
    return made.point(lambda level: max(0, level - 1)) if hasattr(made, "point") else made


ops.RandomHorizontalFlip.apply = _darker
for _module in (sophon.pipeline.probe, sophon.server.executor):
    _module.versions = lambda: {**_versions(), "pillow": "99.0.0"}
