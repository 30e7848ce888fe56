"""Requests to one bucket: ranges of objects, checked by ETag, and listings; retried where that helps.

A client that breaks any of these rules has a bug:

- `get` returns bytes of exactly the object that was listed, or raises: every request names its ETag or version
  (If-Match), and the ETag of the answer is checked too, since some servers ignore If-Match. Where a server has no ETags
  (plain HTTP), the size and time in the answer are compared.
- A request that fails for a transient reason is retried for `PATIENCE_S`, at growing, randomised intervals.
- Rejected credentials are looked up again, once for each request that fails because of them.
- Messages never contain a key, a token, a signature or a URL with one.

Concurrency: any thread may use a client. The connections belong to obstore, which opens them when needed; a forked
child has its own (`library`).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from sophon.process.renewal import renew_after_fork
from sophon.store.address import Address
from sophon.store.bucket.account import ACCOUNT
from sophon.store.bucket.credentials import endpoint_of, s3_settings
from sophon.store.bucket.failures import ObjectError, Verdict, judged
from sophon.store.bucket.hedge import Hedge
from sophon.store.bucket.library import library
from sophon.store.bucket.pace import PACE

T = TypeVar("T")

PATIENCE_S: Final = 60.0  # a server restart or a minute of 503s should not stop training
FIRST_PATIENCE_S: Final = 5.0  # until the first answer: the address or the network may be wrong
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_CONNECT_S: Final = 5
_ANSWER_S: Final = 60  # for a whole answer; the requested ranges are small
_PAGE: Final = 1000  # objects per page of a listing
_MOST_OBJECTS: Final = 1 << 25  # below one prefix; three times as many as we plan for
LEVEL_S: Final = 600.0  # for the folders and objects of one level: ten million at the pace of common servers
_WHOLE_BYTES: Final = 64 << 20  # largest object that is read whole if a server does not support ranges
_RENEWALS: Final = 3  # tries with freshly loaded credentials: a rotation may be a moment late
_RENEW_S: Final = 1.0


class Object(NamedTuple):
    """One object as it was listed."""

    key: str
    size: int
    etag: str
    changed_ns: int
    version: str | None = None


class Client:
    """The client of one bucket.

    Args:
        address: Anything in the bucket.
    """

    def __init__(self, address: Address) -> None:
        self.address = Address(address.scheme, address.bucket)
        self.hedge = Hedge(lambda: ACCOUNT.add("hedges_won"))
        self._gives_parts = True
        self._has_answered = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop connections and credentials; new ones are created when needed."""
        self._lock = threading.Lock()
        self._store: Any = None
        self._made_s = 0.0

    def __reduce__(self) -> tuple[object, ...]:
        return (client_of, (self.address,))

    def get(
        self, key: str, start: int, length: int, etag: str, version: str | None = None, *, of: int | None = None
    ) -> memoryview:
        """Return bytes of an object.

        Args:
            key: Name of the object.
            start: First byte.
            length: Number of bytes.
            etag: ETag that the object had when it was listed.
            version: Version that was listed, if the bucket keeps versions.
            of: Size of the object when it was listed, if known; reading all of it then needs no range.

        Raises:
            ObjectError: The object cannot be read, or has changed since it was listed.
        """
        if length == 0:
            return memoryview(b"")
        wanted = (key, start, length, etag, version, start == 0 and length == of)
        return self._patiently(self._counted, length, *wanted)

    def _counted(self, *wanted: Any) -> memoryview:
        began_s = time.monotonic()
        if self.hedge.late_s is None:  # the common case: nothing to set up for a second request
            found = self._get(*wanted)
        else:
            found = self.hedge.call(partial(self._get, *wanted), partial(ACCOUNT.hedged, wanted[2]))
        seconds = time.monotonic() - began_s
        self.hedge.learn(seconds)
        ACCOUNT.got(len(found), seconds)
        return found

    def _get(self, key: str, start: int, length: int, etag: str, version: str | None, is_whole: bool) -> memoryview:
        options: dict[str, Any] = {}
        if version is not None:
            options["version"] = version
        if etag.startswith('"'):  # by the rules of HTTP a weak ETag never matches
            options["if_match"] = etag
        as_part = self._gives_parts and not is_whole
        if as_part:
            options["range"] = (start, start + length)
        try:
            answer = library().get(self._opened(), key, options=options)
            meta = answer.meta  # obstore builds `meta` anew at every access
            if meta["e_tag"] != etag and _etag(meta) != etag:
                raise ObjectError(Verdict.CHANGED)
            if not as_part and meta["size"] > max(_WHOLE_BYTES, length):
                raise ObjectError(Verdict.WHOLE)
            found = _body(answer, meta["size"] if not as_part else length)
        except Exception as error:  # noqa: BLE001 - judged
            trouble = judged(error)
            if trouble.verdict is Verdict.WHOLE and as_part:
                self._gives_parts = False
                return self._get(key, start, length, etag, version, is_whole)
            raise trouble from None  # its text may contain a signature
        return found if as_part or is_whole else found[start : start + length]

    def head(self, key: str) -> Object:
        """Return the metadata of an object.

        Raises:
            ObjectError: The object does not exist, or the server cannot be reached.
        """
        ACCOUNT.add("heads")
        return _object(self._patiently(lambda: library().head(self._opened(), key)))

    def exists(self, key: str) -> Object | None:
        """Return an object, or None if it does not exist or is not visible to us.

        Without permission to list the bucket, S3 answers "forbidden" for objects that do not exist.
        """
        try:
            return self.head(key)
        except ObjectError as error:
            if error.verdict in (Verdict.MISSING, Verdict.RENEW):
                return None
            raise

    def read(self, key: str) -> tuple[Object, bytes]:
        """Return a whole object and its metadata."""
        found = self.head(key)
        return found, bytes(self.get(key, 0, found.size, found.etag, of=found.size))

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._patiently(lambda: library().put(self._opened(), key, data))

    def objects(self, prefix: str, after: str | None = None) -> Iterator[list[Object]]:
        """List the objects below a prefix, in pages and ordered by name.

        Args:
            prefix: Prefix that ends at a slash; "" for the whole bucket.
            after: Name after which to start.
        """
        last, begun = after, set()
        count = 0
        while True:
            pages = self._patiently(
                lambda last=last: iter(library().list(self._opened(), prefix or None, offset=last, chunk_size=_PAGE))
            )
            try:
                for page in pages:
                    ACCOUNT.add("lists")
                    found = [_object(entry) for entry in page]
                    if found:
                        last, count = found[-1].key, count + len(found)
                        if found[0].key in begun or count > _MOST_OBJECTS:
                            raise ObjectError(Verdict.ENDLESS)
                        begun.add(found[0].key)
                        yield found
                return
            except Exception as error:  # noqa: BLE001 - judged
                if judged(error).verdict in (Verdict.NEVER, Verdict.MISSING, Verdict.ENDLESS):
                    raise judged(error) from None
            # Retried from the current position, with the same patience as every request.
            self._patiently(lambda: self._probe(prefix))

    def _probe(self, prefix: str) -> None:
        next(iter(library().list(self._opened(), prefix or None, chunk_size=1)), None)

    def level(self, prefix: str) -> tuple[list[str], list[Object]]:
        """Return the folders and objects directly below a prefix."""
        ACCOUNT.add("lists")
        found = self._patiently(lambda: self._level(prefix or None))
        return list(found["common_prefixes"]), [_object(entry) for entry in found["objects"]]

    def _level(self, prefix: str | None) -> Any:
        """Request all pages of a level, which obstore joins; give up on a server that sends pages without end."""
        asking = library().list_with_delimiter_async

        async def within() -> Any:
            return await asyncio.wait_for(asking(self._opened(), prefix), LEVEL_S)

        with ThreadPoolExecutor(1, "sophon-level") as pool:  # the caller's thread may have its own loop
            try:
                return pool.submit(asyncio.run, within()).result()
            except TimeoutError:
                raise ObjectError(Verdict.ENDLESS) from None

    def _patiently(self, request: Callable[..., T], size_bytes: int = 0, *wanted: Any) -> T:
        """Repeat a request until it succeeds or fails permanently; `wanted` is passed to it."""
        failed_s, wait_s, renewals = None, _FIRST_WAIT_S, 0
        patience_s = PATIENCE_S if self._has_answered else FIRST_PATIENCE_S
        while True:
            is_answered = False
            PACE.enter(size_bytes)
            try:
                found = request(*wanted)
                is_answered = self._has_answered = True
                return found
            except Exception as error:  # noqa: BLE001 - judged
                trouble = judged(error)
            finally:
                PACE.leave(size_bytes, is_answered)
            now_s = time.monotonic()
            failed_s = now_s if failed_s is None else failed_s
            verdict = trouble.verdict
            if verdict is Verdict.RENEW and renewals < _RENEWALS:
                renewals += 1
                self._look_up_anew()
                wait_s = 0.0 if renewals == 1 else _RENEW_S
            elif verdict not in (Verdict.SLOW, Verdict.AGAIN) or now_s - failed_s > patience_s:
                raise trouble from None
            if verdict is Verdict.SLOW:
                PACE.slow_down()
                ACCOUNT.add("slow_downs")
            ACCOUNT.add("retries")
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # so that not all clients retry at once
            wait_s = min(max(2 * wait_s, _FIRST_WAIT_S), _LONGEST_WAIT_S)

    def _opened(self) -> Any:
        store = self._store
        if store is None:
            with self._lock:
                if self._store is None:
                    self._store, self._made_s = _make(self.address), time.monotonic()
                store = self._store
        return store

    def _look_up_anew(self) -> None:
        with self._lock:
            if time.monotonic() - self._made_s > _RENEW_S / 2:  # otherwise another thread has just done so
                self._store = None


def _body(answer: Any, most: int) -> memoryview:
    """Return the bytes of an answer.

    The answer's `bytes` is not used, since it takes whatever a server sends, even a gigabyte in place of a photo. A
    stream with pieces of at least the expected size gives all of an honest answer as its first piece.
    """
    found = b""
    for piece in answer.stream(min_chunk_size=most):
        found = piece if not found else found + bytes(piece)
        if len(found) >= most:
            break
    if len(found) > most:
        raise ObjectError(Verdict.ENDLESS)
    return memoryview(found)


def _object(entry: Any) -> Object:
    changed_ns = int(entry["last_modified"].timestamp() * 1e9)
    return Object(entry["path"], entry["size"], _etag(entry), changed_ns, entry["version"])


def _etag(entry: Any) -> str:
    """Return the ETag of an object; on a server without ETags, its size and time are used."""
    etag = entry["e_tag"]
    return quoted(etag) if etag else f'T"{entry["size"]}-{entry["last_modified"].timestamp():.0f}"'


def quoted(etag: str) -> str:
    """Return an ETag in the form used for comparison; some listings omit its quotes."""
    return etag if not etag or etag.endswith(chr(34)) else f'"{etag}"'


def _make(address: Address) -> Any:
    """Return obstore's own object for a bucket, with its own retries off, since this module must see a 503."""
    library()
    import obstore.store as stores  # after `library`, which may have replaced it

    client = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_ANSWER_S),
        "pool_max_idle_per_host": "256",
        "allow_http": True,
        "user_agent": "sophon",
    }
    retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=_ANSWER_S)}
    given: dict[str, Any] = {"client_options": client, "retry_config": retry}
    if address.scheme == "s3":
        return stores.S3Store(address.bucket, **s3_settings(), **given)
    if address.scheme == "gs":
        return stores.GCSStore(address.bucket, **given)
    if address.scheme == "az":
        return stores.AzureStore(address.bucket, **given)
    client["allow_http"] = address.scheme == "http"
    return stores.HTTPStore.from_url(str(address), **given)


_CLIENTS: weakref.WeakValueDictionary[tuple[Address, str], Client] = weakref.WeakValueDictionary()
_CLIENTS_LOCK = threading.Lock()


def client_of(address: Address) -> Client:
    """Return the client of a bucket; data sets in one bucket share a client as long as one of them is open."""
    key = (Address(address.scheme, address.bucket), endpoint_of(address.scheme))
    with _CLIENTS_LOCK:
        client = _CLIENTS.get(key)
        if client is None:
            client = _CLIENTS[key] = Client(address)
        return client


def _renew_lock() -> None:
    global _CLIENTS_LOCK  # noqa: PLW0603 - one for each process
    _CLIENTS_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
