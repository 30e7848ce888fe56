"""Facts as pure rows, and what is made of them: text, JSON, pictures, one HTML page.

From the ground up: `palette` and `chart` (what can be shown) → `facts` (what there is to say) → `profile`, `plan` and
`paper` (facts of one kind of file each) → `draw` and `svg` (pictures) → `page` (HTML) → `source` and `write` (files in,
files out).
"""
