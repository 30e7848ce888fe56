"""The trainer process for tf.data service: a graph whose first part runs on workers near the files.

The same three ways as in `with_ray_data`: finished float32 tensors, crops as bytes, or files cross the link. Samples
are divided among workers by dynamic sharding, which delivers each sample once as long as no worker dies.

TensorFlow brings its own NumPy and protobuf: nothing else that uses them is imported here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from sophon.bench.cluster.peers.counting import count_epoch
from sophon.bench.rig.commands import answer

_SIZE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as in `bench.ops`; importing that would import NumPy


class Commands:
    """The commands of the process."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._batch_size = 0
        self._address = ""

    def hello(self) -> dict[str, str]:
        """Return the versions of packages."""
        return {"tensorflow": tf.__version__}

    def open(self, paths: list[str], batch_size: int, address: str) -> None:
        """Remember where the dispatcher and the files are."""
        self._paths, self._batch_size, self._address = paths, batch_size, address

    def epoch(self, way: str, epoch: int, patience_s: float) -> dict[str, Any]:
        """Run an epoch."""
        return count_epoch(self._batches(way, epoch), len(self._paths), patience_s)

    def _batches(self, way: str, epoch: int) -> Iterator[list[int]]:
        order = list(range(len(self._paths)))
        random.Random(epoch).shuffle(order)
        ways: dict[str, tuple[list[Any], list[Any]]] = {
            "tensors": ([_read, _crop, _normalize], []),
            "crops": ([_read, _crop, _to_bytes], [_normalize]),
            "files": ([_read], [_crop, _normalize]),
        }
        near, here = ways[way]
        dataset = tf.data.Dataset.from_tensor_slices(([self._paths[number] for number in order], order))
        for step in near:
            dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.batch(self._batch_size) if way != "files" else dataset
        service = tf.data.experimental.service
        dataset = dataset.apply(
            service.distribute(processing_mode=service.ShardingPolicy.DYNAMIC, service=self._address)
        )
        for step in here:
            dataset = dataset.map(step, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.batch(self._batch_size) if way == "files" else dataset
        for pictures, numbers in dataset.prefetch(tf.data.AUTOTUNE):
            assert pictures.dtype == tf.float32
            yield numbers.numpy().tolist()


def _read(path: Any, number: Any) -> Any:
    return tf.io.read_file(path), number


def _crop(data: Any, number: Any) -> Any:
    """Decode and resize a random crop, chosen as in torchvision's RandomResizedCrop, and flip it at random."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data),
        bounding_boxes=tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    box = tf.stack([begin[0], begin[1], size[0], size[1]])
    picture = tf.image.decode_and_crop_jpeg(data, box, channels=3)
    picture = tf.image.resize(picture, (_SIZE, _SIZE), antialias=True)
    picture = tf.image.random_flip_left_right(picture)
    picture.set_shape((_SIZE, _SIZE, 3))
    return picture, number


def _to_bytes(picture: Any, number: Any) -> Any:
    return tf.cast(tf.clip_by_value(tf.round(picture), 0.0, 255.0), tf.uint8), number


def _normalize(picture: Any, number: Any) -> Any:
    """Convert pictures, or a batch of them, to the layout and range that torch's models expect."""
    values = (tf.cast(picture, tf.float32) / 255.0 - tf.constant(_MEAN)) / tf.constant(_STD)
    return tf.transpose(values, (2, 0, 1) if len(values.shape) == 3 else (0, 3, 1, 2)), number


if __name__ == "__main__":
    answer(Commands())
