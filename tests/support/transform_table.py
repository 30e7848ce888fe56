"""Every transform of torchvision: with which settings it is tried, and what its translation gives at each place.

One row per class, plain data. A class that torchvision has and this table has not fails
`tests/pipeline/test_every_transform.py`; so does a translation that gives something else than the row says.

Places, in the order of a row's words: ``picture`` (the PIL image, first), ``uint8`` (after PILToTensor or ToImage),
``float`` (after ToTensor, or ToImage and ToDtype), ``unknown`` (the picture again, but after a Lambda, of which nothing
is known).

======== ==========================================================================================================
word     the translation is
======== ==========================================================================================================
op       an op of ours, which can run near storage
region   `OnTensor`: torchvision's own transform on the trainer, with parameters that we draw; a region may pass it
own      `Call`: the user's object on the trainer, under seeded generators
nothing  no step at all, since the transform changes nothing
\\-        whatever it likes: torchvision itself refuses every setting there, and ours must refuse it too
======== ==========================================================================================================

``op/own`` means that it depends on the setting, ``own/region`` on whether a crop follows, ``own/-`` on what is drawn or
on how torchvision was built.

A setting is what stands between the parentheses, with ``t`` for the module (v1 or v2), ``torch``, ``tv_tensors``,
``values`` (the number of values of the picture) and the names of the interpolations. ``v1:`` or ``v2:`` before it: only
there.
"""

from __future__ import annotations

from dataclasses import dataclass

PLACES = ("picture", "uint8", "float", "unknown")


@dataclass(frozen=True)
class Row:
    """One class.

    Args:
        name: Of the class.
        v1: What the translation gives at each of PLACES, for `torchvision.transforms`; None where it has no such class.
        v2: The same for `torchvision.transforms.v2`.
        fixed: Settings that leave nothing to chance: torchvision is simply called.
        drawn: Settings with drawn parameters: torchvision is made to use those that the step drew.
        own: Settings, fixed or under the seed of a `Call`, that have no op and stay the user's own everywhere.
        size: Width and height of the picture, where the usual one will not do.
    """

    name: str
    v1: str | None
    v2: str | None
    fixed: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    def gives(self, library: str, place: str) -> str:
        """Return the word for a place."""
        words = self.v1 if library == "v1" else self.v2
        return "-" if words is None else words.split()[PLACES.index(place)]

    def settings(self, library: str) -> list[tuple[str, str]]:
        """Return (text, "fixed" | "drawn" | "own") of each setting that a library takes."""
        found = []
        for sort in ("fixed", "drawn", "own"):
            for text in getattr(self, sort):
                only, colon, rest = text.partition(": ")
                if colon and only in ("v1", "v2"):
                    if only == library:
                        found.append((rest, sort))
                else:
                    found.append((text, sort))
        return found


_MIXED_ROTATIONS = "(-170, 170), expand=True, fill=200, interpolation=BILINEAR"
_AFFINE = "30, translate=(0.2, 0.3), scale=(0.7, 1.4), shear=(-20, 20, -10, 10)"

ROWS = (
    # Shape.
    Row(
        "Resize",
        "op own/region own/region own",
        "op own/region own/region own",
        fixed=(
            "15",
            "(20, 17)",
            "(20, 40), interpolation=BICUBIC",
            "(9, 50), interpolation=NEAREST",
            "(12, 12), interpolation=NEAREST_EXACT",
            "14, max_size=16",
            "(13, 17), antialias=False",
            "26",
        ),
        own=("v2: None, max_size=24",),
    ),
    Row("CenterCrop", "op region region own", "op region region own", fixed=("15", "(11, 20)", "[9]", "(40, 9)", "60")),
    Row(
        "RandomCrop",
        "op region/own region/own own",
        "op region/own region/own own",
        fixed=("(26, 33)", "60"),
        drawn=("16", "(9, 20), padding=4", "(16, 12), padding=(1, 2, 3, 4), fill=9", "45, pad_if_needed=True"),
        own=("v2: 45, pad_if_needed=True, padding_mode='reflect'",),
    ),
    Row(
        "RandomResizedCrop",
        "op region region own",
        "op region region own",
        fixed=("12, scale=(1.0, 1.0), ratio=(33 / 26, 33 / 26)",),
        drawn=(
            "16",
            "(9, 21), scale=(0.2, 0.8)",
            "14, interpolation=BICUBIC",
            "14, interpolation=NEAREST",
            "20, antialias=False",
        ),
    ),
    Row(
        "RandomHorizontalFlip",
        "op own/region own/region own",
        "op own/region own/region own",
        fixed=("p=0.0", "p=1.0"),
        drawn=("p=0.5",),
    ),
    Row(
        "RandomVerticalFlip",
        "op own/region own/region own",
        "op own/region own/region own",
        fixed=("p=0.0", "p=1.0"),
        drawn=("p=0.5",),
    ),
    Row(
        "Pad",
        "op own own own",
        "op own own own",
        fixed=(
            "3",
            "(1, 2), fill=7",
            "(1, 2, 3, 4), padding_mode='reflect'",
            "2, padding_mode='edge'",
            "(3, 0, 0, 1), fill=(1, 2, 255)",
        ),
        own=("v2: 3, fill={torch.Tensor: 7, PIL.Image.Image: 9}",),
    ),
    Row("FiveCrop", "own own own own", "own own own own", fixed=("10",)),
    Row("TenCrop", "own own own own", "own own own own", fixed=("10",)),
    Row("RandomResize", None, "op own own own", fixed=("14, 15",), drawn=("12, 30",)),
    Row("RandomShortestSize", None, "op own own own", drawn=("[12, 15, 18]", "[12, 40], max_size=30")),
    Row("ScaleJitter", None, "op own own own", drawn=("(20, 20)",)),
    Row(
        "RandomZoomOut",
        None,
        "op own own own",
        fixed=("p=0.0",),
        drawn=("p=1.0", "fill=9, p=0.5", "(1, 2, 255), (1.5, 2.0), p=1.0"),
        own=("fill={torch.Tensor: 7, PIL.Image.Image: 9}",),
    ),
    Row("RandomIoUCrop", None, "- - - -", fixed=("",)),
    # Maps of the plane.
    Row(
        "RandomRotation",
        "op own own own",
        "op own own own",
        fixed=(
            "(30, 30)",
            "(90, 90)",
            "(-45, -45), expand=True, fill=9, interpolation=BILINEAR",
            "(20, 20), center=(3, 4)",
        ),
        drawn=("40", _MIXED_ROTATIONS),
    ),
    Row(
        "RandomAffine",
        "op own own own",
        "op own own own",
        fixed=("(15, 15)", "(0, 0), scale=(1.5, 1.5), interpolation=BILINEAR", "(0, 0), shear=(10, 10)"),
        drawn=("25", _AFFINE, _AFFINE + ", interpolation=BILINEAR, fill=30"),
    ),
    Row(
        "RandomPerspective",
        "own own own own",
        "own own own own",
        fixed=("p=0.0",),
        own=("p=1.0", "0.3, p=0.5, interpolation=NEAREST"),
    ),
    Row("ElasticTransform", "own own own own", "own own own own", own=("sigma=1.5", "alpha=20.0, sigma=1.0, fill=9")),
    # Colour.
    Row(
        "ColorJitter",
        "op own own own",
        "op own own own",
        fixed=("", "brightness=(0.5, 0.5)", "contrast=(1.7, 1.7)", "saturation=(0.2, 0.2)", "hue=(0.2, 0.2)"),
        drawn=("0.4, 0.4, 0.4, 0.1", "brightness=0.8, hue=0.5", "saturation=(0.0, 3.0)"),
    ),
    Row("Grayscale", "op own own own", "op own own own", fixed=("", "3")),
    Row("RandomGrayscale", "op own own own", "op own own own", fixed=("p=0.0", "p=1.0"), drawn=("p=0.5",)),
    Row("RGB", None, "op own own own", fixed=("",)),
    Row("RandomChannelPermutation", None, "op own own own", drawn=("",)),
    Row("RandomPhotometricDistort", None, "op own own own", drawn=("", "p=1.0")),
    Row(
        "GaussianBlur",
        "op own own own",
        "op own own own",
        fixed=("5, sigma=1.0", "(3, 7), sigma=(0.7, 0.7)", "61, sigma=3.0"),
        drawn=("5", "(9, 5), sigma=(0.1, 3.0)"),
    ),
    Row("GaussianNoise", None, "- - own -", own=("", "sigma=0.5, clip=False")),
    Row("RandomInvert", "op own own own", "op own own own", fixed=("p=0.0", "p=1.0"), drawn=("p=0.5",)),
    Row(
        "RandomPosterize",
        "op own own own",
        "op own own own",
        fixed=("3, p=1.0", "8, p=1.0", "1, p=0.0"),
        drawn=("2, p=0.5",),
    ),
    Row(
        "RandomSolarize",
        "op own own own",
        "op own own own",
        fixed=("100, p=1.0", "0.4, p=1.0", "0.4, p=0.0"),
        drawn=("0.5, p=0.5",),
    ),
    Row(
        "RandomAdjustSharpness",
        "op own own own",
        "op own own own",
        fixed=("0.0, p=1.0", "2.5, p=1.0", "2, p=0.0"),
        drawn=("2, p=0.5",),
    ),
    Row("RandomAutocontrast", "op own own own", "op own own own", fixed=("p=0.0", "p=1.0"), drawn=("p=0.5",)),
    Row("RandomEqualize", "op own own own", "op own own own", fixed=("p=0.0", "p=1.0"), drawn=("p=0.5",)),
    Row("JPEG", None, "own own/- - own", fixed=("50",)),
    # Automatic augmentation.
    Row(
        "RandAugment",
        "op own own/- own",
        "op own own own",
        drawn=("", "3, 7", "2, 9, interpolation=BILINEAR, fill=[10, 20, 30]"),
    ),
    Row(
        "TrivialAugmentWide",
        "op own own/- own",
        "op own own own",
        drawn=("", "interpolation=BILINEAR", "fill=[10, 20, 30]"),
    ),
    Row(
        "AutoAugment",
        "op own own/- own",
        "op own own own",
        drawn=("", "t.AutoAugmentPolicy.CIFAR10, interpolation=BILINEAR"),
    ),
    Row("AugMix", "own own own/- own", "own own own own", drawn=("", "severity=5, all_ops=False")),
    # Containers.
    Row(
        "Compose",
        "op own own own",
        "op own own own",
        fixed=("[t.ColorJitter((0.5, 0.5)), t.Grayscale(3)]",),
        drawn=("[t.ColorJitter(0.5), t.RandomGrayscale(0.5)]",),
    ),
    Row(
        "RandomApply",
        "op own own own",
        "op own own own",
        fixed=(
            "[t.RandomHorizontalFlip(p=1.0)], p=0.0",
            "[t.RandomHorizontalFlip(p=1.0)], p=1.0",
            "[t.Resize(12), t.CenterCrop(9)], p=1.0",
        ),
        drawn=(
            "[t.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8",
            "[t.GaussianBlur(5), t.RandomSolarize(0.5, p=0.5)], p=0.5",
        ),
        own=("[t.Lambda(negative)], p=0.5",),
    ),
    Row(
        "RandomChoice",
        "op own own own",
        "op own own own",
        fixed=(
            "[t.CenterCrop(9), t.Resize((9, 9))], p=[1.0, 0.0]",
            "[t.CenterCrop(9), t.Resize((9, 9))], p=[0.0, 1.0]",
        ),
        drawn=(
            "[t.CenterCrop(9), t.Resize((9, 9)), t.RandomCrop(9)]",
            "[t.ColorJitter(0.5), t.RandomRotation(30)], p=[0.7, 0.3]",
        ),
        own=("[t.Lambda(negative), t.CenterCrop(9)]",),
    ),
    Row(
        "RandomOrder",
        "op own own own",
        "op own own own",
        drawn=("[t.CenterCrop(15), t.RandomHorizontalFlip(), t.Resize(20)]",),
    ),
    Row("Lambda", "own own own own", "own own own own", fixed=("negative", "same")),
    Row("Identity", None, "nothing nothing nothing nothing/own", fixed=("",)),
    # From one kind of value to another.
    Row("PILToTensor", "op - - own", "op own own own", fixed=("",)),
    Row("ToTensor", "op - - own", "op own own own", fixed=("",)),
    Row("ToImage", None, "op own own own", fixed=("",)),
    Row("ToPILImage", "- own own -", "own/nothing own own own", fixed=("",)),
    Row("ToPureTensor", None, "nothing/own nothing/own nothing/own nothing/own", fixed=("",)),
    Row(
        "ConvertImageDtype",
        "- op/nothing op/nothing/own -",
        "own op/nothing op/nothing/own own",
        fixed=("torch.float32", "torch.uint8"),
        own=("torch.float64", "torch.float16", "torch.bfloat16"),
    ),
    Row(
        "ToDtype",
        None,
        "own/nothing op/nothing op/nothing/own own",
        fixed=("torch.float32, scale=True", "torch.uint8, scale=True"),
        own=(
            "torch.float32",
            "torch.float64, scale=True",
            "torch.bfloat16, scale=True",
            "{tv_tensors.Image: torch.float32, 'others': None}, scale=True",
            "{torch.Tensor: torch.float32, 'others': None}, scale=True",
        ),
    ),
    # Tensors.
    Row(
        "Normalize",
        "- - op -",
        "- - op -",
        fixed=(
            "(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)",
            "[0.5], [0.25]",
            "v1: 0.5, 0.25",
            "torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])",
            "(0.5, 0.5, 0.5), (0.2, 0.2, 0.2), inplace=True",
            "(0.5, 0.5), (0.2, 0.2)",
        ),
    ),
    Row(
        "RandomErasing",
        "own op/own op own",
        "own op/own op own",
        fixed=("p=0.0", "p=1.0, value=(0.1, 0.2)"),
        drawn=(
            "p=1.0",
            "p=0.5, value=0.5",
            "p=1.0, value=(0.1, 0.2, 0.3)",
            "p=1.0, value='random'",
            "p=1.0, inplace=True",
        ),
    ),
    Row(
        "LinearTransformation",
        "- - own -",
        "- own own -",
        fixed=("torch.eye(values), torch.zeros(values)", "torch.eye(5), torch.zeros(5)"),
        size=(6, 5),
    ),
    # Boxes, key points, videos and batches: a picture alone passes, or is refused.
    Row("ClampBoundingBoxes", None, "own own own own", fixed=("",)),
    Row("ClampKeyPoints", None, "own own own own", fixed=("",)),
    Row("ConvertBoundingBoxFormat", None, "own own own own", fixed=("'XYXY'",)),
    Row("SanitizeBoundingBoxes", None, "- - - -", fixed=("",)),
    Row("SanitizeKeyPoints", None, "- - - -", fixed=("",)),
    Row("SetClampingMode", None, "own own own own", fixed=("None",)),
    Row("UniformTemporalSubsample", None, "own own own own", fixed=("2",)),
    Row("CutMix", None, "- - - -", fixed=("num_classes=3",)),
    Row("MixUp", None, "- - - -", fixed=("num_classes=3",)),
)
