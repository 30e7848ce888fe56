"""`sophon bench paper`: repeats the evaluation of the SOPHON paper (HotStorage '24) on this machine.

`scenario` holds the settings, `datasets` provides the files, `calibration` turns a profile measured on an idle machine
into one for the rig, `race` runs the policies in turns, `figures` makes each of the paper's figures, `published` has
the paper's own values, and `bench` puts it all together. Its result is described in `schema.md`.
"""
