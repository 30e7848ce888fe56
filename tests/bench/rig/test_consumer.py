import time

import pytest
import torch

from sophon.bench.rig.consumer import cnn_speed, consumer_of
from sophon.errors import ConfigError


def test_the_stand_in_takes_its_time_and_no_cpu():
    consumer = consumer_of("stand-in", 1000.0)
    cpu_s, start_s = time.thread_time(), time.monotonic()
    for _ in range(10):
        consumer.take([torch.zeros(20, 1), torch.zeros(20)])
    assert time.monotonic() - start_s >= 0.19
    assert consumer.busy_s >= 0.19
    assert time.thread_time() - cpu_s < 0.5 * consumer.busy_s


def test_the_network_learns_on_the_cpu():
    assert consumer_of("cnn", None).busy_s == 0
    assert cnn_speed(1) > 0


def test_anything_else_is_refused():
    with pytest.raises(ConfigError, match="stand-in"):
        consumer_of("gpu", 1.0)
