"""Credentials, prices, what is missing: all that needs no server."""

import sys

import pytest
from prometheus_client import generate_latest

from sophon.cli.paths import named_paths
from sophon.errors import ConfigError
from sophon.server.metrics import Metrics
from sophon.store import open_store
from sophon.store.bucket import library as library_module
from sophon.store.bucket.account import ACCOUNT, Prices
from sophon.store.bucket.credentials import endpoint_of, s3_settings
from sophon.store.bucket.failures import Verdict, judged


def test_what_is_missing_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(library_module, "_LIBRARY", library_module._Library())
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'pip install ".+\[s3\]"') as caught:
        open_store("s3://bucket/train", cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def _home(tmp_path, config="", credentials=""):
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "config").write_text(config)
    (folder / "credentials").write_text(credentials)
    return {"HOME": str(tmp_path)}


def test_a_profile_is_used_as_its_users_know_it(tmp_path):
    keys = "[{}]\naws_access_key_id = {}\naws_secret_access_key = s\naws_session_token = t\n"
    env = _home(
        tmp_path,
        "[default]\nregion = eu-west-1\n[profile mine]\nregion = ap-south-1\nendpoint_url = http://here:1/\n",
        keys.format("default", "A") + keys.format("mine", "B"),
    )
    found = s3_settings(env)
    assert found["region"] == "eu-west-1"
    assert found["credential_provider"]()["access_key_id"] == "A"
    assert "endpoint" not in found
    mine = s3_settings(env | {"AWS_PROFILE": "mine"})
    assert (mine["region"], mine["endpoint"]) == ("ap-south-1", "http://here:1")
    assert mine["credential_provider"]()["access_key_id"] == "B"
    assert endpoint_of("s3", env | {"AWS_PROFILE": "mine"}) == "http://here:1"
    told = s3_settings(env | {"AWS_ACCESS_KEY_ID": "C", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "r"})
    assert told == {"region": "r"}  # obstore reads the environment itself
    with pytest.raises(ConfigError, match="no profile 'other'"):
        s3_settings(env | {"AWS_PROFILE": "other"})


def test_a_damaged_profile_is_not_shown(tmp_path):
    with pytest.raises(ConfigError) as caught:
        s3_settings(_home(tmp_path, credentials="aws_secret_access_key = hunter2\n"))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Server returned non-2xx status code: 503 Slow Down: <Code>SlowDown</Code>", Verdict.SLOW),
        ("status code: 429 Too Many", Verdict.SLOW),
        ("Server returned non-2xx status code: 500 Internal", Verdict.AGAIN),
        ("status code: 400 Bad Request: <Code>ExpiredToken</Code>", Verdict.RENEW),
        ("status code: 403 Forbidden", Verdict.RENEW),
        ("status code: 400 Bad Request: <Code>InvalidBucketName</Code>", Verdict.NEVER),
        ("HTTP error: error sending request https://x/?sig=hunter2: connection reset", Verdict.AGAIN),
        ("Received non-partial response when range requested", Verdict.WHOLE),
    ],
)
def test_failures_are_judged_and_told_without_addresses(text, verdict):
    found = judged(RuntimeError(text))
    assert found.verdict is verdict
    assert "hunter2" not in str(found)
    assert "https://" not in str(found)


def test_prices_are_in_the_metrics(monkeypatch):
    monkeypatch.setenv("SOPHON_EGRESS_PER_GB", "0.09")
    monkeypatch.setenv("SOPHON_GET_PER_MILLION", "0.4")
    assert Prices.told().of(2_000_000, 10**9) == pytest.approx(0.89)
    metrics = Metrics()
    metrics.price_buckets(Prices(0.09, 0.4))
    gets = ACCOUNT.gets
    ACCOUNT.got(1000, 0.1)
    text = generate_latest(metrics.registry).decode()
    assert f"sophon_bucket_gets_total {float(gets + 1)}" in text
    assert "sophon_bucket_price_total" in text
    monkeypatch.setenv("SOPHON_EGRESS_PER_GB", "cheap")
    with pytest.raises(ConfigError, match="expected an object store price"):
        Prices.told()


def test_data_sets_in_buckets_have_names():
    assert named_paths(("s3://bucket/sets/train",), None, None) == [("train", "s3://bucket/sets/train")]
    assert named_paths(("mine=s3://bucket/a.tar",), None, None) == [("mine", "s3://bucket/a.tar")]
    assert named_paths(("s3://bucket",), None, None) == [("bucket", "s3://bucket")]
    assert named_paths(("s3://bucket/train-{00..09}.tar",), None, None)[0][0] == "train"
