"""Other ways to read objects: plain obstore, boto3, and a torch data set on fsspec. Missing packages are skipped."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from sophon.bench.rig.object_server import BUCKET, KEY, SECRET, ObjectServer, raw_store

OBJECT_BYTES: Final = 100_000
Round: TypeAlias = Callable[[], tuple[float, float]]
"""Reads all objects once; returns elapsed seconds, and CPU seconds of this process."""


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a call."""
    wall_s, cpu_s = time.monotonic(), time.process_time()
    run()
    return time.monotonic() - wall_s, time.process_time() - cpu_s


def _threads(get: Callable[[str], int], names: list[str], at_once: int) -> Round:
    def run() -> None:
        with ThreadPoolExecutor(at_once) as pool:
            sizes = list(pool.map(get, names))
        assert sizes == [OBJECT_BYTES] * len(names)

    return lambda: timed(run)


def with_obstore(server: ObjectServer, names: list[str], at_once: int) -> Round:
    """Read with the library that sophon uses, in threads."""
    import obstore

    store = raw_store(server.endpoint)
    return _threads(lambda name: len(obstore.get(store, name).bytes()), names, at_once)


def with_boto3(server: ObjectServer, names: list[str], at_once: int) -> Round | None:
    """Read with boto3, in threads."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        return None
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(max_pool_connections=at_once),
    )
    return _threads(lambda name: len(client.get_object(Bucket=BUCKET, Key=name)["Body"].read()), names, at_once)


def with_fsspec(server: ObjectServer, names: list[str], at_once: int) -> Round | None:
    """Read like a torch data set on fsspec, which fetches the samples of a batch at once."""
    try:
        import s3fs
        from torch.utils.data import DataLoader, Dataset
    except ImportError:
        return None
    files = s3fs.S3FileSystem(
        key=KEY,
        secret=SECRET,
        client_kwargs={"endpoint_url": server.endpoint, "region_name": "us-east-1"},
        config_kwargs={"max_pool_connections": at_once},
        skip_instance_cache=True,
    )

    class Objects(Dataset[bytes]):
        def __len__(self) -> int:
            return len(names)

        def __getitems__(self, indexes: list[int]) -> list[bytes]:
            found: dict[str, bytes] = files.cat([f"{BUCKET}/{names[index]}" for index in indexes])
            return list(found.values())

    loader: DataLoader[Any] = DataLoader(Objects(), batch_size=at_once, collate_fn=list)

    def run() -> None:
        assert [len(data) for batch in loader for data in batch] == [OBJECT_BYTES] * len(names)

    return lambda: timed(run)
