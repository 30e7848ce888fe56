"""Colours: one for each policy, cut and bottleneck, the same in every figure, on light and on dark pages.

Policies use the colours of Okabe and Ito, cuts and bottlenecks those of Paul Tol (muted and bright): sets made for
colour-blind readers, which also differ in lightness. A figure is drawn in the light colours; on the page each becomes a
CSS variable named after its tint, so no two tints may share a light colour (`tests/report/test_palette.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sophon.codec.route import Route

Tint = tuple[str, str]  # on a light page, on a dark page

INK: dict[str, Tint] = {
    "ink": ("#1c2330", "#e8eaee"),
    "muted": ("#5b6472", "#a3abb8"),
    "rule": ("#dfe3e8", "#343b47"),
    "ground": ("#ffffff", "#171b22"),
}
POLICY: dict[str, Tint] = {
    "none": ("#78808c", "#98a1ae"),
    "all": ("#d55e00", "#f58a3c"),
    "resize": ("#e69f00", "#f0b73f"),
    "fastflow": ("#cc79a7", "#de9cc1"),
    "sophon": ("#0072b2", "#4ba6dd"),
    "optimal": ("#009e73", "#35c79c"),
}
BOTTLENECK: dict[str, Tint] = {
    "balance": ("#aa3377", "#d077a9"),
    "link": ("#4477aa", "#76a5d4"),
    "storage": ("#ee6677", "#f48b98"),
    "trainer": ("#ccbb44", "#d9cb66"),
    "consumer": ("#a8adb5", "#7d8592"),
    "reads": ("#66ccee", "#8ad8f2"),
    "store": ("#228833", "#4fae6e"),
    "relay": ("#ee8866", "#f4a68c"),
    "relay-link": ("#77aadd", "#95c0ea"),
}
CUT: dict[str, Tint] = {
    "cut-raw-0": ("#8b919b", "#8f98a5"),
    "cut-window": ("#44aa99", "#5cc4b2"),
    "cut-webp": ("#aa4499", "#cf72c0"),
    "cut-zstd": ("#332288", "#8d7fe0"),
    "cut-raw-1": ("#88ccee", "#9bd6f4"),
    "cut-raw-2": ("#ddcc77", "#e6d88f"),
    "cut-raw-3": ("#cc6677", "#e08a98"),
    "cut-raw-4": ("#999933", "#b9b95c"),
    "cut-raw-5": ("#882255", "#c2608f"),
    "cut-other-1": ("#117733", "#4fae6f"),
    "cut-other-2": ("#661100", "#b5654f"),
    "cut-other-3": ("#6699cc", "#85b2e0"),
}
OTHER: dict[str, Tint] = {
    "first": ("#0073b3", "#4ba7de"),  # plain figures without policies or cuts; close to `sophon` and `all`
    "second": ("#d65e00", "#f58b3d"),
    "third": ("#777f8b", "#97a0ad"),
}
TINTS: dict[str, Tint] = {**INK, **POLICY, **BOTTLENECK, **CUT, **OTHER}
_CROPPED = 2  # ops after which picture codecs are useful: Decode and a crop
_SPARE = [name for name in CUT if name.startswith("cut-other")]


def light(name: str) -> str:
    """Return the colour in which figures are drawn."""
    return TINTS[name][0]


def policy_tint(name: str) -> str:
    """Return the tint of a policy; an unknown policy gets a plain tint."""
    return name if name in POLICY else "third"


def bottleneck_tint(name: str) -> str:
    """Return the tint of a bottleneck; for a resource of one node, the tint of its kind."""
    name = name.split(" of ", 1)[0]
    return name if name in BOTTLENECK else "balance" if "balance" in name else "third"


def cut_tints(routes: Sequence[Route]) -> dict[Route, str]:
    """Return a tint for each route: fixed for the usual cuts; for others, always the same given the same routes."""
    tints: dict[Route, str] = {}
    spare = iter(_SPARE * len(routes))
    for route in sorted(routes, key=lambda route: (not route.is_direct, route.arrival.k != _CROPPED, route)):
        cut = route.arrival
        usual = f"cut-raw-{min(cut.k, 5)}" if cut.codec == "raw" else f"cut-{cut.codec}"
        tints[route] = usual if usual in CUT and usual not in tints.values() else next(spare)
    return tints
