"""Files of pages: manifests whose rows are read on demand."""
