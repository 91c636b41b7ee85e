"""Compiled programs are kept between tests: many of them train the same thing."""

import os
import tempfile

# Set before JAX is imported; subprocesses inherit it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="detent-tests-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
