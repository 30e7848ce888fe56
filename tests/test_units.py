import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon import units
from sophon.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("500mbit", 62.5e6),
        ("500 Mbit", 62.5e6),
        ("1gbit", 125e6),
        ("1gbit/s", 125e6),
        ("2.5Gbit/s", 312.5e6),
        ("100kbit", 12_500),
        ("8bit", 1),
        ("40MB/s", 40e6),
        ("40 MB/s", 40e6),
        ("1MiB/s", 1 << 20),
        ("3B/s", 3),
        ("1e3B/s", 1000),
        (" 1gbit ", 125e6),
    ],
)
def test_bandwidths(text, bytes_per_s):
    assert units.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "500",
        "500mbps",
        "500Mb/s",
        "40MB",
        "-1gbit",
        "nanmbit",
        "infgbit",
        "1e999gbit",
        "0mbit",
        "0MB/s",
        "1/s",
        "1 000mbit",
        "1,5gbit",
        "9" * 100 + "mbit",
        "١mbit",
    ],
)
def test_what_is_no_bandwidth_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match="500mbit, 1gbit or 40MB/s"):
        units.parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("1B", 1), ("1.5GB", 1_500_000_000), ("64MiB", 64 << 20), ("2kB", 2000), ("0", 0)],
)
def test_bytes(text, value):
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("20ms", 0.02), ("1.5s", 1.5), ("2", 2), ("2min", 120), ("1h", 3600), ("5us", 5e-6), ("7ns", 7e-9)],
)
def test_seconds(text, value):
    assert units.parse_seconds(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "value"), [("1200/s", 1200), ("1200", 1200), ("60/min", 1), ("7200/h", 2)])
def test_rates(text, value):
    assert units.parse_rate(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "64mib"),
        (units.parse_bytes, "-1"),
        (units.parse_bytes, "1/s"),
        (units.parse_seconds, "1 day"),
        (units.parse_seconds, "s"),
        (units.parse_rate, "0/s"),
        (units.parse_rate, "-5/s"),
        (units.parse_rate, "12 apples"),
    ],
)
def test_nonsense_is_refused(parse, text):
    with pytest.raises(ConfigError, match="such as"):
        parse(text)


@given(st.text(max_size=80))
def test_any_text_is_a_number_or_a_config_error(text):
    for parse in (units.parse_bandwidth, units.parse_bytes, units.parse_seconds, units.parse_rate):
        with contextlib.suppress(ConfigError):
            assert math.isfinite(parse(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (109_576, "109.6 KB"),
        (999_999, "1 MB"),
        (1.5e9, "1.5 GB"),
        (2e18, "2000 PB"),
        (-2000, "-2 KB"),
        (math.inf, "∞"),
    ],
)
def test_bytes_for_people(value, text):
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3e-7, "0.3 us"),
        (0.02, "20 ms"),
        (41.25, "41.2 s"),
        (599, "599 s"),
        (1200, "20 min"),
        (9000, "2.5 h"),
        (math.inf, "∞"),
    ],
)
def test_seconds_for_people(value, text):
    assert units.format_seconds(value) == text


def test_bandwidths_and_rates_for_people():
    assert units.format_bandwidth(62.5e6) == "500 Mbit/s"
    assert units.format_bandwidth(math.inf) == "∞"
    assert units.format_rate(1200) == "1,200/s"
    assert units.format_rate(2.5) == "2.5/s"
    assert units.format_rate(math.inf) == "∞"


@given(st.floats(1, 1e12))
def test_a_bandwidth_read_back_is_the_one_written(value):
    text = units.format_bandwidth(value)
    assert units.parse_bandwidth(text) == pytest.approx(value, rel=1e-3)
