"""An object store that means ill, and manifests in a bucket that somebody else has written: typed errors, soon."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from sophon.errors import StoreError
from sophon.store.address import parse_address
from sophon.store.bucket import client as client_module
from sophon.store.bucket.client import Object, client_of
from sophon.store.bucket.failures import ObjectError, Verdict
from sophon.store.bucket.objects import manifest_of
from sophon.store.bucket.table import make_store

pytest.importorskip("obstore")

_DATE = "Wed, 18 Nov 2026 00:00:00 GMT"
_ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-11-18T00:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag>"
    "<Size>5</Size></Contents>"
)


class _Hostile(BaseHTTPRequestHandler):
    """Lists the same page, or ever new names, without end; sends far more than the range that it was asked for."""

    protocol_version = "HTTP/1.1"
    lists = 0

    def do_GET(self):
        if "list-type" not in self.path:
            self._send_too_much()
            return
        type(self).lists += 1
        number = self.lists if "/anew" in self.path else 0
        entries = "".join(_ENTRY.format(key=f"train/{number:09}-{row}") for row in range(1000))
        body = (
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
            f"<Name>b</Name><KeyCount>1000</KeyCount>{entries}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_too_much(self):
        size = 1 << 30
        is_part = "Range" in self.headers
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", "bytes 0-4/5")
        for name, value in (("ETag", '"a"'), ("Last-Modified", _DATE), ("Content-Length", str(size))):
            self.send_header(name, value)
        self.end_headers()
        try:
            for _ in range(size >> 16):
                self.wfile.write(bytes(1 << 16))
                type(self).sent = getattr(type(self), "sent", 0) + (1 << 16)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hostile", (_Hostile,), {"sent": 0, "lists": 0}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_listing_that_begins_again_and_again_is_given_up(bucket):
    client = client_of(parse_address("s3://b/train"))
    with pytest.raises(ObjectError) as caught:
        list(client.objects("train/"))
    assert caught.value.verdict is Verdict.ENDLESS
    assert bucket.RequestHandlerClass.lists < 10


def test_a_listing_that_never_ends_is_given_up(bucket, monkeypatch):
    monkeypatch.setattr(client_module, "_MOST_OBJECTS", 5000)
    client = client_of(parse_address("s3://anew/train"))
    with pytest.raises(ObjectError) as caught:
        list(client.objects("train/"))
    assert caught.value.verdict is Verdict.ENDLESS


def test_a_level_that_never_ends_is_given_up(bucket, monkeypatch):
    monkeypatch.setattr(client_module, "LEVEL_S", 0.3)
    client = client_of(parse_address("s3://b/train"))
    with pytest.raises(ObjectError) as caught:
        client.level("train")
    assert caught.value.verdict is Verdict.ENDLESS


@pytest.mark.parametrize(("start", "size"), [(0, 5), (0, 3)], ids=["whole object", "range"])
def test_an_answer_that_is_longer_than_was_asked_for_is_not_taken(bucket, start, size):
    client = client_of(parse_address("s3://b/train"))
    with pytest.raises(ObjectError):
        client.get("train/a", start, size, '"a"', of=5)
    assert bucket.RequestHandlerClass.sent < 128 << 20


@pytest.mark.parametrize("root", ["", "other/", "train/../other/", "training/"])
def test_a_forged_manifest_cannot_name_a_root_outside(bucket, root):
    manifest = manifest_of(root, pa.array(["a.jpg"]), [Object(f"{root}a.jpg", 5, '"a"', 0)], None, ())
    with pytest.raises(StoreError, match="outside the data set"):
        make_store(parse_address("s3://b/train"), "train", manifest)


@pytest.mark.parametrize(
    ("address", "root"),
    [("s3://b/train", "train/"), ("s3://b/train/rows.csv", "train/"), ("s3://b/rows.csv", ""), ("s3://b", "")],
)
def test_manifests_of_the_data_set_itself_are_taken(bucket, address, root):
    manifest = manifest_of(root, pa.array(["a.jpg"]), [Object(f"{root}a.jpg", 5, '"a"', 0)], None, ())
    with make_store(parse_address(address), "train", manifest) as store:
        assert store.key(0) == f"{root}a.jpg"
