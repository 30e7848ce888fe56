"""The engine's own bookkeeping."""

import math
import threading

from sophon.loader.epoch.engine import Engine


def test_looking_for_a_sample_that_takes_too_long_does_not_mind_those_that_begin_and_end():
    engine = Engine.__new__(Engine)
    engine._begun, engine._finish_within_s = {}, math.inf
    is_over = threading.Event()

    def finish():
        while not is_over.is_set():
            for position in range(200):
                engine._begun[position] = float(position)
            for position in range(200):
                engine._begun.pop(position, None)

    finisher = threading.Thread(target=finish)
    finisher.start()
    try:
        for _ in range(5_000):
            engine._raise_if_stuck(0.0)
    finally:
        is_over.set()
        finisher.join()
