"""Which transforms of torchvision's v2 are tried over samples with targets, how, and which are not, with the reason.

Settings are those of `transform_table`, and these. A class that is in neither table fails
`tests/pipeline/test_every_joint_transform.py`.
"""

from __future__ import annotations

SETTINGS: dict[str, tuple[str, ...]] = {
    "ClampBoundingBoxes": ("", "clamping_mode='hard'", "clamping_mode=None"),
    "ConvertBoundingBoxFormat": ("'XYXY'", "'XYWH'", "'CXCYWH'"),
    "Lambda": ("turned, tv_tensors.Mask", "turned, torch.Tensor, PIL.Image.Image", "same"),
    "Pad": ("4, fill={tv_tensors.Mask: 255, 'others': 3}", "(1, 2, 3, 4), fill=9", "2, padding_mode='edge'"),
    "RandomAffine": ("20, (0.1, 0.2), (0.7, 1.3), 9, fill={tv_tensors.Mask: 255, 'others': (1, 2, 3)}",),
    "RandomCrop": ("45, pad_if_needed=True, fill={tv_tensors.Mask: 255, 'others': 0}",),
    "RandomIoUCrop": ("", "sampler_options=[0.5, 1.0]"),  # without 1.0 it looks for a box for ever if there is none
    "RandomOrder": ("[t.CenterCrop(15), t.RandomHorizontalFlip(), t.ClampBoundingBoxes()]",),
    "RandomPerspective": ("0.4, p=1.0, fill={tv_tensors.Mask: 255, 'others': 7}",),
    "RandomZoomOut": ("fill={tv_tensors.Mask: 255, 'others': 7}, p=1.0",),
    "SanitizeBoundingBoxes": ("", "min_size=9.0", "min_area=60.0, labels_getter=None", "labels_getter=labels_of"),
    "SanitizeKeyPoints": ("", "labels_getter=labels_of"),
    "SetClampingMode": ("None", "'hard'", "'soft'"),
    "ToDtype": (
        "{tv_tensors.Mask: torch.int64, 'others': None}",
        "{tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, 'others': None}, scale=True",
        "{tv_tensors.BoundingBoxes: torch.float64, 'others': torch.uint8}",
    ),
}  # fmt: skip
"""By class: settings that say something about targets, the first of which is tried in the default suite."""

REFUSES_TARGETS = {"AugMix", "AutoAugment", "FiveCrop", "RandAugment", "TenCrop", "TrivialAugmentWide"}
"""torchvision itself refuses masks, boxes and keypoints: tried with labels alone, and refused with the others."""

NOT_CHECKED = {
    "CutMix": "takes a batch; it belongs after the loader",
    "MixUp": "takes a batch; it belongs after the loader",
}
"""By class: why it is not compared; torchvision must refuse every sample, and so must we."""
