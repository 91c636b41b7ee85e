"""The verbs of the command line: one file for each, with the same name and `main(argv) -> exit code`.

`flags`, `stopping` and `trained` are what they share.
"""
