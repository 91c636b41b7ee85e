"""The paper as commands: its experiments as runs, its printed numbers, and what ours come to beside them.

`experiments.toml` says what is run, `reference.toml` what was printed; both are read by `experiments.py`.
`selection.py` finds the runs of an experiment and applies the paper's rule of the best; `tables.py` and `figures.py`
show them.
"""
