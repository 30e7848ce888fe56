import pytest

from sophon.report.words import Epoch, claim, sentences, times


def test_a_gain_is_told_with_what_binds_before_and_after_and_where_it_ends():
    before = Epoch(5.2, 26e6, "link", trainer_s=1.3, consumer_s=0.1)
    after = Epoch(2.0, 10e6, "storage", trainer_s=1.0, consumer_s=0.1)
    win, limit = sentences(before, after, "optimal", measured=True)
    assert win == (
        "When the raw files are sent, training waits for the link: an epoch took 5.2 s. The policy optimal moved 2.6× "
        "less data and finished in 2 s, 2.6× sooner; the storage node's CPU is the bottleneck then."
    )
    assert "faster than about 160 Mbit/s" in limit  # 26 MB in the trainer's 1.3 s
    assert "the trainer's CPU" in limit


def test_no_gain_is_told_as_such():
    before, after = Epoch(5.0, 1e6, "consumer"), Epoch(5.0, 1e6, "consumer")
    (only,) = sentences(before, after, "optimal", measured=False)
    assert "data arrive fast enough" in only
    assert "would take 5 s" in only
    assert "not faster" in only
    assert "nothing needs to change" in only


def test_a_loss_is_told_as_such():
    (only,) = sentences(Epoch(5.0, 1e6, "link"), Epoch(9.0, 4e6, "link"), "all", measured=True)
    assert "is slower here (9 s)" in only


def test_work_that_moves_without_saving_bytes_is_told_as_such():
    win, *_ = sentences(Epoch(5.0, 1e6, "trainer"), Epoch(2.0, 1e6, "link"), "optimal", measured=False)
    assert "moves work rather than bytes and finishes in 2 s" in win


def test_factors_have_two_digits():
    assert [times(value) for value in (0.17, 1.0, 2.345, 9.96, 123.4)] == ["0.17×", "1×", "2.3×", "10×", "123×"]


@pytest.mark.parametrize(
    ("after", "measured", "expected"),
    [
        (Epoch(2.0, 25.0, "link"), True, "Sending 4× less data makes an epoch 5× shorter (policy optimal)"),
        (Epoch(5.0, 50.0, "link"), False, "Sending 2× less data would make an epoch 2× shorter (policy optimal)"),
        (Epoch(5.0, 100.0, "link"), True, "Moving work to the storage node makes an epoch 2× shorter (policy optimal)"),
        (Epoch(10.1, 25.0, "link"), True, "Sending raw files is the best that can be done here"),
    ],
)
def test_a_report_comes_to_one_plain_sentence(after, measured, expected):
    assert claim(Epoch(10.0, 100.0, "link"), after, "optimal", measured=measured) == expected
