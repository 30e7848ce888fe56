"""A source of samples, and its weather: when it answers, and how it fails."""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sophon.codec.cut import RAW, Cut
from sophon.codec.route import Route
from sophon.pipeline import Key
from tests.loader.machine.simulation.clock import Clock
from tests.loader.machine.simulation.content import Content


class Mode(Enum):
    """How a source is just now."""

    WELL = "well"
    SMALL = "does less than asked"  # for every sample
    REFUSING = "refuses"  # a restart: streams break, connections are refused
    GONE = "gone"  # streams and connections fall silent; the transport finds out after its keepalive
    MUTE = "mute"  # it stands, and says nothing
    FROZEN = "frozen"  # as mute, but it goes on afterwards where it was


@dataclass(frozen=True)
class Spell:
    """A stretch of time in one mode."""

    start_s: float
    end_s: float
    mode: Mode


@dataclass(frozen=True)
class Manners:
    """How likely a source does what it should not, by request or by reply, and how fast it is."""

    first_s: float = 0.02  # mean time to the first reply
    gap_s: float = 0.003  # mean time between two messages
    tail: float = 0.0  # a reply takes this much longer, and may take far longer
    tail_s: float = 0.0
    shuffled: float = 0.0  # replies of a request in any order
    twice: float = 0.0  # a reply comes a second time, at once
    late: float = 0.0  # a reply comes a second time, some time later, whatever has become of its request
    short: float = 0.0  # a stream ends early, without an error
    broken: float = 0.0  # a stream breaks
    final: float = 0.0  # an error that is no use retrying
    small: float = 0.0  # a reply is a smaller cut than asked for
    endless: float = 0.0  # everything has come, but not the end

    @property
    def is_calm(self) -> bool:
        """Whether everything that is asked for comes soon."""
        return self.tail == self.short == self.broken == self.final == self.endless == 0


class Source:
    """A storage node, or the path to fall back on."""

    def __init__(self, number: int, clock: Clock, content: Content, seed: int, spells: list[Spell], manners: Manners):
        self.number = number
        self.manners = manners
        self._mode = Mode.WELL
        self._relays: list[Relay] = []
        self.random = random.Random(seed)
        self._content = content
        self._clock = clock
        self.spells = spells
        self.streams: dict[int, Any] = {}  # under way, in the order of their beginning
        for spell in spells:
            clock.after(spell.start_s, self._turn, spell.mode)
            if spell.end_s < float("inf"):
                clock.after(spell.end_s, self._turn, Mode.WELL)

    @property
    def mode(self) -> Mode:
        return self._mode

    def _turn(self, mode: Mode) -> None:
        befores = [relay.mode for relay in self._relays]
        before, self._mode = self.mode, mode
        for stream in list(self.streams.values()):
            stream.weather(before, self.mode)
        for relay, its in zip(self._relays, befores, strict=True):
            relay.notice(its)

    def is_good_from(self, start_s: float) -> bool:
        """Return whether it answers soon whatever it is asked for, from some time on and for ever."""
        bad = (Mode.REFUSING, Mode.GONE, Mode.MUTE, Mode.FROZEN)
        return self.manners.is_calm and not any(s.end_s > start_s and s.mode in bad for s in self.spells)

    def answer(self, key: Key, asked: Cut | Route) -> tuple[Cut, Any]:
        """Return the cut that is really made, and its payload."""
        asked = cut = asked.cuts[0] if isinstance(asked, Route) else asked
        if self.mode is Mode.SMALL or self.random.random() < self.manners.small:
            smaller = [c for c in self._content.cuts if c.k < asked.k]
            cut = RAW if self.mode is Mode.SMALL or not smaller else self.random.choice(smaller)
        return cut, self._content.make(key, cut)


class Relay(Source):
    """A source that gets from a node what it is asked for: the weather there is its own, too."""

    def __init__(self, node: Source, *args: Any) -> None:
        self.node = node
        super().__init__(*args)
        node._relays.append(self)

    @property
    def mode(self) -> Mode:
        is_up = self.node.mode in (Mode.WELL, Mode.SMALL)
        return self._mode if is_up or self._mode not in (Mode.WELL, Mode.SMALL) else Mode.REFUSING

    def notice(self, before: Mode) -> None:
        """The node has changed: it is the relay that says so."""
        if self.mode is not before:
            for stream in list(self.streams.values()):
                stream.weather(before, self.mode)

    def is_good_from(self, start_s: float) -> bool:
        return super().is_good_from(start_s) and self.node.is_good_from(start_s)

    def answer(self, key: Key, asked: Cut | Route) -> tuple[Cut, Any]:
        route = asked if isinstance(asked, Route) else Route((asked, asked))
        made, payload = self.node.answer(key, route.cuts[0])
        does_less = self.mode is Mode.SMALL or self.random.random() < self.manners.small
        if does_less or made == route.arrival or not self._content.can_follow(made, route.arrival):
            return made, payload
        return route.arrival, self._content.pass_on(key, Route((made, route.arrival)), payload)
