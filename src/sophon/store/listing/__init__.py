"""Listings: a table of files with labels and further columns, in CSV, JSON lines or Parquet."""
