"""Discovery by Ray: ``sophon+ray://dataset``, in a process that is connected to the cluster.

Ray is asked for the registry's address when a data set is opened and after the registry has failed. Everything else
happens between the trainer, the registry and the nodes.
"""

from __future__ import annotations

from sophon.cluster.on_ray.actors import registry_address
from sophon.cluster.on_ray.serving import need_ray
from sophon.cluster.registered import Registered
from sophon.errors import ConfigError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.discovery import Discovery, Found


class OnRay(Discovery):
    """Nodes of a data set on a Ray cluster.

    Args:
        address: ``sophon+ray://`` and the name of a data set.
        credentials: Credentials for the registry and the nodes.
        deadline_s: Deadline of the caller.
    """

    def __init__(self, address: str, credentials: Credentials, deadline_s: float) -> None:
        self.url = address
        self._dataset = address.partition("://")[2].strip("/")
        self._credentials, self._deadline_s = credentials, deadline_s
        if not self._dataset or "/" in self._dataset:
            raise ConfigError(f"expected an address like sophon+ray://dataset, got {address[:200]!r}")
        need_ray()
        self._registered: Registered | None = None

    def find(self) -> Found:
        """Ask the registry; if it has moved, ask Ray for its new address."""
        if self._registered is not None:
            try:
                return self._registered.find()
            except RetryableError:
                self._registered = None
        place = registry_address()
        if not place:
            raise RetryableError(
                f"{self.url}: no registry is running on this Ray cluster; start one with `sophon ray up` or "
                "sophon.ray.serve"
            )
        self._registered = Registered(f"{place}/{self._dataset}", self._credentials, self._deadline_s)
        return self._registered.find()

    def report(self, bottleneck: str, waited_share: float, relay_share: float) -> None:
        """Tell the registry what is holding this trainer up."""
        if self._registered is not None:
            self._registered.report(bottleneck, waited_share, relay_share)


def open_on_ray(address: str, credentials: Credentials, deadline_s: float) -> OnRay:
    """Return an `OnRay` for an address."""
    return OnRay(address, credentials, deadline_s)
