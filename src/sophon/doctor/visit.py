"""One visit to the doctor: this installation and machine, then each place, then the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sophon.doctor.finding import FAULT, Finding
from sophon.doctor.installation import examine_installation
from sophon.doctor.machine import examine_machine


@dataclass(frozen=True)
class Visit:
    """The targets of the examination, and how thorough it is.

    Args:
        places: Addresses of nodes and paths of data sets.
        recipe: Name of the pipeline, see `doctor.recipe.load_recipe`; None for the ImageNet recipe.
        samples: Number of samples to examine in each place.
        seconds: How long to measure the speed of a link.
        patience_s: How long a step of the pipeline may take.
    """

    places: Sequence[str] = ()
    recipe: str | None = None
    samples: int = 64
    seconds: float = 3.0
    patience_s: float = 10.0

    def examine(self) -> Iterator[Finding]:
        """Yield findings as they are made; a fault that prevents further checks ends its section, not the visit."""
        yield from examine_installation()
        yield from examine_machine()
        if not self.places and self.recipe is None:
            return
        try:
            # Not before the installation is examined: these imports fail if packages are missing.
            from sophon.doctor.places import Place, examine_copies
            from sophon.doctor.recipe import default_recipe, examine_recipe, load_recipe
        except ImportError as error:
            yield Finding("installation", "packages", FAULT, f"sophon cannot be loaded: {error}", "Reinstall it.")
            return
        pipeline = default_recipe() if self.recipe is None else load_recipe(self.recipe)
        with contextlib.ExitStack() as stack:
            places = [stack.enter_context(contextlib.closing(Place(address))) for address in self.places]
            for place in places:
                yield from place.examine(pipeline, self.samples, self.seconds)
            yield from examine_copies({place.address: place.opened for place in places if place.opened is not None})
            files = next((place.files for place in places if place.files), {})
            works = True
            for finding in examine_recipe(pipeline, files, self.patience_s):
                works &= finding.level != FAULT
                yield finding
            for place in places if works else ():  # otherwise a step would hang here too, or differ from run to run
                yield from place.compare(pipeline)
