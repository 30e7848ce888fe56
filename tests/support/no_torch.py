"""The recipe of tests, for processes that have no torch."""

from __future__ import annotations

from sophon.pipeline import Pipeline, ops

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = Pipeline(
    [ops.Decode(), ops.RandomResizedCrop(48), ops.RandomHorizontalFlip(), ops.ToTensor(), ops.Normalize(MEAN, STD)]
)
