"""Ops for sound: from a WAV or FLAC file to waveforms and spectrograms."""
