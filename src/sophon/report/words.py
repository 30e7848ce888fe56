"""Plain sentences: what training waits for, what a plan wins, and when it would not."""

from __future__ import annotations

from dataclasses import dataclass

from sophon.codec.cut import RAW, Cut
from sophon.units import format_bandwidth, format_seconds

PART = {
    "link": "the link",
    "storage": "the storage node's CPU",
    "trainer": "the trainer's CPU",
    "consumer": "the training step itself",
}
WORTHWHILE = 1.03  # a gain below this is not told from noise: epochs repeat within one to three per cent


@dataclass(frozen=True)
class Epoch:
    """What the sentences need of one epoch.

    Args:
        epoch_s: Seconds that it takes.
        link_bytes: Bytes that cross the link.
        bottleneck: What decides: link, storage, trainer or consumer.
        trainer_s: Seconds that the trainer's cores are busy.
        consumer_s: Seconds that the consumer is busy.
    """

    epoch_s: float
    link_bytes: float
    bottleneck: str
    trainer_s: float = 0.0
    consumer_s: float = 0.0


def cut_label(cut: Cut) -> str:
    """Return a cut and what it means, such as ``0:window, part of the file``."""
    meaning = "raw file" if cut == RAW else "part of the file" if cut.codec == "window" else _after(cut.k)
    return f"{cut}, {meaning}"


def _after(ops: int) -> str:
    return "whole file" if ops == 0 else f"after {ops} op{'' if ops == 1 else 's'}"


def ratio(before: float, after: float) -> float:
    """Return how many times less, 1 where there is nothing to compare."""
    return before / after if after > 0 and before > 0 else 1.0


def times(value: float) -> str:
    """Return a factor for people, such as ``2.3×``."""
    return f"{value:.2g}×" if value < 9.95 else f"{value:.0f}×"


def sentences(before: Epoch, after: Epoch, policy: str, *, measured: bool) -> tuple[str, ...]:
    """Return two or three sentences about a policy beside doing nothing."""
    return tuple(filter(None, (_wins(before, after, policy, measured=measured), _limits(before, after))))


def _wins(before: Epoch, after: Epoch, policy: str, *, measured: bool) -> str:
    verb = "took" if measured else "would take"
    waits = f"When the raw files are sent, training waits for {PART.get(before.bottleneck, before.bottleneck)}"
    alone = f"{waits}: an epoch {verb} {format_seconds(before.epoch_s)}."
    gain, traffic = ratio(before.epoch_s, after.epoch_s), ratio(before.link_bytes, after.link_bytes)
    if gain < WORTHWHILE:
        other = "not faster" if gain > 1 / WORTHWHILE else "slower"
        return (
            f"{alone} The policy {policy} is {other} here ({format_seconds(after.epoch_s)}): leave things as they are."
        )
    then = PART.get(after.bottleneck, after.bottleneck)
    moved = f"moved {times(traffic)} less data" if traffic >= WORTHWHILE else "moved work, not bytes,"
    moved = moved if measured else moved.replace("moved", "moves", 1)
    still = "still decides" if after.bottleneck == before.bottleneck else "decides then"
    done = "finished" if measured else "finishes"
    return f"{alone} The policy {policy} {moved} and {done} in {format_seconds(after.epoch_s)}, {times(gain)} sooner; {then} {still}."


def _limits(before: Epoch, after: Epoch) -> str:
    rest_s = max(before.trainer_s, before.consumer_s)
    if before.bottleneck != "link" or ratio(before.epoch_s, after.epoch_s) < WORTHWHILE or rest_s <= 0:
        return ""
    who = PART["trainer"] if before.trainer_s >= before.consumer_s else PART["consumer"]
    enough = format_bandwidth(float(f"{before.link_bytes / rest_s:.2g}"))
    return (
        f"On a link faster than about {enough} there would be nothing to win by sending less: raw files then come as fast "
        f"as {who} can take them."
    )
