"""JPEG files decoded by the very libjpeg that Pillow uses."""
