"""OpenCV in forked children: without the pool whose lock a thread of the parent may hold."""

import numpy as np
import pytest

from sophon.process.opencv import alone_after_fork
from tests.support.forking import ends_well

cv2 = pytest.importorskip("cv2")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
PICTURE, TURN = np.zeros((400, 400, 3), np.uint8), np.float32([[1, 0.1, 3], [0, 1, 5]])


def test_a_child_does_all_the_work_in_the_thread_that_asks_for_it():
    alone_after_fork()
    before = cv2.getNumThreads()
    cv2.warpAffine(PICTURE, TURN, (400, 400))  # starts the pool, where there is more than one core

    def child():
        assert cv2.getNumThreads() == 1
        cv2.warpAffine(PICTURE, TURN, (400, 400))

    assert ends_well(child)
    assert cv2.getNumThreads() == before


@pytest.mark.slow
def test_no_child_of_three_thousand_waits_for_the_pool():
    alone_after_fork()
    for _ in range(3000):
        cv2.warpAffine(PICTURE, TURN, (400, 400))
        assert ends_well(lambda: cv2.warpAffine(PICTURE, TURN, (400, 400)))
