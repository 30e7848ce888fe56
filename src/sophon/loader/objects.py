"""A data set given as an object: its files as a source, its transforms as a pipeline, and a check that both match.

The first, middle and last samples are read both through the object and through our own code: a picture or target that
differs is an error, since all others may differ too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.link.transport import Transport
from sophon.loader.joint import Joint
from sophon.loader.sources.local import LocalTransport
from sophon.loader.sources.sources import Sources
from sophon.pipeline import Key, Op, Pipeline, ops
from sophon.pipeline.call import Call
from sophon.pipeline.ops.combined.views import in_stages
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.pipeline import title
from sophon.pipeline.translation import ops_from_transform
from sophon.pipeline.translation.met import origin
from sophon.store.objects.fileset import FileSet
from sophon.store.objects.recognise import files_of


@dataclass(frozen=True)
class Given:
    """What to load.

    Args:
        source: An address, a path, or a transport.
        pipeline: The pipeline for the samples; None if not known.
        target_transform: Transform for targets.
    """

    source: Any
    pipeline: Any
    target_transform: Callable[[Any], Any] | None


class TargetOf:
    """Looks up a target that is not an integer, and applies the object's target_transform.

    Args:
        targets: The targets, indexed by label.
        then: The target_transform of the object or of the loader.
    """

    def __init__(self, targets: Any, then: Callable[[Any], Any] | None) -> None:
        self._targets = targets
        self._then = then

    def __call__(self, label: int) -> Any:
        """Return the target."""
        target = self._targets[label]
        return target if self._then is None else self._then(target)


def given(data: Any, pipeline: Any, target_transform: Callable[[Any], Any] | None) -> Given:
    """Return what to load: for an object, its files, transform and target_transform; anything else unchanged.

    Raises:
        ConfigError: The object cannot be represented, has a transform while a pipeline is given too, or its pictures or
            targets differ from those of its files; the message says what to try.
    """
    if isinstance(data, str | os.PathLike | Transport | Sources | list | tuple):
        return Given(data, pipeline, target_transform)
    files = files_of(data)
    if files is None:
        if not hasattr(type(data), "__getitem__"):
            return Given(data, pipeline, target_transform)
        raise ConfigError(
            f"{type(data).__name__} does not say where its files are; give sophon.from_dataset(ds, path=…, "
            "target=…), an address or a path"
        )
    if isinstance(pipeline, Joint):
        raise ConfigError("pipeline: Joint needs samples with fields; serve or open the data set's files instead")
    then = _one_of("target_transform", target_transform, files.target_transform)
    if files.refusal and pipeline is None:
        raise ConfigError(f"{files.title}: {files.refusal}; give a pipeline that begins with the bytes of a file")
    built = _pipeline(files, _one_of("pipeline", pipeline, files.transform))
    _compare(files)
    target = then if files.targets is None else TargetOf(files.targets, then)
    return Given(LocalTransport(files.store, files.title), built, target)


def _one_of(name: str, told: Any, own: Any) -> Any:
    if told is not None and own is not None and told is not own:
        own_name = "transform" if name == "pipeline" else name
        raise ConfigError(f"{name}: the data set already has a {own_name}; leave one of them out")
    return told if told is not None else own


def _pipeline(files: FileSet, told: Any) -> Pipeline:
    """Return the pipeline; pictures are decoded as the object decodes them, unless the user's ops say otherwise."""
    decode = ops.Decode(**files.decode)
    if told is None:
        return Pipeline([decode])
    steps = list(told) if isinstance(told, list | tuple) else [told]
    pipeline = as_pipeline(told)
    says_how = isinstance(told, Pipeline) or any(map(_is_op, steps))
    first = pipeline.ops[0]
    if says_how or not isinstance(first, Decode):
        return pipeline
    if decode.mode != "RGB":
        return Pipeline([decode, *steps])  # translation is proven for colour pictures; these steps run unchanged
    return Pipeline([replace(decode, metadata=first.metadata), *pipeline.ops[1:]])


def _compare(files: FileSet) -> None:
    """Raise unless some samples of the object match its files."""
    if files.item is None:
        return
    decode = Pipeline([ops.Decode(**files.decode)])
    manifest = files.store.manifest
    for index in sorted({0, len(files) // 2, len(files) - 1}):
        picture, target = files.item(index)
        where = f"{files.title}, sample {index}"
        if picture is not None:
            _compare_picture(picture, decode.run(files.store.read(index), Key(0, 0, index)), where)
        label = manifest.label(index)
        ours = files.targets[label] if files.targets is not None and label is not None else label
        if not _same(ours, target) and not (ours == -1 and target is None):
            raise ConfigError(f"{where}: the object's target is {target!r:.80}, but {ours!r:.80} was found; {_REMEDY}")


_REMEDY = "give sophon.from_dataset(ds, path=…, target=…), or its files and labels as a listing"


def _compare_picture(theirs: Any, ours: Any, where: str) -> None:
    size = getattr(theirs, "size", None)
    if not hasattr(theirs, "tobytes") or not hasattr(theirs, "mode"):
        raise ConfigError(
            f"{where}: the object gives a {type(theirs).__name__} where a picture was expected: it does more than its "
            "transform. Give a pipeline that does the same from the bytes of a file, and check=False"
        )
    if (theirs.mode, size, theirs.tobytes()) != (ours.mode, ours.size, ours.tobytes()):
        raise ConfigError(
            f"{where}: the object's pixels ({theirs.mode}, {size}) differ from its file's ({ours.mode}, {ours.size}); "
            'name the mode it opens files in, as in from_dataset(…, decode="L"), or give a pipeline and check=False'
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    try:
        return bool(np.array_equal(one, other)) or one == other
    except Exception:  # noqa: BLE001 - a comparison of the user's own targets may raise anything
        return one is other


def check_unchanged(recipe: Any, pipeline: Pipeline) -> None:
    """Raise if steps that became ops were changed after the pipeline was made from the recipe.

    The user's own steps run with their current settings in every epoch. An op keeps the original settings of its
    transform; running it silently after a change would give tensors that differ from the recipe's.

    Raises:
        ConfigError: A step was changed; the message names it and says what to do.
    """
    if not _is_on_pictures(recipe):
        return
    now = recipe.ops.ops if isinstance(recipe, Joint) else in_stages(ops_from_transform(recipe))
    pairs = zip_longest(pipeline.ops[1:], now[1:])  # Decode comes before the user's steps
    for position, (was, found) in enumerate(pairs, start=1):
        if not _is_same_step(was, found):
            name = title(was if was is not None else found)
            raise ConfigError(
                f"step {position}, {name}, was changed after the loader was created, which has no effect; create "
                "another loader with the changed recipe, and continue with set_epoch"
            )


def _is_same_step(was: Op | None, found: Op | None) -> bool:
    if was is None or found is None:
        return False
    if isinstance(was, Call):
        return isinstance(found, Call) and was.function is found.function
    if isinstance(was, ops.Views) and isinstance(found, ops.Views):
        pairs = zip_longest(was.views, found.views, fillvalue=())
        return all(_is_same_step(one, two) for pair in pairs for one, two in zip_longest(*pair))
    return bool(was.to_spec() == found.to_spec())


def _is_on_pictures(pipeline: Any) -> bool:
    """Return whether the user's pipeline is a recipe that starts with a picture."""
    if isinstance(pipeline, Pipeline):
        return False
    if isinstance(pipeline, list | tuple):
        # Library transforms take pictures; the user's functions may take the bytes of a file.
        wants = any(origin(step).library or isinstance(step, ops.Views) for step in pipeline)
        return wants and not any(map(_is_op, pipeline))
    return True


def _is_op(step: Any) -> bool:
    """Return whether a step is an op other than `Views`, which may contain any transforms."""
    return isinstance(step, Op) and not isinstance(step, ops.Views)


def as_pipeline(pipeline: Any) -> Pipeline:
    """Return a `Pipeline` for ops, or for transforms from torchvision and other libraries."""
    if pipeline is None:
        raise ConfigError(
            "pipeline: expected a Pipeline or a torchvision transform, got None; the simplest one is ToTensor()"
        )
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, Joint):
        return Pipeline(pipeline.ops.ops)
    return Pipeline.from_torchvision(pipeline) if _is_on_pictures(pipeline) else Pipeline(pipeline)
