"""A seeded simulator with virtual time, which drives the trainer's logic through everything that a link can do to it.

`world` makes a world from a seed and runs it: storage nodes (`node`) behind a link (`link`), and trainers (`trainer`)
that drive the real `Machine` as the engine does: woken by what the engine is woken by, and by nothing else. `ledger`
keeps books of its own on what the machine was told and said, and compares. Nothing asks a clock or a generator of the
process: a seed is a whole story, and `python -m tests.loader.machine.simulation SEED` tells it.
"""
