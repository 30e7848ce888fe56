"""`sophon bench paper`: the evaluation of the SOPHON paper (HotStorage '24), again, on this machine.

`scenario` says what is run, `datasets` on which files, `calibration` turns a profile measured while nothing else ran
into one of the rig, `race` runs the policies in turns, `figures` makes each of the paper's figures, `published` has the
paper's own values, `bench` puts it together. What it returns is described in `schema.md`.
"""
