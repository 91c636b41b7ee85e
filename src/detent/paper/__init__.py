"""The paper as commands: its experiments as runs, its printed numbers, and ours beside them.

`experiments.toml` defines the experiments and `experiments.py` turns them into runs; `reference.toml` has the printed
numbers and `printed.py` reads them.
`selection.py` finds the runs of an experiment and picks the best settings, as the paper does; `tables.py` and
`figures.py` show them.
"""
