"""Iterators that nobody closes: the garbage collector does, in any thread, at any moment."""

import collections
import gc

import sophon
from tests.support.servers import RECIPE, make_images


class _Collects(collections.Counter):
    """Counts, and lets the collector strike while it does."""

    def __getitem__(self, name):
        gc.collect()
        return super().__getitem__(name)


def test_a_dropped_iterator_may_be_collected_while_its_loader_counts(tmp_path):
    loader = sophon.DataLoader(make_images(tmp_path / "images", 40), RECIPE, batch_size=4, num_workers=2)

    def drop():
        batches = iter(loader)
        next(batches)
        ring = [batches]
        ring.append(ring)

    gc.disable()
    try:
        drop()
        loader.stats.cuts = _Collects(loader.stats.cuts)
        assert len(list(loader)) == 10
    finally:
        gc.enable()
