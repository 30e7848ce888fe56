"""Ops and decoders in separate processes."""
