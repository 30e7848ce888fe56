"""Reports: facts as plain rows, rendered as text, JSON, pictures and one HTML page.

From the bottom up: `palette` and `chart` (what can be shown) → `facts` (the content of a report) → `profile`, `plan`
and `paper` (facts of one kind of file each) → `draw` and `svg` (pictures) → `page` (HTML) → `source` and `write` (files
in, files out).
"""
