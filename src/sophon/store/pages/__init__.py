"""Files of pages: manifests of which rows are read when they are needed."""
