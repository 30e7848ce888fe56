"""JPEG files decoded by the same libjpeg that Pillow uses."""
