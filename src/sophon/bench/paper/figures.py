"""The paper's figures, each as data; see `schema.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.bench.ops import RECIPE
from sophon.bench.paper import published
from sophon.bench.paper.datasets import PaperData
from sophon.bench.paper.race import Race
from sophon.codec import RAW, Cut, make_payload
from sophon.errors import Error
from sophon.pipeline import Key
from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from sophon.profile.table import Profile
from sophon.store import open_store

OPS = ("raw", *(op.name() for op in RECIPE.ops))
# Speed of each model as a multiple of the rate at which raw files arrive: 0.9 is almost never idle, 1 / 0.35 waits 65 %
# of its time.
MODELS = (("heavy", "ResNet50", 0.9), ("medium", None, 1.6), ("light", "ResNet18", 1 / 0.35))
_QUANTILES = np.linspace(0, 1, 101)
_ALMOST_NOTHING_S = 1e-6  # below the resolution of the clock; bounds all ratios


def figure_1a(data: PaperData, seed: int, epoch: int) -> dict[str, Any]:
    """Bytes after each op for two samples: one that ops make smaller, and one that is smallest as a raw file."""
    store = open_store(data.folder)
    sizes = [int(size) for size in store.manifest.sizes]
    order = np.argsort(sizes)
    # As in the paper: A has about 1.5 times the mean size, and B is smaller than a crop.
    picks = {
        "A: a large file": int(order[int(0.85 * len(order))]),
        "B: a small file": int(order[int(0.15 * len(order))]),
    }
    samples = []
    for name, sample in picks.items():
        file, key = store.read(sample), Key(seed, epoch, sample)
        after = [len(make_payload(RECIPE, file, key, Cut(k))) for k in range(len(OPS))]
        codecs = {}
        for text in ("0:window", "2:webp"):
            try:
                codecs[text] = len(make_payload(RECIPE, file, key, Cut.parse(text)))
            except Error:  # this cut is not possible for this file, or in this installation
                continue
        samples.append({"name": name, "file": store.manifest.ids[sample].as_py(), "bytes": after, "codecs": codecs})
    return {"ops": list(OPS), "samples": samples, "paper": published.FIGURE_1A}


def figure_1b(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Share of samples by the op after which they are smallest."""
    datasets = {}
    for like, profile in profiles.items():
        raw = profile.raw_columns()
        least = [profile.cuts[raw[i]].k for i in profile.payload_bytes[:, raw].argmin(axis=1)]
        every = [str(profile.cuts[i]) for i in profile.payload_bytes.argmin(axis=1)]
        datasets[like] = {
            "samples": len(profile),
            "shares": _shares([OPS[k] for k in least]),
            "with_codecs": _shares(every),
        }
    return {"datasets": datasets, "paper": published.FIGURE_1B}


def _shares(names: list[str]) -> dict[str, float]:
    return {name: names.count(name) / len(names) for name in sorted(set(names))}


def figure_1c(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    """Bytes saved per CPU second near storage by each sample's smallest cut, as quantiles."""
    datasets = {}
    for like, profile in profiles.items():
        papers = _efficiency(profile, np.array(profile.raw_columns()))
        every = _efficiency(profile, np.arange(len(profile.cuts)))
        datasets[like] = {
            "zero_share": float((papers == 0).mean()),
            "bytes_per_cpu_s": np.quantile(papers, _QUANTILES).tolist(),
            "with_codecs": np.quantile(every, _QUANTILES).tolist(),
        }
    return {"datasets": datasets, "paper": published.FIGURE_1C}


def _efficiency(profile: Profile, columns: NDArray[np.intp]) -> NDArray[np.float64]:
    rows = np.arange(len(profile))
    chosen = columns[profile.payload_bytes[:, columns].argmin(axis=1)]
    saved = profile.payload_bytes[:, profile.column(RAW)] - profile.payload_bytes[rows, chosen]
    spent_s = np.maximum(profile.storage_s[rows, chosen], _ALMOST_NOTHING_S)
    return np.where(saved > 0, saved / spent_s, 0.0).astype(np.float64)


def figure_1d(
    race_at: Callable[[float], Race],
    profile: Profile,
    link_bytes_per_s: float,
    goodput_bytes_per_s: float,
    repeats: int,
) -> dict[str, Any]:
    """Utilisation of consumers of three speeds, with raw files and with the best plan."""
    raw = make_plan(profile, Resources(goodput_bytes_per_s, 1, 1), "none").prediction
    models = []
    for name, like, factor in MODELS:
        speed = factor * len(profile) / raw.link_s
        policies = race_at(speed).run(1.0, policies=("none", "optimal"), repeats=repeats)["policies"]
        models.append(
            {
                "name": name,
                "like": like,
                "samples_per_s": speed,
                "policies": {
                    policy: {"utilisation": 1 - row["idle_share"], "epoch_s": row["epoch_s"]}
                    for policy, row in policies.items()
                },
            }
        )
    return {"link_bytes_per_s": link_bytes_per_s, "models": models, "paper": published.FIGURE_1D}


def figure_4(race: Race, data: PaperData, cores: tuple[float, ...], repeats: int) -> dict[str, Any]:
    """Epoch seconds and traffic of every policy with few and many storage cores."""
    kept = ("epoch_s", "epoch_s_all", "predicted_s", "bottleneck", "link_bytes", "interface_bytes", "storage_cpu_s")
    policies: dict[str, list[dict[str, Any]]] = {}
    for count in cores:
        for name, row in race.run(count, repeats=repeats)["policies"].items():
            point = {"storage_cores": count, **{key: row[key] for key in (*kept, "smaller_cuts")}}
            policies.setdefault(name, []).append(point)
    return {
        "data": data.words,
        "like": data.like,
        "samples": data.samples,
        "storage_cores": list(cores),
        "policies": policies,
        "paper": {"words": published.FIGURE_4_WORDS},
    }
