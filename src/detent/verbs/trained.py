"""What RUN means for the verbs that let a trained policy act."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from detent.policy import Policy, load
from detent.runs.directory import RunDirectory
from detent.runs.run import Run
from detent.verbs.flags import policy_path


def trained(args: argparse.Namespace) -> tuple[Run, Policy, Path]:
    """The run and the policy that RUN means, a run directory or a policy file, and the policy's file."""
    source = policy_path(args.run, args.best)
    policy, directory = load(source), RunDirectory(args.run)
    if os.path.lexists(directory.path / "run.json"):  # a dangling link is a damaged run, not a policy on its own
        return directory.run(args.imports, args.task), policy, source
    return Run.from_configuration(policy.meta.get("configuration", {}), args.imports, args.task), policy, source
