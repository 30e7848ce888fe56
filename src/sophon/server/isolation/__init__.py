"""Ops and decoders in processes of their own."""
