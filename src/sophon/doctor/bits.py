"""Checks on a real node, with real samples and at every cut, that both sides give the model the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sophon.codec.cut import Cut, finish_payload, legal_cuts
from sophon.codec.table import offered
from sophon.doctor.finding import ADVICE, FAULT, FINE, Finding
from sophon.doctor.samples import request_for
from sophon.errors import Error
from sophon.link.transport import Opened, Transport
from sophon.pipeline import Key, Pipeline

_SAMPLES: Final = 3
_PATIENCE_S: Final = 30.0
_SAME_RELEASES: Final = (
    "Install the same versions on the trainer and the storage node; until then these ops run on the trainer."
)


def examine_bits(
    about: str, transport: Transport, opened: Opened, pipeline: Pipeline, files: dict[int, bytes]
) -> Iterator[Finding]:
    """Compare the results of samples at every cut with those without a cut.

    Args:
        about: Where the samples are.
        transport: Transport to the samples' source.
        opened: The data set, as the source described it.
        pipeline: The pipeline to run.
        files: Bytes of samples that were sent raw.
    """
    from sophon.loader.sources.assignment import count_agreed, differences  # the loader takes a moment to import

    agreed = count_agreed(pipeline, opened)
    if agreed < pipeline.max_cut:
        op = pipeline.ops[agreed].name()
        if opened.reason:
            text = f"{op} and the ops after it cannot run there: {opened.reason}"
            yield Finding(about, "ops", ADVICE, text, "Install the same release there, and any modules for --import.")
        else:
            text = f"not the same bits: {op} gives a different result there ({differences(opened)})"
            yield Finding(about, "bits", FAULT, text, _SAME_RELEASES)
    codecs = opened.codecs if transport.is_remote else offered()
    cuts = [cut for cut in legal_cuts(pipeline, codecs) if cut.k <= agreed]
    if cuts and files:
        yield _compare(about, transport, opened, pipeline, dict(list(files.items())[:_SAMPLES]), cuts)


def _compare(
    about: str,
    transport: Transport,
    opened: Opened,
    pipeline: Pipeline,
    files: dict[int, bytes],
    cuts: list[Cut],
) -> Finding:
    from sophon.loader.opening.same_bits import same_bits

    samples, compared, made = list(files), 0, set()
    for cut in cuts:
        try:
            for reply in transport.fetch(request_for(opened, pipeline, samples, cut), _PATIENCE_S):
                if reply.error is not None:
                    continue
                sample = samples[reply.position]
                key = Key(0, 0, sample)
                there = finish_payload(pipeline, reply.payload, key, reply.cut)
                here = pipeline.run(files[sample], key)
                if same_bits(here, there) is False:
                    text = f"not the same bits: sample {sample} cut at {reply.cut} differs from the uncut one"
                    remedy = "Please report this with the file; until then use policy='none'."
                    return Finding(about, "bits", FAULT, text, remedy)
                compared += 1
                made.add(reply.cut)
        except Error as error:
            return Finding(about, "bits", FAULT, f"cut {cut} could not be compared: {error}", "Check the node's log.")
    text = f"the same bits at {len(made)} cuts, compared on {len(files)} samples ({compared} results)"
    return Finding(about, "bits", FINE, text)
