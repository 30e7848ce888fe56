"""Codecs for sound: windows of WAV and FLAC files, and crops as FLAC."""
