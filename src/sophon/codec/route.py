"""Routes: how the pipeline is divided among the places that a sample passes through.

Between a storage node and a trainer there is one cut, and the route is written as that cut: ``2:webp``. With a relay
between them there are two cuts: ``0:window/2:raw`` sends a window to the relay, which runs the ops up to the second cut
and sends the result on uncompressed.

A window is enough for the crop and the ops after it, and for nothing else: a relay cannot restore the file or the whole
picture from it. A sample whose fields belong together (`sophon.codec.targets`) is relayed from its file, since only the
trainer can unpack the payload that a node makes from such a sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sophon.codec import views
from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut, check_cut, finish_payload, is_exact, legal_cuts, looks_ahead, make_payload
from sophon.codec.table import CODECS
from sophon.errors import ConfigError
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.region import can_crop_early

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
                f"{'/'.join(map(str, cuts))[:80]!r} is not a route; expected one cut such as 2:webp, or two such as "
                "0:window/2:raw, where the second has at least as many ops done."
            )
        object.__setattr__(self, "cuts", cuts)

    def __str__(self) -> str:
        return "/".join(map(str, self.cuts))

    @classmethod
    def parse(cls, text: str) -> Route:
        """Parse a route such as ``2:webp`` or ``0:window/2:raw``.

        Its codecs need to exist only where the route is used, not here.
        """
        cuts = []
        for part in text.split("/"):
            found = _CUT.fullmatch(part)
            if found is None:
                raise ConfigError(
                    f"{text[:80]!r} is not a route; expected cuts written as NUMBER:CODEC, such as 2:webp or "
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


def can_follow(pipeline: Pipeline, first: Cut, cut: Cut) -> bool:
    """Return whether a relay can make the second of two legal cuts from what crosses the link at the first."""
    if first == cut:
        return True
    if (pipeline.is_joint or pipeline.fields) and first != RAW:
        return False
    if looks_ahead(first):
        return can_crop_early(pipeline, cut.k)
    return first.k <= cut.k if not looks_ahead(cut) else first.k == 0


def legal_routes(
    pipeline: Pipeline, codecs: Iterable[str] = tuple(CODECS), *, allow_lossy: bool = False
) -> list[Route]:
    """Return every route through one relay that a pipeline can take.

    Args:
        pipeline: The pipeline to divide.
        codecs: Names of the codecs to consider.
        allow_lossy: Also consider codecs that change the value.
    """
    cuts = legal_cuts(pipeline, codecs, allow_lossy=allow_lossy)
    return [Route((first, cut)) for first in cuts for cut in cuts if can_follow(pipeline, first, cut)]


def pass_on(pipeline: Pipeline, payload: Payload, key: Key, route: Route, trace: Trace | None = None) -> bytes:
    """Do a relay's part: decode the payload of the first cut, run the ops up to the second, and encode the result.

    Args:
        pipeline: The pipeline.
        payload: The received payload.
        key: Key of the random ops.
        route: Both cuts.
        trace: Records every op that runs.

    Raises:
        ConfigError: The route is not one of `legal_routes`.
    """
    first, cut = route.cuts[0], route.arrival
    source, codec = check_cut(pipeline, first), check_cut(pipeline, cut)
    if not can_follow(pipeline, first, cut):
        raise ConfigError(f"a relay that receives {first} cannot turn it into {cut}; it needs the file: {RAW}/{cut}")
    if first == cut:
        return bytes(payload)
    if first.k == 0 and not looks_ahead(first):
        file = views.decode(source, payload, pipeline.specs[0])
        assert isinstance(file, bytes | memoryview)
        return make_payload(pipeline, bytes(file), key, cut, trace)
    made = views.encode(codec, finish_payload(pipeline, payload, key, first, cut.k, trace=trace))
    if trace is not None:
        trace.coded()
    return made
