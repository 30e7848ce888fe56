"""Writes plain sentences: what training waits for, what a plan gains, and when it would gain nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sophon.codec.route import UNTOUCHED, Route
from sophon.plan.cost import Prediction
from sophon.plan.resources import KINDS, Resources
from sophon.units import format_bandwidth, format_rate, format_seconds, parse_bandwidth

PART = {kind.name: kind.words for kind in KINDS}
WORTHWHILE = 1.03  # a smaller gain is noise: epochs repeat within one to three percent


@dataclass(frozen=True)
class Epoch:
    """What the sentences need to know about one epoch.

    Args:
        epoch_s: Duration of the epoch in seconds.
        link_bytes: Bytes that cross the link.
        bottleneck: What limits the epoch: link, storage, trainer or consumer.
        trainer_s: Seconds that the trainer's cores are busy.
        consumer_s: Seconds that the consumer is busy.
    """

    epoch_s: float
    link_bytes: float
    bottleneck: str
    trainer_s: float = 0.0
    consumer_s: float = 0.0

    @classmethod
    def of(cls, made: Prediction) -> Epoch:
        """Return the facts of a predicted epoch."""
        return cls(made.epoch_s, made.link_bytes, made.bottleneck, made.trainer_s, made.consumer_s)


def part_words(label: str) -> str:
    """Return the words for a resource, such as ``the link``; with the node's name if it belongs to a node."""
    kind, of, node = label.partition(" of ")
    return f"{PART.get(kind, kind)}{of}{node}"


def cut_label(route: Route) -> str:
    """Return a route and what it means, such as ``0:window, part of the file``."""
    cut = route.arrival
    meaning = "raw file" if route == UNTOUCHED else "part of the file" if cut.codec == "window" else _after(cut.k)
    return f"{route}, {meaning}"


def _after(ops: int) -> str:
    return "whole file" if ops == 0 else f"after {ops} op{'' if ops == 1 else 's'}"


def most_words(share: float) -> str:
    """Return the share of the most frequent cut, as the start of a sentence."""
    return (
        "All samples"
        if share == 1
        else f"Most samples ({100 * share:.0f} %)"
        if share > 0.5
        else f"{100 * share:.0f} %"
    )


def cores(count: float, where: str) -> str:
    """Return a number of cores, such as ``1 storage core``."""
    return f"{count:g} {where} core{'' if count == 1 else 's'}"


def given(resources: Resources) -> str:
    """Return the resources in words; an unknown consumer is left out."""
    shown = []
    for resource in resources.rows():
        own = f" of {resources.nodes[resource.part].name}" if resource.part is not None else ""
        words = _GIVEN.get(resource.kind.name, resource.kind.show)
        shown.append(f"{words(resource.rate)}{own}")
    return ", ".join(shown)


_GIVEN: dict[str, Callable[[float], str]] = {
    "link": lambda rate: f"a link of {format_bandwidth(rate)}",
    "storage": lambda count: cores(count, "storage"),
    "trainer": lambda count: cores(count, "trainer"),
    "consumer": lambda rate: f"a consumer of {format_rate(rate)}",
}


def ratio(before: float, after: float) -> float:
    """Return the factor by which an amount shrinks; 1 if there is nothing to compare."""
    return before / after if after > 0 and before > 0 else 1.0


def times(value: float) -> str:
    """Return a factor as text, such as ``2.3×``."""
    return f"{value:.2g}×" if value < 9.95 else f"{value:.0f}×"


def sentences(before: Epoch, after: Epoch, policy: str, *, measured: bool) -> tuple[str, ...]:
    """Return two or three sentences that compare a policy with doing nothing."""
    return tuple(filter(None, (_wins(before, after, policy, measured=measured), _limits(before, after))))


def claim(before: Epoch, after: Epoch, policy: str, *, measured: bool) -> str:
    """Return the conclusion in one sentence, short enough for a headline."""
    gain, traffic = ratio(before.epoch_s, after.epoch_s), ratio(before.link_bytes, after.link_bytes)
    if gain < WORTHWHILE:
        return "Sending raw files is the best that can be done here"
    how = f"Sending {times(traffic)} less data" if traffic >= WORTHWHILE else "Moving work to the storage node"
    verb = "makes" if measured else "would make"
    return f"{how} {verb} an epoch {times(gain)} shorter (policy {policy})"


def _wins(before: Epoch, after: Epoch, policy: str, *, measured: bool) -> str:
    verb = "took" if measured else "would take"
    waits = f"training waits for {part_words(before.bottleneck)}"
    if before.bottleneck == "consumer":
        waits = "data arrive fast enough, and the training step itself takes the time"
    alone = f"When the raw files are sent, {waits}: an epoch {verb} {format_seconds(before.epoch_s)}."
    gain, traffic = ratio(before.epoch_s, after.epoch_s), ratio(before.link_bytes, after.link_bytes)
    if gain < WORTHWHILE:
        other = "not faster" if gain > 1 / WORTHWHILE else "slower"
        return (
            f"{alone} The policy {policy} is {other} here ({format_seconds(after.epoch_s)}): nothing needs to change."
        )
    then = part_words(after.bottleneck)
    moved = f"moved {times(traffic)} less data" if traffic >= WORTHWHILE else "moved work rather than bytes"
    moved = moved if measured else moved.replace("moved", "moves", 1)
    still = "is still the bottleneck" if after.bottleneck == before.bottleneck else "is the bottleneck then"
    done = "finished" if measured else "finishes"
    sooner = f"{done} in {format_seconds(after.epoch_s)}, {times(gain)} sooner"
    return f"{alone} The policy {policy} {moved} and {sooner}; {then} {still}."


def _limits(before: Epoch, after: Epoch) -> str:
    rest_s = max(before.trainer_s, before.consumer_s)
    if before.bottleneck != "link" or ratio(before.epoch_s, after.epoch_s) < WORTHWHILE or rest_s <= 0:
        return ""
    who = PART["trainer"] if before.trainer_s >= before.consumer_s else PART["consumer"]
    bit_per_s = parse_bandwidth("1bit")  # two significant digits
    enough = format_bandwidth(float(f"{before.link_bytes / rest_s / bit_per_s:.2g}") * bit_per_s)
    return (
        f"On a link faster than about {enough} there would be nothing to gain from sending less: raw files then "
        f"arrive as fast as {who} can take them."
    )
