"""What FLAC cannot hold is an error of the op, so that the sample is sent as it is."""

import numpy as np
import pytest

from sophon.codec.cut import Cut, make_payload
from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.pipeline.ops.audio import wav

pytest.importorskip("soundfile")


def test_a_rate_that_flac_has_no_code_for():
    sound = wav.written(wav.form_of(1, 73_536, 16), np.zeros(4096, np.int16).tobytes())
    with pytest.raises(OpError, match="FLAC cannot hold this sound"):
        make_payload(Pipeline([ops.DecodeAudio()]), sound, Key(0, 0, 0), Cut(1, "flac"))
