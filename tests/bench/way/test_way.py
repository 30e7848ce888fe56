"""The benchmarks of a batch's way run, and say what they should; how fast anything is, is not asked here."""

import socket
import threading
import time

import pytest

from sophon.bench.rig.delay_line import DelayLine
from sophon.bench.way.device import bench_device
from sophon.bench.way.latency import POLICIES, bench_latency
from tests.support.pictures import encode, scene


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(encode(scene(90, 70, seed=number), "jpeg 4:2:0"))
    return folder


def test_epochs_over_a_long_link_come_to_their_end(photos, tmp_path):
    result = bench_latency(photos, tmp_path, 5e6, 0.01, (0, 20))
    assert set(result["rtt_ms"]) == {"0", "20"}
    assert all(set(row) == {"none_s", "optimal_s"} for row in result["rtt_ms"].values())
    assert result["samples"] == dict.fromkeys(POLICIES, 20)
    assert result["rtt_ms"]["20"]["none_s"] >= 0.02  # nothing is there before a round trip is over


def test_a_device_is_compared_with_the_host(photos):
    result = bench_device(photos, 0.0)
    assert result["host"]["bytes"] == 4 * result["device_path"]["bytes"] == 4 * 3 * 224 * 224
    assert result["samples"] == 20


def _echo(server: socket.socket) -> None:
    with server.accept()[0] as connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def test_a_delay_line_passes_on_every_byte_and_no_earlier_than_it_should():
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_echo, args=(server,))
        thread.start()
        sent = bytes(range(256)) * 2000
        port = server.getsockname()[1]
        with DelayLine(port, 1e6, 0.05) as line, socket.create_connection(("127.0.0.1", line.port)) as near:
            start_s = time.monotonic()
            writer = threading.Thread(target=lambda: (near.sendall(sent), near.shutdown(socket.SHUT_WR)))
            writer.start()
            came = bytearray()
            while data := near.recv(1 << 16):
                came += data
            seconds = time.monotonic() - start_s
            writer.join()
        thread.join()
    assert came == sent
    assert seconds >= len(sent) / 1e6 + 0.04
