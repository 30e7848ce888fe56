"""Windows of volumes."""
