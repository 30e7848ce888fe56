"""`sophon bench` commands about scans."""
