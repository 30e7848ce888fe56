"""Tell the story of a seed: ``python -m tests.loader.machine.simulation SEED [pictures] [relays]``."""

import sys

from tests.loader.machine.simulation.content import Numbers, Pictures
from tests.loader.machine.simulation.world import World


def main() -> None:
    world = World(
        int(sys.argv[1]), content=Pictures() if "pictures" in sys.argv else Numbers(), has_relays="relays" in sys.argv
    )
    try:
        world.run()
    finally:
        for time_s, who, *what in world.events:
            sys.stdout.write(f"{time_s:12.6f}  {f'rank {who}' if who else 'world':>7}  {' '.join(map(str, what))}\n")
        sys.stdout.write(f"trace {world.trace}\n")


main()
