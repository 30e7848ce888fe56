"""The paper's own values.

M. Wang, G. Waldspurger, S. Sundararaman, *A Selective Preprocessing Offloading Framework for Reducing Data Traffic in
DL Training*, HotStorage '24, sections 2 and 4. Gains are relative to No-Off, above 1 if fewer bytes cross the link or
an epoch is shorter. Only values stated in the text are included, not those that its plots show without a number.
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, dict[str, Any]] = {
    "openimages": {
        "traffic": {"none": 1.0, "all": 1 / 1.9, "fastflow": 1.0, "resize": 2.0, "sophon": 2.2},
        "time": {"none": 1.0, "fastflow": 1.0, "sophon": 2.2},
        "smaller_after_ops_share": 0.76,
    },
    "imagenet": {
        "traffic": {"none": 1.0, "all": 1 / 5.1, "fastflow": 1.0, "resize": 1 / 1.3, "sophon": 1.2},
        "time": {"none": 1.0, "fastflow": 1.0, "sophon": 1.2},
        "smaller_after_ops_share": 0.26,
    },
}
FIGURE_1A = {"A": {"raw": 462_000, "RandomResizedCrop": 151_000}}
FIGURE_1B = {
    like: {"raw": 1 - row["smaller_after_ops_share"], "RandomResizedCrop": row["smaller_after_ops_share"]}
    for like, row in PAPER.items()
}
FIGURE_1C = {"openimages": {"zero_share": 0.24}}
FIGURE_1D = {"ResNet50": 1.0, "ResNet18": 0.35}  # "near-maximal" and "about 65 % of its time in … idle state"
FIGURE_4_WORDS = (
    "all is slowest, and even slower with one core; fastflow offloads nothing; resize is slower than none with two "
    "cores or fewer; sophon is always fastest; the first core saves it 22 s, and the fifth 9 s"
)
