"""`sophon bench`: one file for each benchmark."""
