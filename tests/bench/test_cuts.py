import pytest

from sophon.bench import cuts
from sophon.bench.pictures.samples import Samples
from sophon.codec import Cut
from tests.support.pictures import encode, scene

SAMPLES = Samples("test", tuple(encode(scene(400, 300, i), "jpeg 4:4:4") for i in range(3)))


def test_every_cut_is_measured_and_no_bit_differs():
    result = cuts.measure_cuts(SAMPLES)
    assert result.rows[0].cut == Cut(0)
    assert result.rows[0].payload_bytes == result.raw_bytes == pytest.approx(SAMPLES.mean_bytes)
    assert (result.tensors, result.mismatches) == (len(result.rows) * 3, 0)
    assert result.gain >= 1.0
    assert sum(result.best_share.values()) == pytest.approx(1.0)


def test_a_bit_that_differs_is_counted(monkeypatch):
    real = cuts.finish_payload

    def off_by_one_bit(pipeline, payload, key, cut):
        tensor = real(pipeline, payload, key, cut).copy()
        if cut == Cut(2, "webp"):
            tensor.view("uint8")[0, 0, 0] ^= 1
        return tensor

    monkeypatch.setattr(cuts, "finish_payload", off_by_one_bit)
    assert cuts.measure_cuts(SAMPLES).mismatches == 3
