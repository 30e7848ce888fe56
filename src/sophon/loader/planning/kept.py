"""The profile of a job, kept from one run to the next.

If the user gives a path, a failure to read or write there is an error. The user's cache folder is only a cache: a
profile that cannot be read there is measured again, and one that cannot be written there is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from sophon.errors import ArtifactError, ConfigError
from sophon.process.caches import tidy, used
from sophon.process.folders import not_private, user_folder
from sophon.profile.table import Profile
from sophon.version import __version__


class KeptProfile:
    """Where a profile is kept.

    Args:
        path: Path of the file; None to keep nothing.
        is_cache: Whether it is the default cache file, not one that the user asked for.
    """

    def __init__(self, path: Path | None, *, is_cache: bool) -> None:
        self.path = path
        self._is_cache = is_cache

    def load(self, take: Callable[[Profile], None]) -> Profile | None:
        """Return the profile of an earlier run, if there is one and it can be used.

        Args:
            take: Called with the profile; raises `ArtifactError` or `ConfigError`, without side effects, if it cannot
                be used.

        Raises:
            ArtifactError: The user gave the path, and the file there cannot be read or used.
        """
        if self.path is None:
            return None
        try:
            if not self.path.exists():
                return None
            profile = Profile.load(self.path)
            take(profile)
            self._note(profile)
        except (ArtifactError, ConfigError, OSError) as error:
            if self._is_cache:
                return None  # the first epoch measures again, and its profile replaces this one
            if isinstance(error, ArtifactError) and str(self.path) in str(error):
                raise
            raise ArtifactError(f"{self.path}: {error}; give another path, or remove the file.") from error
        return profile

    def save(self, profile: Profile) -> None:
        """Keep a profile for the next run.

        Raises:
            ConfigError: The user gave the path, and nothing can be written there.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.save(self.path)
            self._note(profile)
        except (ArtifactError, OSError) as error:
            if not self._is_cache:
                raise ConfigError(f"the profile cannot be saved to {self.path}: {error}; give another path") from error

    def _note(self, profile: Profile) -> None:
        if self._is_cache and self.path is not None:
            used(self.path, f"{profile.provenance.get('url', '')}: {profile.recipe}")


def cache_path(job: Iterable[object]) -> Path | None:
    """Return the path of a job's profile in the user's cache folder; None if there is no such folder.

    Args:
        job: What identifies the job. The release is added, since another release may predict differently.
    """
    folder = user_folder()
    try:
        if folder is None or (folder.exists() and not_private(folder)):
            return None
    except OSError:
        return None
    tidy(folder)
    name = hashlib.sha256(" ".join(map(str, (__version__, *job))).encode()).hexdigest()[:32]
    return folder / "profiles" / f"{name}.parquet"
