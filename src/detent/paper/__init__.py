"""The paper's experiments: its figures and tables, run and drawn again."""
