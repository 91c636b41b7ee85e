"""One run: its options, how it is carried out, and where it is stored."""

from detent.lazily import lazily

__getattr__ = lazily(__name__, dict.fromkeys(("Execution", "evaluate_run", "execute", "train"), "runs.execution"))
