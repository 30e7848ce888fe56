import pytest

from sophon.bench.pictures.samples import Samples
from sophon.bench.window import bench_window
from sophon.codec.window import available
from sophon.errors import ConfigError
from tests.support.pictures import encode, scene

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")


def test_the_figures_have_the_names_that_scripts_read():
    files = [encode(scene(500, 400, i), "jpeg 4:2:0") for i in range(3)] + [encode(scene(300, 200), "png")]
    result = bench_window(Samples("test", tuple(files)), 0.01)
    assert (result.files, result.windowable) == (4, 3)
    written = result.to_json()
    times = {"decode_crop_ms", "window_ms", "window_indexed_ms", "trainer_whole_ms", "trainer_window_ms"}
    assert set(written) == {*times, "index_share", "gain"}
    assert all(written[name] > 0 for name in times)
    assert 0 < written["index_share"] < 0.2
    gain = written["gain"]
    assert 1.0 <= gain["sophon"] <= gain["exact_best"] <= gain["lossy_best"]
    assert 1.0 < gain["window"] <= gain["exact_best"]
    assert result.ns_per_byte("window") > 0


def test_files_without_any_window_are_nothing_to_measure():
    with pytest.raises(ConfigError, match="no window can be cut"):
        bench_window(Samples("test", (encode(scene(30, 20), "png"),)), 0.01)
