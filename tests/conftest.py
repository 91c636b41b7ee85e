"""Compiled programs are kept between tests: many of them train the same thing. Shapes are checked while tests run."""

import os
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path

# Set before JAX is imported; subprocesses inherit it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="detent-tests-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

from jaxtyping import install_import_hook

# Only modules with shapes, and before Detent is imported: jaxtyping slows down every function of a module it checks.
SOURCE = Path(find_spec("detent").origin).parent
SHAPED = [path for path in SOURCE.rglob("*.py") if re.search(r"^from jaxtyping import", path.read_text(), re.M)]
NAMES = (".".join(["detent", *path.relative_to(SOURCE).with_suffix("").parts]) for path in SHAPED)
install_import_hook([name.removesuffix(".__init__") for name in NAMES], "shapes.checked")
