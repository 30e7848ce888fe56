"""CPU seconds of threads, by name."""

import time
from pathlib import Path

from sophon.process.threads import cpu_s_of_threads


def test_the_seconds_of_threads_with_a_name_are_counted_and_no_others():
    assert cpu_s_of_threads(["no thread is called this"]) == 0.0
    own = Path("/proc/self/comm").read_text().strip()
    before_s, start_s = cpu_s_of_threads([own]), time.thread_time()
    while time.thread_time() - start_s < 0.05:
        pass
    assert cpu_s_of_threads([own]) - before_s >= 0.04
