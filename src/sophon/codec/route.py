"""Routes: how one sample's pipeline is divided among the places it passes through.

Between two places, storage node and trainer, there is one cut, and the route is written as that cut: ``2:webp``. With a
relay between them there are two: ``0:window/2:raw`` sends a window to the relay, which runs the ops up to the second
cut and sends the result on uncompressed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from sophon.codec.cut import RAW, Cut, is_exact
from sophon.errors import ConfigError

_CUT = re.compile(r"(\d{1,4}):([A-Za-z0-9_.:+-]{1,32})")
_MOST_CUTS = 2


@dataclass(frozen=True, order=True, slots=True)
class Route:
    """One or two cuts, in the order in which a sample passes them.

    Args:
        cuts: The cuts; the second has at least as many ops done as the first.
    """

    cuts: tuple[Cut, ...]

    def __post_init__(self) -> None:
        cuts = tuple(self.cuts)
        odd = [cut for cut in cuts if not isinstance(cut, Cut) or _CUT.fullmatch(str(cut)) is None]
        rising = all(one.k <= two.k for one, two in pairwise(cuts))
        if odd or not 1 <= len(cuts) <= _MOST_CUTS or not rising:
            raise ConfigError(
                f"{'/'.join(map(str, cuts))[:80]!r} is not a route; one cut such as 2:webp was expected, or two such "
                "as 0:window/2:rawwhere the second has at least as many ops done."
            )
        object.__setattr__(self, "cuts", cuts)

    def __str__(self) -> str:
        return "/".join(map(str, self.cuts))

    @classmethod
    def parse(cls, text: str) -> Route:
        """Return the route for a text such as ``2:webp`` or ``0:window/2:raw``.

        Its codecs need not exist here, only where the route is used.
        """
        cuts = []
        for part in text.split("/"):
            found = _CUT.fullmatch(part)
            if found is None:
                raise ConfigError(
                    f"{text[:80]!r} is not a route; cuts of ops done and codec were expected, such as 2:webp or "
                    "0:window/2:raw."
                )
            cuts.append(Cut(int(found[1]), found[2]))
        return cls(tuple(cuts))

    @classmethod
    def of(cls, way: Cut | Route) -> Route:
        """Return a route unchanged, or a cut as a route with that one cut."""
        return way if isinstance(way, Route) else cls((way,))

    @property
    def arrival(self) -> Cut:
        """The cut at which the sample reaches the trainer."""
        return self.cuts[-1]

    @property
    def is_direct(self) -> bool:
        """Whether there is nothing between storage node and trainer."""
        return len(self.cuts) == 1

    @property
    def is_exact(self) -> bool:
        """Whether every bit of the tensors is preserved."""
        return all(map(is_exact, self.cuts))


UNTOUCHED = Route((RAW,))
