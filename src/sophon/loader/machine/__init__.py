"""Decisions without threads, sockets or clocks."""
