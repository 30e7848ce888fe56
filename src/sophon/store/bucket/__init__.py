"""Data sets in object stores (S3, GCS, Azure, HTTP): one client, and the stores that read through it."""
