"""torchaudio's transforms are known by class; what is not equal to the last bit runs as it is."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from sophon.pipeline import Call, Key, Pipeline, ops
from tests.support.sounds import sound_file

FRONT = [ops.DecodeAudio(), ops.CenterTimeCrop(2_000)]
MEL = ops.MelSpectrogram(8_000, 128, 64, 16)


def of_torchaudio(name, **attributes):
    """Return an object that looks like one of torchaudio's, of which there is no build for CPUs alone."""

    def call(self, wave):
        return wave * self.factor

    call.__module__ = "torchaudio.transforms._transforms"
    cls = type(name, (), {"__module__": call.__module__, "__call__": call})
    made = cls()
    vars(made).update(factor=3.0, **attributes)
    return made


def test_transforms_of_torchaudio_become_ops_where_they_are_equal_and_torchaudio_is_never_imported():
    mask = {"mask_param": 9, "axis": 2, "iid_masks": False, "p": 0.5}
    steps = [
        *FRONT,
        of_torchaudio("Vol", gain=0.25, gain_type="amplitude"),
        MEL,
        of_torchaudio("TimeMasking", **mask),
        of_torchaudio("FrequencyMasking", **mask | {"axis": 1}),
    ]
    pipeline = Pipeline(steps)
    assert pipeline.ops[2] == ops.Gain(0.25, clip=True)
    assert pipeline.ops[4:] == (ops.TimeMask(9, p=0.5), ops.FrequencyMask(9, p=0.5))
    assert pipeline.max_cut == len(pipeline)
    assert "torchaudio" not in sys.modules or isinstance(sys.modules["torchaudio"], ModuleType)


@pytest.mark.parametrize(
    "transform",
    [
        of_torchaudio("MelSpectrogram", sample_rate=8_000),
        of_torchaudio("Resample", orig_freq=8_000, new_freq=4_000),
        of_torchaudio("Vol", gain=6.0, gain_type="db"),
        of_torchaudio("TimeMasking", mask_param=9, iid_masks=False, p=1.0),  # on a waveform
        of_torchaudio("Vol", level=2.0),  # of another release
    ],
    ids=["mel", "resample", "decibels", "waveform", "unknown"],
)
def test_all_others_run_as_they_are_on_the_trainer(transform):
    pipeline = Pipeline([*FRONT, transform])
    assert isinstance(pipeline.ops[2], Call)
    assert pipeline.max_cut == 2
    data = sound_file("wav 16", 5_000)
    plain = Pipeline(FRONT).run(data, Key(0, 0, 0)).array
    found = pipeline.run(data, Key(0, 0, 0))
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), plain * np.float32(3))


def test_gain_is_what_torch_multiplies_and_clamps():
    waves = Pipeline(FRONT).run(sound_file("wav 16", 5_000), Key(0, 0, 0))
    for factor in (0.1, 1.7, 3.3):
        expected = torch.clamp(torch.from_numpy(waves.array) * factor, -1, 1)
        assert torch.equal(torch.from_numpy(ops.Gain(factor, clip=True).apply(waves, None).array), expected)
