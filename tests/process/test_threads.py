"""CPU seconds of threads, by name."""

import threading
import time
from pathlib import Path

from sophon.process.threads import cpu_s_of_threads


def test_the_seconds_of_threads_with_a_name_are_counted_and_no_others():
    assert cpu_s_of_threads(["no thread is called this"]) == 0.0
    counted_s: list[float] = []

    def busy() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("sophon-busy")
        before_s, start_s = cpu_s_of_threads(["sophon-b"]), time.thread_time()
        while time.thread_time() - start_s < 0.05:
            pass
        counted_s.append(cpu_s_of_threads(["sophon-b"]) - before_s)

    thread = threading.Thread(target=busy)
    thread.start()
    thread.join()
    assert counted_s[0] >= 0.04
