"""sophon: PyTorch data loading that moves preprocessing next to the data, sample by sample, bit for bit the same."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from sophon.version import __version__, install_command

if TYPE_CHECKING:
    from sophon.codec import CODECS, Cut, finish_payload, legal_cuts, make_payload
    from sophon.errors import (
        AccessError,
        ArtifactError,
        BatchTimeoutError,
        BudgetError,
        ConfigError,
        Error,
        OpError,
        PayloadError,
        ProtocolError,
        RankError,
        StoreError,
        TransportError,
        UnavailableError,
        WorkerError,
    )
    from sophon.link.credentials import Credentials
    from sophon.loader.account.bad import BadSamples
    from sophon.loader.dataset import RemoteDataset
    from sophon.loader.joint import Joint
    from sophon.loader.loader import DataLoader
    from sophon.loader.local_server import LocalServer
    from sophon.loader.options import Faults, OnError, Output, Planning, Ranks, Workers
    from sophon.loader.order.log import OrderLog, Relaxed, Replay
    from sophon.loader.probe import probe
    from sophon.loader.sampler import EpochCallback, EpochSampler
    from sophon.loader.sources.assignment import OffloadWarning, SeedWarning
    from sophon.loader.sources.away import AwayWarning
    from sophon.loader.sources.census import AbsentWarning, PartsWarning
    from sophon.loader.sources.prefix_cache import Cache
    from sophon.loader.sources.sources import FallbackWarning
    from sophon.loader.sources.verified import Verify
    from sophon.pipeline import OPS, Key, Op, Pipeline, ops, register
    from sophon.plan.plan import Plan
    from sophon.plan.resources import Resources
    from sophon.profile.table import Profile
    from sophon.store import open_store
    from sophon.store.objects.recognise import from_dataset

logging.getLogger("sophon").addHandler(logging.NullHandler())  # silent unless the program sets up logging

# Modules are imported when one of their names is first used: `import sophon` costs almost nothing and needs no torch.
_ROOMS = {
    "sophon.codec": ("CODECS", "Cut", "finish_payload", "legal_cuts", "make_payload"),
    "sophon.errors": (
        "AccessError",
        "ArtifactError",
        "BatchTimeoutError",
        "BudgetError",
        "ConfigError",
        "Error",
        "OpError",
        "PayloadError",
        "ProtocolError",
        "RankError",
        "StoreError",
        "TransportError",
        "UnavailableError",
        "WorkerError",
    ),
    "sophon.link.credentials": ("Credentials",),
    "sophon.loader.account.bad": ("BadSamples",),
    "sophon.loader.dataset": ("RemoteDataset",),
    "sophon.loader.joint": ("Joint",),
    "sophon.loader.loader": ("DataLoader",),
    "sophon.loader.local_server": ("LocalServer",),
    "sophon.loader.options": ("Faults", "OnError", "Output", "Planning", "Ranks", "Workers"),
    "sophon.loader.order.log": ("OrderLog", "Relaxed", "Replay"),
    "sophon.loader.probe": ("probe",),
    "sophon.loader.sampler": ("EpochCallback", "EpochSampler"),
    "sophon.loader.sources.assignment": ("OffloadWarning", "SeedWarning"),
    "sophon.loader.sources.away": ("AwayWarning",),
    "sophon.loader.sources.census": ("AbsentWarning", "PartsWarning"),
    "sophon.loader.sources.prefix_cache": ("Cache",),
    "sophon.loader.sources.sources": ("FallbackWarning",),
    "sophon.loader.sources.verified": ("Verify",),
    "sophon.pipeline": ("OPS", "Key", "Op", "Pipeline", "ops", "register"),
    "sophon.plan.plan": ("Plan",),
    "sophon.plan.resources": ("Resources",),
    "sophon.profile.table": ("Profile",),
    "sophon.store": ("open_store",),
    "sophon.store.objects.recognise": ("from_dataset",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "CODECS",
    "OPS",
    "AbsentWarning",
    "AccessError",
    "ArtifactError",
    "AwayWarning",
    "BadSamples",
    "BatchTimeoutError",
    "BudgetError",
    "Cache",
    "ConfigError",
    "Credentials",
    "Cut",
    "DataLoader",
    "EpochCallback",
    "EpochSampler",
    "Error",
    "FallbackWarning",
    "Faults",
    "Joint",
    "Key",
    "LocalServer",
    "OffloadWarning",
    "OnError",
    "Op",
    "OpError",
    "OrderLog",
    "Output",
    "PartsWarning",
    "PayloadError",
    "Pipeline",
    "Plan",
    "Planning",
    "Profile",
    "ProtocolError",
    "RankError",
    "Ranks",
    "Relaxed",
    "RemoteDataset",
    "Replay",
    "Resources",
    "SeedWarning",
    "StoreError",
    "TransportError",
    "UnavailableError",
    "Verify",
    "WorkerError",
    "Workers",
    "__version__",
    "finish_payload",
    "from_dataset",
    "legal_cuts",
    "make_payload",
    "open_store",
    "ops",
    "probe",
    "register",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'sophon' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"sophon.{name} needs torch; run: {install_command('torch')}") from error


def __dir__() -> list[str]:
    return __all__
