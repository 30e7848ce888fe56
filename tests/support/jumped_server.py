"""Imported into a server with ``--import``: its wall clock jumps."""

from tests.support.jumping_clock import install

install()
