"""A result of ``sophon bench paper`` with every part it can have, made up but plausible."""

from __future__ import annotations

from typing import Any

_EPOCH_S = {"none": 5.2, "all": 31.0, "fastflow": 5.2, "resize": 7.8, "sophon": 4.7, "optimal": 2.2}
_BYTES = {"none": 24.1e6, "all": 144.5e6, "fastflow": 24.1e6, "resize": 36.1e6, "sophon": 21.4e6, "optimal": 9.9e6}
_CUTS = {
    "none": {"0:raw": 240},
    "all": {"5:raw": 240},
    "fastflow": {"0:raw": 240},
    "resize": {"2:raw": 240},
    "sophon": {"0:raw": 172, "2:raw": 68},
    "optimal": {"0:window": 185, "2:webp": 55},
}
_OPS = ["raw", "Decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
_PAPER = {
    "traffic": {"none": 1.0, "all": 0.196, "fastflow": 1.0, "resize": 0.769, "sophon": 1.2},
    "time": {"sophon": 1.2},
}


def minimal_result() -> dict[str, Any]:
    """Return a result with nothing but epoch seconds and bytes."""
    return {
        "policies": {name: {"epoch_s": _EPOCH_S[name], "link_bytes": _BYTES[name]} for name in ("none", "optimal")},
    }


def full_result(data: str = "240 images in photos") -> dict[str, Any]:
    """Return a result with every part, of a data set of this name."""
    policies = {name: _policy(name) for name in _EPOCH_S}
    gains = {name: {"traffic": _BYTES["none"] / _BYTES[name], "time": 5.2 / _EPOCH_S[name]} for name in _EPOCH_S}
    quantiles = [max(0.0, place - 24.0) ** 2 * 1e4 for place in range(101)]
    return {
        "format": "bench-paper",
        "version": 1,
        "data": data,
        "like": "imagenet",
        "made_up": True,
        "samples": 240,
        "mean_file_bytes": 100_674.0,
        "shaped_by": "tbf",
        "link_bytes_per_s": 5e6,
        "storage_cores": 1.0,
        "trainer_cores": 1.0,
        "consumer": {"kind": "stand-in", "samples_per_s": 2000.0, "words": "a stand-in that sleeps: 2,000/s"},
        "policies": policies,
        "identical": True,
        "gains": gains,
        "paper": {"imagenet": _PAPER},
        "figures": {
            "1a": {
                "ops": _OPS,
                "samples": [
                    {"name": "A: a large file", "bytes": [462_000, 2_359_296, 150_528, 150_528, 602_112, 602_112]},
                    {"name": "B: a small file", "bytes": [98_000, 562_500, 150_528, 150_528, 602_112, 602_112]},
                ],
                "paper": {"A": {"raw": 462_000, "RandomResizedCrop": 151_000}},
            },
            "1b": {
                "datasets": {
                    "imagenet": {
                        "shares": {"raw": 0.72, "RandomResizedCrop": 0.28},
                        "with_codecs": {"0:window": 0.77, "2:webp": 0.23},
                    }
                },
                "paper": {"imagenet": {"raw": 0.74, "RandomResizedCrop": 0.26}},
            },
            "1c": {
                "datasets": {
                    "imagenet": {"zero_share": 0.24, "bytes_per_cpu_s": quantiles, "with_codecs": quantiles}
                },
                "paper": {"imagenet": {"zero_share": 0.74}},
            },
            "1d": {
                "models": [
                    {
                        "name": name,
                        "like": like,
                        "policies": {"none": {"utilisation": busy}, "optimal": {"utilisation": 0.98}},
                    }
                    for name, like, busy in (("heavy", "ResNet50", 0.97), ("light", "ResNet18", 0.3))
                ],
                "paper": {"ResNet50": 1.0, "ResNet18": 0.35},
            },
            "3": {"datasets": {"imagenet": {"gains": gains}}, "paper": {"imagenet": _PAPER}},
            "4": {
                "data": data,
                "policies": {
                    name: [
                        {
                            "storage_cores": cores,
                            "epoch_s": seconds * (1 + factor / (0.1 + cores)),
                            "predicted_s": seconds * (1 + factor / (0.1 + cores)) * 0.97,
                            "link_bytes": _BYTES[name],
                        }
                        for cores in (0, 0.1, 0.2, 0.4, 1)
                    ]
                    for name, seconds, factor in (("none", 5.2, 0.0), ("resize", 3.0, 0.4), ("optimal", 2.2, 0.1))
                },
            },
        },
    }  # fmt: skip


def _policy(name: str) -> dict[str, Any]:
    seconds = _EPOCH_S[name]
    return {
        "link_bytes": _BYTES[name],
        "interface_bytes": _BYTES[name] * 1.05,
        "epoch_s": seconds,
        "epoch_s_all": [seconds * 0.99, seconds, seconds * 1.02],
        "predicted_s": seconds * 0.97,
        "bottleneck": "storage" if name == "all" else "link",
        "storage_cpu_s": 0.4,
        "trainer_cpu_s": 1.0,
        "idle_share": 0.97,
        "sha256": "3f" * 32,
        "predicted": {"link_s": seconds * 0.97, "storage_s": 0.3, "trainer_s": 0.8, "consumer_s": 0.12},
        "cuts": _CUTS[name],
        "timeline": [
            {"start_s": 0, "end_s": seconds * 0.2, "bottleneck": "storage"},
            {"start_s": seconds * 0.2, "end_s": seconds, "bottleneck": "link"},
        ],
    }
