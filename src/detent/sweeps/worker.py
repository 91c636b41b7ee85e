"""A process that carries out one run of a sweep: `python -m detent.sweeps.worker`, started by `detent.sweeps.cores`.

It reads a job from its standard input, one line of JSON, and writes an event per line to its standard output. Another
line of input is a reason to stop; the end of the input is one too, so that no worker outlives its sweep.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    # Whatever else is printed goes to the log. Only now is anything imported that starts threads: by now the process
    # has been bound to its core.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from detent.sweeps.job import Event, Job, carry_out

    reasons: list[str] = []

    def listen() -> None:
        reasons.append(sys.stdin.readline().strip() or "its sweep has ended")

    def report(event: Event) -> None:
        try:
            print(json.dumps(dataclasses.asdict(event)), file=events, flush=True)
        except BrokenPipeError:
            return  # the sweep has ended, which `listen` notices too

    threading.Thread(target=listen, daemon=True).start()
    report(carry_out(Job(**asked["job"]), Path(asked["out"]), report, lambda: reasons[0] if reasons else None))
    # The thread still waits for input: exit without joining it.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
