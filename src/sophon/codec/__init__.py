"""Codecs, which encode the values that cross the link, and the cuts that use them."""

from sophon.codec.codec import Codec, Payload
from sophon.codec.cut import RAW, Cut, check_cut, finish_payload, legal_cuts, make_payload
from sophon.codec.table import CODECS, codec_named

__all__ = [
    "CODECS",
    "RAW",
    "Codec",
    "Cut",
    "Payload",
    "check_cut",
    "codec_named",
    "finish_payload",
    "legal_cuts",
    "make_payload",
]
