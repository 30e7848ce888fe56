"""Credentials for object stores: the usual environment variables, profiles and roles.

obstore itself reads the environment (``AWS_*``, ``GOOGLE_*``, ``AZURE_*``) and asks the machine (instance and container
roles, web identities). It does not read the profiles in ``~/.aws``; this module does, or boto3 if a profile is more
than a pair of keys. Values are looked up again whenever a client is created; see `Client.renew`.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sophon.errors import ConfigError

_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_SHORT: Final = timedelta(minutes=5)  # after which the files are read again, since key rotation writes there
_MORE: Final = ("sso_session", "sso_start_url", "role_arn", "credential_process", "source_profile")


def s3_settings(env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the settings for `obstore.store.S3Store` beyond the environment.

    Raises:
        ConfigError: The profile named in AWS_PROFILE does not exist, or needs boto3.
    """
    profile = _profile(env)
    found: dict[str, Any] = {}
    endpoint = next((env[name] for name in _ENDPOINTS if env.get(name)), profile.get("endpoint_url"))
    if endpoint:
        found["endpoint"] = endpoint.rstrip("/")
    found["region"] = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region") or "us-east-1"
    if any(env.get(name) for name in _KEYS) and not env.get("AWS_PROFILE"):
        return found
    if "aws_access_key_id" in profile:
        found["credential_provider"] = lambda: _from_files(env)
    elif any(name in profile for name in _MORE):
        found["credential_provider"] = _by_boto3(env)
    return found


def endpoint_of(scheme: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the server for an address that does not name one; two servers may have buckets with the same name."""
    if scheme == "s3":
        return str(s3_settings(env).get("endpoint", ""))
    if scheme == "az":
        return " ".join(env.get(name, "") for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ENDPOINT")).strip()
    return ""


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the profile named in AWS_PROFILE, or of "default" if there is one."""
    name = env.get("AWS_PROFILE", "default")
    home = Path(env.get("HOME", "/nonexistent"))
    places = (
        (Path(env.get("AWS_CONFIG_FILE") or home / ".aws/config"), name if name == "default" else f"profile {name}"),
        (Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials"), name),
    )
    found: dict[str, str] = {}
    for file, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except OSError:
            continue
        except (configparser.Error, UnicodeDecodeError) as error:
            # The error's message would quote the file.
            raise ConfigError(f"{file} cannot be read ({type(error).__name__}); correct it") from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    if env.get("AWS_PROFILE") and not found:
        raise ConfigError(f"there is no profile {name!r:.80} in {places[0][0]} or {places[1][0]}; check AWS_PROFILE")
    return found


def _from_files(env: Mapping[str, str]) -> dict[str, Any]:
    profile = _profile(env)
    return {
        "access_key_id": profile["aws_access_key_id"],
        "secret_access_key": profile.get("aws_secret_access_key", ""),
        "token": profile.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + _SHORT,
    }


def _by_boto3(env: Mapping[str, str]) -> Any:
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ConfigError(
            f"the profile {env.get('AWS_PROFILE', 'default')!r:.80} is more than a pair of keys and needs boto3; run: "
            "pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    return Boto3CredentialProvider()
