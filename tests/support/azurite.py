"""Azurite, the emulator of Azure's blobs, if it is installed (npm install azurite): a real server of another make."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from sophon.bench.rig.object_server import BUCKET, free_ports
from tests.support.waiting import HANG_S

ACCOUNT = "devstoreaccount1"
# The key that Azurite's documentation gives; it opens nothing else.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def program() -> str | None:
    """Return the program, which SOPHON_AZURITE may name, or None if it is not installed."""
    return os.environ.get("SOPHON_AZURITE") or shutil.which("azurite-blob")


@contextmanager
def azurite(folder: Path) -> Iterator[dict[str, str]]:
    """Start it with one container; yields the environment of a client."""
    found = program()
    assert found is not None
    port = free_ports(1)[0]
    options = ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    process = subprocess.Popen(
        [found, *options, "--skipApiVersionCheck", "--disableTelemetry"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make_container(port)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
        }
    finally:
        process.kill()
        process.wait()


def _make_container(port: int) -> None:
    until_s = time.monotonic() + HANG_S
    while True:
        date = formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
        resource = f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
        text = "PUT" + "\n" * 12 + headers + resource
        signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            said = {
                "x-ms-date": date,
                "x-ms-version": "2021-08-06",
                "Authorization": f"SharedKey {ACCOUNT}:{signature}",
                "Content-Length": "0",
            }
            connection.request("PUT", f"/{ACCOUNT}/{BUCKET}?restype=container", headers=said)
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            return
        except OSError:
            assert time.monotonic() < until_s, "Azurite does not start"
            time.sleep(0.1)
        finally:
            connection.close()
