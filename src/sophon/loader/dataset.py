"""RemoteDataset: the samples of a storage node as a map-style data set for any torch DataLoader.

Concurrency: may be used by several threads, and by forked or spawned worker processes, each of which makes its own
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sophon.codec.cut import RAW, Cut
from sophon.errors import BudgetError, ConfigError, ProtocolError, printable
from sophon.link.credentials import Credentials
from sophon.link.discovery import is_found, open_discovery
from sophon.link.transport import Opened, Transport
from sophon.loader.account.bad import BadSamples
from sophon.loader.account.stats import Stats
from sophon.loader.epoch.device import divided
from sophon.loader.epoch.finishers import Here
from sophon.loader.epoch.finishing import Finishing
from sophon.loader.epoch.mending import Mending
from sophon.loader.epoch.targets import Targets
from sophon.loader.joint import Joint
from sophon.loader.objects import as_pipeline, check_unchanged, given
from sophon.loader.opening.blocked import warn_if_blocked
from sophon.loader.opening.trial import try_calls, try_samples
from sophon.loader.options import Faults, OnError, Output, Told
from sophon.loader.planning.asked import Asked
from sophon.loader.planning.shared import MEASURED, SharedPlanning, shared_array
from sophon.loader.sources.assignment import BAND, agreed_cut, assignment_for, within
from sophon.loader.sources.found import FoundSources
from sophon.loader.sources.joined import JoinedSources
from sophon.loader.sources.prefix_cache import Cache, CachedTransport, cache_cut, cache_for
from sophon.loader.sources.samples import Samples
from sophon.loader.sources.sources import Address, Sources, addresses_of, transport_to
from sophon.loader.sources.verified import VerifiedTransport
from sophon.loader.torch_import import Dataset, in_worker, need_torch
from sophon.pipeline import Key, Pipeline, Tensor
from sophon.pipeline.pipeline import in_words
from sophon.plan.plan import Plan
from sophon.process.arenas import bound_arenas
from sophon.process.opencv import alone_after_fork
from sophon.store.digests import Digests
from sophon.store.fields import FOREGROUND


class RemoteDataset(Dataset[Any]):
    """The samples of ``grpc://host:port/dataset``, or of a path, after a pipeline.

    Several nodes may hold copies of a data set, or parts of it; a node may fail if another one has a copy.

    An item is (value, label), or just the value if the data set has no labels; with `columns`, a dict of these
    follows. Random ops depend on (seed, epoch, index): call `set_epoch` before each epoch, or use
    `sophon.EpochSampler`, which passes the epoch along with every index.

    Args:
        url: Address of the data set, a list of addresses of nodes that hold copies or parts of it, a path for local
            mode, a transport, a torchvision or Hugging Face data set that consists of files, or `from_dataset(…)` for
            a class of your own.
        pipeline: A `Pipeline`, a list of ops, or a torchvision transform; by default the transform of the data set.
        seed: Seed of all randomness.
        policy: "none", "all", "resize" or a cut such as "2:webp" for all samples; a plan: a `Plan`, the `Path` of one,
            or one cut per sample; or "optimal", "sophon" or "fastflow", which measure in the first epoch and plan for
            the following ones, for all worker processes together. Tell these policies about each epoch with
            `set_epoch` or an `EpochSampler`. `Planning(…)` sets more: where a profile is kept, whether lossy codecs are
            allowed.
        on_error: What to do with a sample that cannot be loaded: "raise" its error, "substitute" the next good one in
            the data set, or "skip" it, which makes its batch smaller; `OnError(…)` to limit how many may be bad.
        output: "torch" tensors, or "numpy" arrays, which need no torch; `Output(…)` to include further columns.
        target_transform: Applied to labels; seeded for each sample and run in the same place as your own steps.
        credentials: Credentials for the storage node; from the environment by default.
        faults: What to do when nodes are late or do not answer. With `hedge`, requests are sent by threads.
        cache: Keep the results of the ops before the first random one, and run those ops once: True, a cut such as
            "1:webp", or `Cache(…)` to choose where and how much.
    """

    table: Tensor | None
    """The float that the device makes from each byte, if `output` names a device; `pipeline` ends before that step."""

    def __init__(
        self,
        url: Address | Transport | Sources,
        pipeline: Any = None,
        *,
        seed: int = 0,
        policy: Any = None,
        on_error: str | OnError = "raise",
        output: str | Output = "torch",
        target_transform: Callable[[Any], Any] | None = None,
        credentials: Credentials | None = None,
        faults: Faults | None = None,
        cache: bool | str | Cut | Cache = False,
    ) -> None:
        told, given_policy = Told.of(policy, on_error, output, faults), policy
        columns, policy = told.output.columns, told.planning.policy
        if told.output.kind == "torch":
            need_torch('output="torch"')
        found = given(url, pipeline, target_transform)  # for an object, its files and transforms
        url, pipeline, target_transform = found.source, found.pipeline, found.target_transform
        self.faults = told.faults
        self.pipeline, self.table = self._divided(pipeline, told.output.device)
        self._recipe = pipeline
        self.seed = Key(seed, 0, 0).seed
        digests = None if told.faults.verify is None else Digests.load(told.faults.verify.digests)
        sources = _sources(url, credentials or Credentials(), told.faults, self.pipeline, digests)
        self.url = sources.url
        self._said = {
            "seed": seed,
            "policy": given_policy,
            "on_error": on_error,
            "output": output,
            "target_transform": target_transform,
            "faults": faults,
        }
        bound_arenas()
        alone_after_fork()
        opened = sources.open(self.pipeline)
        columns = tuple(_names_of(pipeline, columns, target_transform))
        _check_columns(columns, opened, self.url)
        self.pipeline, targets = _bound(pipeline, self.pipeline, opened)
        if digests is not None:
            _check_told(digests, opened, self.url)
        own = _own_fields(self.pipeline, columns, opened, self.url)
        self.samples = Samples(sources, opened, self.pipeline, self.seed, own, self.url, told.faults.deadline_s)
        self.is_cached = cache is not False
        self.measures = policy if isinstance(policy, str) and policy in MEASURED else None
        checked = _checked(told.faults, digests)
        self._assign(None if self.measures else policy, cache, told.planning.allow_lossy, checked)
        self.finishing = self._finishing(columns, target_transform, told.output.kind, targets)
        self.bad_samples = BadSamples(told.on_error.action, told.on_error.budget, len(self))
        # Shared with torch's worker processes, forked or spawned, including persistent ones.
        self._epoch = shared_array(1, np.int64)
        self._asked = Asked(len(self)) if any(op.random for op in self.pipeline.ops) else None
        self._planning = SharedPlanning(self.samples, self.measures, told.planning.allow_lossy)
        if not in_worker():
            if self.transport.is_remote and policy != "none" and not self.is_cached:
                warn_if_blocked(self.pipeline)
            self._try()

    def _divided(self, recipe: Any, device: Any) -> tuple[Pipeline, Tensor | None]:
        """Return the ops that run before batches are copied to a device (or all ops), and the table for the rest."""
        self._all, self.device = as_pipeline(recipe), device
        if device is None or isinstance(recipe, Joint):
            return self._all, None
        return divided(self._all)

    @property
    def whole(self) -> Pipeline:
        """All ops, including those that run on the device."""
        return self.pipeline if self.table is None else self._all

    def _try(self) -> None:
        """Try the callables of the recipe on the first sample."""
        if self.finishing.targets is None:
            try_calls(self.pipeline, self.seed, self.samples.first_file)
        elif self.pipeline.first_call < len(self.pipeline):
            reply, finishing = self.samples.first_sample(), self.finishing
            if reply is not None:
                try_samples(self.pipeline, self.seed, lambda key: finishing.item(finishing.make(reply, key).or_raise()))

    @property
    def said_policy(self) -> str:
        """The policy as given; the cuts in use may come from a loader's plan."""
        return repr(self._said["policy"])

    def with_sources(self, sources: Sources) -> RemoteDataset:
        """Return a data set with the same pipeline and settings whose samples come from other sources."""
        return RemoteDataset(sources, self._recipe, **self._said)

    def __add__(self, other: Any) -> Any:
        """Return both data sets as one; if the other is not remote, return torch's `ConcatDataset`."""
        return joined([self, other]) if isinstance(other, RemoteDataset) else super().__add__(other)

    def _finishing(
        self,
        columns: tuple[str, ...],
        target_transform: Callable[[Any], Any] | None,
        kind: str,
        targets: Targets | None,
    ) -> Finishing:
        # Fields that the decoder takes together stay together, and are not columns for users.
        fields = () if self.pipeline.takes_bundle else self.samples.fields
        has_labels = self.opened.has_labels
        return Finishing(
            self.pipeline, self.seed, self.url, has_labels, columns, fields, target_transform, kind, targets
        )

    def _assign(self, policy: Any, cache: bool | str | Cut | Cache, allow_lossy: bool, checked: str) -> None:
        """Set the cuts of the samples from a policy, a plan or a cache.

        Args:
            policy: A policy or a plan.
            cache: Settings of the cache, if there is one.
            allow_lossy: Whether codecs may change pixels.
            checked: How replies from nodes are checked; "" if they are not.
        """
        samples, pipeline, opened = self.samples, self.pipeline, self.opened
        samples.sources.compare_columns(samples.columns)
        if self.is_cached:
            if policy is not None:
                raise ConfigError("a cache decides which ops run before it; leave out policy and plan")
            policy = cache_cut(pipeline, cache)
        elif policy is None and opened.has_bands:
            policy = BAND
        is_plan = not (policy is None or isinstance(policy, str | Cut))
        fixed, plan = (None, policy) if is_plan else (policy, None)
        which = opened.fingerprint
        wanted = assignment_for(pipeline, fixed, plan, len(self), dataset=which, allow_lossy=allow_lossy)
        # Digests take a moment to compute, and matter only if something is to run elsewhere.
        offloads = any(cut.k for cut in wanted.cuts)
        samples.agreed_cut = agreed_cut(pipeline, opened) if offloads else 0
        samples.assignment = within(wanted, samples.agreed_cut)
        if self.is_cached:
            (cut,) = wanted.cuts
            settings = cache if isinstance(cache, Cache) else Cache()
            address = self.url if self.transport.is_remote else ""
            kept = cache_for(pipeline, opened, cut, settings, samples.fields, checked, samples.columns, address)
            asks = samples.assignment.cuts[0]
            samples.sources.wrap(lambda source: CachedTransport(source, kept, pipeline, asks))
            samples.assignment = wanted

    @property
    def opened(self) -> Opened:
        """The opened data set."""
        return self.samples.opened

    @property
    def sources(self) -> Sources:
        """Where samples come from."""
        return self.samples.sources

    @property
    def transport(self) -> Transport:
        """The transport to the first source of samples."""
        return self.sources[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label."""
        return self.opened.classes

    @property
    def output(self) -> str:
        """Type of the returned samples: "torch" or "numpy"."""
        return self.finishing.output

    @property
    def epoch(self) -> int:
        """The epoch that plain indexes belong to."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch comes next, for worker processes too.

        Raises:
            ConfigError: A step of the recipe was changed after it was translated, so the change has no effect.
        """
        check_unchanged(self._recipe, self.whole)
        self._epoch[0] = Key(0, epoch, 0).epoch
        if self._asked is not None:
            self._asked.forget()
        self._planning.begin(int(self._epoch[0]))

    @property
    def stats(self) -> Stats:
        """Counts for samples loaded through this object, by all of torch's workers; a `DataLoader` has its own."""
        return self._planning.stats

    @property
    def plan(self) -> Plan | None:
        """The plan of this epoch, if a policy that measures has made one."""
        return self._planning.plan

    @property
    def title(self) -> str:
        """The address, the data set's name unless the address ends in it, and the number of samples."""
        name = "" if self.url.endswith(f"/{self.opened.name}") else f" ({self.opened.name})"
        return f"{self.url!r}{name}, {len(self):,} {'sample' if len(self) == 1 else 'samples'}"

    @property
    def cuts_in_words(self) -> str:
        """What determines the cuts of samples, in words: a policy, a plan or a cache."""
        cuts = self.samples.assignment.cuts
        if self.measures is not None:
            return f"policy={self.measures!r}"
        if self.samples.assignment.number_of is not None:
            return f"plan of {len(cuts)} {'cut' if len(cuts) == 1 else 'cuts'}"
        cut = "none" if cuts[0] == RAW else str(cuts[0])
        return f"cache={cut!r}" if self.is_cached else f"policy={cut!r}"

    def __repr__(self) -> str:
        classes = f", {len(self.classes):,} classes" if self.classes else ""
        steps = f"{len(self.pipeline)} {'op' if len(self.pipeline) == 1 else 'ops'}"
        return f"RemoteDataset({self.title}{classes}, {steps}, {self.cuts_in_words}, seed={self.seed})"

    def __len__(self) -> int:
        return self.opened.samples

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return several samples, fetched with one request; an index may be (epoch, index)."""
        if self.table is not None:
            raise ConfigError(
                f"device: whole batches are sent to {self.device!r}, by sophon.DataLoader; leave device out to get "
                "samples one by one"
            )
        epochs, samples = zip(*(self._resolve(index) for index in indices), strict=True) if indices else ((), ())
        if self._asked is not None:
            pairs = zip(indices, samples, strict=True)
            self._asked.note([sample for index, sample in pairs if not isinstance(index, tuple)])
        items: list[Any] = [None] * len(samples)
        for epoch in dict.fromkeys(epochs):
            places = [place for place, one in enumerate(epochs) if one == epoch]
            for position, item in self._items(epoch, [samples[place] for place in places]):
                items[places[position]] = item
        found = [item[0] for item in items if item is not None]
        if indices and not found:
            raise BudgetError(
                f"all {len(indices)} samples of a batch are bad, so the batch would be empty; the last one: "
                f"{list(self.bad_samples)[-1].message} Use on_error='substitute'."
            )
        return found

    def _items(self, epoch: int, samples: list[int]) -> Any:
        """Yield (position, (item,)) for samples of an epoch, except for bad ones that are skipped."""
        here, planning = Here(self.finishing, None), self._planning
        stats, watcher = planning.own_stats, planning.watcher()
        mending = Mending(self.samples, self.bad_samples, stats)
        for position, reply in self.samples.fetch(epoch, samples, stats, self.faults.hedge, watcher):
            key = Key(self.seed, epoch, samples[position])
            made = here.make(reply, key, None, wants_trace=watcher is not None)
            stats.add(finish_cpu_s=made.cpu_s)
            if watcher is not None and made.trace is not None:
                watcher.finished(key, reply, made.trace)
            if made.error is not None:
                mended = mending.mend(key, made.error, here)
                if mended is None:
                    continue
                made = mended
            yield position, (self.finishing.item(made),)
        planning.flush()
        if stats.fallback and not in_worker():
            self.sources.warn_of_fallback(stacklevel=5)

    def _resolve(self, index: int | tuple[int, int]) -> tuple[int, int]:
        epoch, sample = index if isinstance(index, tuple) else (self.epoch, index)
        sample = int(sample)
        if not -len(self) <= sample < len(self):
            raise IndexError(f"{self.url} has {len(self):,} samples; there is no sample {sample}")
        return int(epoch), sample % len(self)


def _sources(
    url: Address | Transport | Sources,
    credentials: Credentials,
    faults: Faults,
    pipeline: Pipeline,
    digests: Digests | None,
) -> Sources:
    """Return the transports to all nodes."""
    if isinstance(url, Sources):
        return url
    deadline_s = faults.deadline_s
    if isinstance(url, Transport):
        return Sources(_verified([url], faults, digests, pipeline), faults.fallback, pipeline, url.address, deadline_s)
    addresses = addresses_of(url)
    if any(map(is_found, addresses)):
        if len(addresses) > 1:
            raise ConfigError(
                f"{', '.join(addresses)}: an address that stands for several nodes must be the only one given"
            )
        discovery = open_discovery(addresses[0], credentials, deadline_s)
        connect = _Connecting(credentials, faults, pipeline, digests)
        return FoundSources(discovery, connect, faults.fallback, pipeline, deadline_s)
    nodes = [transport_to(address, credentials, deadline_s) for address in addresses]
    nodes = _verified(nodes, faults, digests, pipeline)
    return Sources(nodes, faults.fallback, pipeline, ", ".join(addresses), deadline_s)


@dataclass(frozen=True)
class _Connecting:
    """Returns the source for a discovered node; may be sent to another process."""

    credentials: Credentials
    faults: Faults
    pipeline: Pipeline
    digests: Digests | None

    def __call__(self, address: str) -> Transport:
        node = transport_to(address, self.credentials, self.faults.deadline_s)
        return _verified([node], self.faults, self.digests, self.pipeline)[0]


def joined(datasets: Sequence[RemoteDataset]) -> RemoteDataset:
    """Return several data sets as one, with their samples in the given order.

    Raises:
        ConfigError: The data sets differ in more than their samples; the message names the difference.
    """
    first, deadline_s = datasets[0], datasets[0].faults.deadline_s
    for other in datasets[1:]:
        _check_alike(first, other)
    for one in datasets:
        if one.is_cached or one.sources.has_fallback:
            raise ConfigError(f"{one.url} has its own cache or fallback; joined data sets can have neither")
    url = ", ".join(dict.fromkeys(one.url for one in datasets))
    sources = JoinedSources([(one.sources, one.opened) for one in datasets], first.pipeline, url, deadline_s)
    return first.with_sources(sources)


def _check_alike(first: RemoteDataset, other: RemoteDataset) -> None:
    if first.pipeline.fingerprint != other.pipeline.fingerprint:
        raise ConfigError(
            f"{other.url} and {first.url} have different pipelines ({in_words(other.pipeline)}, "
            f"{in_words(first.pipeline)}); a loader has one pipeline: use torch's DataLoader for several"
        )
    told: dict[str, tuple[Any, Any]] = {
        "seed": (first.seed, other.seed),
        "has_labels": (first.opened.has_labels, other.opened.has_labels),
        "columns": (first.finishing.columns, other.finishing.columns),
        "fields": (first.opened.fields, other.opened.fields),
        "output": (first.output, other.output),
        "target_transform": (first.finishing.target_transform, other.finishing.target_transform),
        "on_error": (first.bad_samples.policy, other.bad_samples.policy),
        "policy": (first.said_policy, other.said_policy),
        "is_remote": (first.transport.is_remote, other.transport.is_remote),
    }
    for name, (one, two) in told.items():
        if one != two:
            raise ConfigError(
                f"{other.url} has {name}={two!r} and {first.url} {name}={one!r}; data sets can be joined only if "
                "nothing but their samples differs"
            )


def _verified(nodes: list[Transport], faults: Faults, digests: Digests | None, pipeline: Pipeline) -> list[Transport]:
    """Return the transports to all nodes, with a check of their replies if the user wants one."""
    if faults.verify is None or digests is None:
        return nodes
    return [VerifiedTransport(node, digests, faults.verify.samples, pipeline) for node in nodes]


def _names_of(recipe: Any, columns: Sequence[str], target_transform: Any) -> Sequence[str]:
    """Return the further fields and columns to bring along; a `Joint` names everything that its samples consist of."""
    if not isinstance(recipe, Joint):
        return columns
    if columns:
        raise ConfigError(f"columns: {columns[0]!r}: name it in Joint(…, sample=…), which defines the whole sample")
    if target_transform is not None:
        raise ConfigError("target_transform: use a step of the recipe instead, which receives the whole sample")
    return recipe.names


def _bound(recipe: Any, pipeline: Pipeline, opened: Opened) -> tuple[Pipeline, Targets | None]:
    """Return the pipeline for a data set, and the targets of a `Joint`."""
    return recipe.bound(pipeline, opened) if isinstance(recipe, Joint) else (pipeline, None)


def _own_fields(pipeline: Pipeline, columns: Sequence[str], opened: Opened, url: str) -> tuple[str, ...]:
    """Return the columns to bring along, and the fields that the pipeline's decoder reads along with the first.

    Raises:
        ConfigError: The data set lacks one of them, or further fields are requested.
    """
    if not pipeline.takes_bundle:
        return tuple(columns)
    names = tuple(name for name, _ in pipeline.fields)
    there = [field.name for field in opened.fields[1:]]
    for name in names:
        if name not in there:
            has = f"its fields are {', '.join(there)}" if there else "its samples are single files"
            hint = "; run `sophon index` for it" if name == FOREGROUND else ""
            raise ConfigError(f"{pipeline.ops[0].name()}: {url} has no field {name!r}; {has}{hint}")
    for name in columns:
        if name in there:
            raise ConfigError(
                f"columns: {name!r} is a field, and a volume takes only the fields that its decoder names"
            )
    return (*columns, *names)


def _checked(faults: Faults, digests: Digests | None) -> str:
    """Return how nodes' replies are checked, and with which digests; part of a cache's key."""
    return "" if faults.verify is None or digests is None else f"{faults.verify.samples} {digests.name}"


def _check_told(digests: Digests, opened: Opened, url: str) -> None:
    """Raise if digests belong to a different data set, or contradict what the node says about this one."""
    if digests.fingerprint != opened.fingerprint:
        raise ConfigError(f"verify: the digests do not belong to {url}; make them again")
    if len(digests) != opened.samples:
        raise ProtocolError(
            f"{url} lied about its data set: it reports {opened.samples:,} samples, but there are digests for "
            f"{len(digests):,}"
        )
    if digests.has_labels and not opened.has_labels:
        raise ProtocolError(f"{url} lied about its data set: it reports that there are no labels")


def _check_columns(columns: Sequence[str], opened: Opened, url: str) -> None:
    there_is = [*opened.columns, *(field.name for field in opened.fields[1:])]
    unknown = set(columns) - set(there_is)
    if unknown:
        raise ConfigError(f"no column {min(unknown)!r} in {url}; choose from {printable(', '.join(there_is))}")
