"""The verbs of the command line: a file each, named like it, with `main(argv) -> exit code`.

`flags` and `stopping` are what they share.
"""
