"""Many runs: which they are, and where they are carried out."""

from detent.lazily import lazily

_PLAN = dict.fromkeys(("plan_from_file", "plan_from_flags", "read_plan", "run_name"), "sweeps.plan")
__getattr__ = lazily(__name__, {**_PLAN, "sweep": "sweeps.cores"})
