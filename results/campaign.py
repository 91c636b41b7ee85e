"""The first campaign: the paper's experiments at a scale that two cores can manage in a few nights.

    python results/campaign.py run [--out DIR] [--nice N]    train what results/campaign.jsonl lacks; can be repeated
    python results/campaign.py collect [--out DIR]           add runs that have ended to results/campaign.jsonl
    python results/campaign.py write                         write docs/results.md and its figures from results/

Figure 5a and Table 3 are measured, not trained; their commands are in docs/results.md.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent import report
from detent.paper.experiments import experiments
from detent.paper.figures import draw
from detent.paper.measuring import measured, variance_tables
from detent.paper.selection import Choice, Placed, Scale, by_scale, cells, placed
from detent.paper.tables import OPTIMUM, interval, tables_of
from detent.paper.variance import draw as draw_variance
from detent.report import statistics
from detent.report.comparisons import AcrossTasks
from detent.report.variants import Variant
from detent.runs.run import Run
from detent.sweeps.cores import sweep
from detent.sweeps.plan import run_name
from detent.sweeps.progress import follow_sweep

HERE = Path(__file__).parent
RECORDS, VARIANCE, COST = HERE / "campaign.jsonl", HERE / "variance.json", HERE / "cost.jsonl"
PAGE, FIGURES = HERE.parent / "docs" / "results.md", HERE.parent / "docs" / "assets" / "results"
SEARCHED, SEARCH_SEEDS = HERE / "learning.jsonl", (100, 101)
"""The runs that `modern` of version 0.1 was chosen by; these seeds are in no table of results."""

PAPER, MODERN = "paper-0.1", "modern-0.1"
"""The campaign was run with version 0.1, and its presets."""
SMALL = {"steps": "1e6", "seeds": "3", "bins": ["11"], "tuning": False, "presets": [PAPER]}
"""A tenth of the paper's steps, three of its five seeds, one K, the preset's learning rate or KL."""
BOTH = [MODERN, PAPER]
PIECES: list[tuple[str, dict[str, Any]]] = [
    ("figure1", {"presets": [PAPER]}),
    ("table2", SMALL | {"algos": ["ppo"], "tasks": ["HalfCheetah"], "presets": BOTH}),
    ("table2", SMALL | {"algos": ["trpo"], "tasks": ["HalfCheetah"]}),
    ("figure10", SMALL | {"tasks": ["HalfCheetah", "Reacher"], "heads": ["gaussian", "discrete", "ordinal"]}),
    ("figure5b", {"bins": ["2", "5", "7", "11", "15", "50"], "seeds": "3", "presets": [PAPER]}),
    ("table2", SMALL | {"algos": ["ppo"], "tasks": ["Ant"], "presets": BOTH}),
    ("table2", SMALL | {"algos": ["ppo"], "tasks": ["Sim. Humanoid (R)"], "presets": BOTH}),
    ("table2", SMALL | {"algos": ["ppo"], "tasks": ["Humanoid"], "presets": BOTH}),
    ("table2", SMALL | {"algos": ["trpo"], "tasks": ["Humanoid"]}),
]
"""The parts of the paper's experiments that are run, in this order; what `Experiment.runs` is given."""


def command(name: str, chosen: Mapping[str, Any]) -> list[str]:
    """The words of `detent paper run` that do it."""
    words = ["paper", "run", name]
    for key, value in chosen.items():
        if key == "tuning":
            words += [] if value else ["--no-tuning"]
        else:
            flag = {"tasks": "--task", "algos": "--algo", "heads": "--head", "presets": "--preset"}.get(key, f"--{key}")
            words += [flag, *([value] if isinstance(value, str) else value)]
    return words


def planned(of: str | None = None) -> dict[str, Run]:
    """Name -> run, of the whole campaign or of one experiment."""
    return {
        run_name(run): run
        for name, chosen in PIECES
        if of in (None, name)
        for run in experiments()[name].runs(**chosen)
    }


def members(name: str, runs: Sequence[report.RunSummary]) -> list[Placed]:
    """The runs that were planned for this experiment.

    Not all that would fit: with Figure 5b's the discrete head would have the best of three K in one row of Table 2.
    """
    wanted = planned(name)
    return placed(experiments()[name], [run for run in runs if name_of(run) in wanted])


def name_of(run: report.RunSummary) -> str:
    """What the run would be called in a sweep today."""
    return run_name(Run.from_configuration(run.configuration))


# --- the page ---


def page(runs: Sequence[report.RunSummary]) -> Iterator[str]:
    """docs/results.md, paragraph by paragraph."""
    known = {name_of(run): run for run in runs}
    plan = planned()
    ended = Counter(known[name].status for name in plan if name in known)
    processors = Counter(run.machine.get("processor", "unknown") for run in runs)
    yield "# Results"
    yield (
        "Results of the paper's experiments, written by `python results/campaign.py write` from the records in "
        "`results/`. Every number can be checked: `detent report results/campaign.jsonl` shows each run with its "
        "options, versions and processor, which together reproduce it bit for bit ([compact files](report.md))."
    )
    yield (
        "```sh\npython results/campaign.py run        # everything but Table 3 and Figure 5a; can be repeated\n"
        "python results/campaign.py collect    # into results/campaign.jsonl\n"
        "python results/campaign.py write      # this page\n```"
    )
    statuses = ", ".join(f"{count} {status}" for status, count in ended.most_common())
    missing = len(plan) - sum(ended.values())
    yield (
        f"**Status:** {statuses} of {len(plan)} runs"
        + (f"; {missing} have not been run yet, and nothing is claimed where they are missing." if missing else ".")
        + f" Processors: {', '.join(f'{name} ({count})' for name, count in processors.most_common())}."
    )
    yield (
        "**Scale.** Unless a table says otherwise, runs have a tenth of the paper's steps (1 million) and three seeds "
        "where the paper has five; K is 11, where the paper reports the best of 7, 11 and 15; the learning rate or KL "
        "is the preset's, where the paper reports the better of two. `paper` is what the authors' code does, `modern` "
        "what has worked best here: one set of settings for all heads, which [did not get equal care]"
        "(#what-is-left-of-the-gain-with-better-settings). Tasks are today's versions, so the paper's numbers are "
        "shown for orientation and cannot be compared exactly."
    )
    yield (
        "**Words.** *higher* and *lower*: the 95% interval of the difference of means (Welch's t) excludes 0; "
        "*undecided*: it does not, or there is only one run. Three seeds show only large differences. There is no "
        "correction for multiple comparisons: among twenty comparisons of equal policies, one false difference is "
        "expected."
    )
    yield from claims(runs)
    for title, name, chosen in (
        ("Final returns of five policies (Table 2)", "table2", None),
        ("ACKTR (Figure 10)", "figure10", None),
        ("Final return against K (Figure 5b)", "figure5b", None),
        ("The bandit (Figure 1)", "figure1", None),
    ):
        yield f"## {title}"
        pieces = [shlex.join(["detent", *command(piece, chosen)]) for piece, chosen in PIECES if piece == name]
        yield "```sh\n" + "\n".join(pieces) + "\n```"
        found = members(name, runs)
        for table in tables_of(experiments()[name], found, intervals=True):
            yield table.markdown()
        for path in figure_files(name, found):
            yield f"![{title}]({path.relative_to(PAGE.parent)})"
    yield "## Cost and parameters against K (Table 3)"
    yield (
        "```sh\ndetent paper run table3 --steps 1e5 --out runs/cost    # one run at a time, on an idle machine\n"
        "detent report runs/cost --compact results/cost.jsonl\n```"
    )
    if COST.exists():
        for table in tables_of(experiments()["table3"], placed(experiments()["table3"], report.load_runs([COST]))):
            yield table.markdown()
    yield "## Variance of the gradient against K (Figure 5a)"
    yield "```sh\ndetent paper run figure5a --out results\n```"
    yield (
        "[Where the derivations slip](paper.md#where-the-derivations-slip) has the corrected theory, and the effect "
        "of an orthogonal output layer."
    )
    if VARIANCE.exists():
        variances = measured([VARIANCE])
        for table in variance_tables(variances):
            yield table.markdown()
        for path in pictures(draw_variance(variances, FIGURES / "figure5a")):
            yield f"![Variance of the gradient]({path.relative_to(PAGE.parent)})"


def figure_files(name: str, found: Sequence[Placed]) -> list[Path]:
    """Draw the figures into docs/; the pictures. The bandit's shows policies, which records have not: see `collect`."""
    if name == "figure1":
        return sorted(FIGURES.glob(f"{name}-*.png"))
    return pictures(draw(experiments()[name], found, FIGURES))


def pictures(written: Sequence[Path]) -> list[Path]:
    """The files that a page can show; the others are removed."""
    for path in written:
        if path.suffix != ".png":
            path.unlink()
    return [path for path in written if path.suffix == ".png"]


# --- what holds ---

Cells = Mapping[tuple[str, str], Choice]


@dataclass(frozen=True)
class Claim:
    """What the paper says of two heads: `head` is better than `than`, or (if not `better`) it is not."""

    says: str
    head: str
    than: str
    better: bool = True

    def judged(self, verdict: str) -> str:
        """What a verdict on `head` against `than` means for it."""
        if verdict == "undecided":
            return verdict
        return "holds" if (verdict == "higher") == self.better else "does not hold"


CLAIMS = (
    Claim("Discretising beats the Gaussian", "discrete", "gaussian"),
    Claim("The ordinal policy beats the Gaussian", "ordinal", "gaussian"),
    Claim("The ordinal policy beats the discrete one", "ordinal", "discrete"),
    Claim("Bounded means alone (Gaussian + tanh) are no better than the Gaussian", "gaussian_tanh", "gaussian", False),
    Claim("Beta is no better than the Gaussian", "beta", "gaussian", False),
    Claim("Discretising beats Beta", "discrete", "beta"),
)
JUDGEMENTS = ("holds", "does not hold", "undecided")
RETURNS = ("table2", "figure10")
"""The experiments that the claims are about."""


def claims(runs: Sequence[report.RunSummary]) -> Iterator[str]:
    scales: dict[Scale, Cells] = {}
    for name in RETURNS:
        for scale, group in by_scale(members(name, runs)).items():
            scales[scale] = cells(group, by_bins=False)
    gaps = {
        claim: {
            scale: {
                task: statistics.difference([found[task, claim.head].scores], [found[task, claim.than].scores])
                for task in sorted({task for task, _ in found})
                if all((task, head) in found and found[task, head].scores.size for head in (claim.head, claim.than))
            }
            for scale, found in scales.items()
        }
        for claim in CLAIMS
    }
    across = report.comparison([member.run for name in RETURNS for member in members(name, runs)]).across
    yield "## What holds here"
    yield from in_short(across, scales)
    yield "The paper's claims about heads, with the number of tasks on which each holds:"
    lines = [f"| | {' | '.join(map(label, scales))} |", "|---" * (len(scales) + 1) + "|"]
    for claim, by_task in gaps.items():
        counts = [Counter(claim.judged(gap.verdict) for gap in found.values()) for found in by_task.values()]
        judged = (", ".join(f"{word} on {n[word]}" for word in JUDGEMENTS if n[word]) for n in counts)
        lines.append(f"| {claim.says} | {' | '.join(judged)} |")
    yield "\n".join(lines)
    yield from across_tasks(across)
    yield from gain_left(scales)
    yield "### The paper's other claims"
    yield "\n".join(f"- {line}" for line in other_claims(runs))
    yield "### Task by task"
    yield "Differences of means, with their 95% intervals."
    tasks = sorted({task for found in scales.values() for task, _ in found})
    for claim, by_task in gaps.items():
        lines = [f"**{claim.says}**", "", f"| {claim.head} - {claim.than} | {' | '.join(tasks)} |"]
        lines.append("|---" * (len(tasks) + 1) + "|")
        for scale, found in by_task.items():
            row = (
                f"{found[task].verdict}: {signed(found[task].value)} ({interval(found[task])})" if task in found else ""
                for task in tasks
            )
            lines += [f"| {label(scale)} | {' | '.join(row)} |"] if found else []
        yield "\n".join(lines)


def label(scale: Scale | Variant) -> str:
    return f"{scale.algo.upper()}, {scale.preset}"


def in_short(rows: Sequence[AcrossTasks], scales: Iterable[Scale]) -> Iterator[str]:
    """The answer to the paper's question in a sentence."""
    parts = []
    for scale in scales:
        verdicts = ", ".join(
            f"{row.variant.head} {row.versus['gaussian'].difference.verdict}"
            for row in rows
            if label(row.variant) == label(scale)
            and row.variant.head in ("discrete", "ordinal")
            and "gaussian" in row.versus
        )
        parts += [f"{label(scale)}: {verdicts}"] if verdicts else []
    if parts:
        yield f"**In short, against the Gaussian and across tasks.** {'; '.join(parts)}."


def across_tasks(rows: Sequence[AcrossTasks]) -> Iterator[str]:
    """Today's statistics, over the tasks that all heads have runs of."""
    lines = ["| | head | IQM | better than the Gaussian | difference to the Gaussian |", "|---" * 5 + "|"]
    heads = list(dict.fromkeys(run.names[1] for run in planned("table2").values()))

    def place(row: AcrossTasks) -> tuple[str, str, int]:
        return row.variant.algo, row.variant.preset, heads.index(row.variant.head)

    before = ""
    for row in sorted(rows, key=place):
        against = row.versus.get("gaussian")
        better = f"{against.improvement.value:.2f} ({_between(against.improvement)})" if against else ""
        gap = f"{against.difference.verdict} ({_between(against.difference)})" if against else ""
        group = f"{label(row.variant)}: {', '.join(row.tasks)}"
        where, before = "" if group == before else group, group
        lines.append(f"| {where} | {row.variant.head} | {row.iqm.value:.2f} ({_between(row.iqm)}) | {better} | {gap} |")
    if len(lines) > 2:
        yield "### Across tasks"
        yield (
            "Scores are 0 for the worst and 1 for the best run of a task. The table has the interquartile mean, the "
            "probability that a run is better than one of the Gaussian, and the difference of means, each with its "
            "interval (95%: Yuen's and Welch's t; for the probability Clopper and Pearson's, at least 95%), over the "
            "tasks that have runs of every head."
        )
        yield "\n".join(lines)


def _between(found: statistics.Interval) -> str:
    return "too few runs" if math.isnan(found.low) else f"{found.low:.2f} to {found.high:.2f}"


def signed(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


PRESETS = (PAPER, MODERN)
BETTER = "the better of both"
SETTINGS = (*PRESETS, BETTER)


def care_taken() -> str:
    """How much care each head got in the search for `modern`."""
    tries = Counter(run.head for run in report.load_runs([SEARCHED]) if run.seed in SEARCH_SEEDS)
    heads = dict.fromkeys(run.names[1] for run in planned("table2").values())
    counts = ", ".join(f"{head} {tries[head]}" for head in heads)
    return (
        f"**The heads did not get equal care.** Recorded runs in the search for PPO's settings of `modern`, by head: "
        f"{counts}. Four heads had the same ten (two learning rates, two minibatch sizes). Of the others, those with "
        "the Gaussian and most with the ordinal head came before, and found the limit on the KL; those with the "
        "discrete head came after, and changed nothing. The search used HalfCheetah and Humanoid, among other tasks, "
        "with other seeds. So where a head loses to the Gaussian with `modern`, either the settings or the head may be "
        "the reason; the table does show how much of the paper's gain depends on the Gaussian's settings "
        "([performance](performance.md#learning))."
    )


def gain_left(scales: Mapping[Scale, Cells]) -> Iterator[str]:
    """How much of the discretised policies' gain is left when the Gaussian is set up better than in the paper."""
    yield "### What is left of the gain with better settings"
    yield (
        "Returns, and how they compare with the Gaussian's: with the settings of the authors' code, with ours, and "
        f"with whichever of the two has the higher mean for each head ({BETTER}; picked on the same runs that are "
        "shown, which favours every head and is not reflected in the intervals)."
    )
    yield care_taken()
    heads = ("gaussian", "discrete", "ordinal")
    by_task: dict[tuple[str, str], dict[str, dict[str, Choice]]] = defaultdict(lambda: defaultdict(dict))
    for scale, found in scales.items():
        for (task, head), choice in found.items():
            if choice.scores.size:
                by_task[scale.algo, task][scale.preset][head] = choice
    lines = [f"| | settings | {' | '.join(heads)} |", "|---" * 5 + "|"]
    verdicts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (algo, task), known in sorted(by_task.items()):
        if not all(head in known[preset] for preset in PRESETS for head in heads):
            continue
        where = f"{algo.upper()}, {task}"
        known[BETTER] = {h: max((known[p][h] for p in PRESETS), key=lambda c: c.mean_and_sd[0]) for h in heads}
        for settings in SETTINGS:
            base = known[settings]["gaussian"]
            row = [f"{base.mean_and_sd[0]:,.0f}"]
            for head in heads[1:]:
                own = known[settings][head]
                verdict = statistics.difference([own.scores], [base.scores]).verdict
                verdicts[head, settings][verdict] += 1
                mean, other = own.mean_and_sd[0], base.mean_and_sd[0]
                row.append(f"{mean:,.0f} ({f'{mean / other:.2f}x, ' if other > 0 else ''}{verdict})")
            lines.append(f"| {where} | {settings} | {' | '.join(row)} |")
            where = ""
    yield "\n".join(lines)
    for head in heads[1:]:
        counted = (", ".join(f"{word} on {n}" for word, n in verdicts[head, kind].most_common()) for kind in SETTINGS)
        counts = "; ".join(f"with {kind} {words or 'not known'}" for kind, words in zip(SETTINGS, counted, strict=True))
        yield f"**By number of tasks, {head} against the Gaussian:** {counts}."


def other_claims(runs: Sequence[report.RunSummary]) -> Iterator[str]:
    """About the bandit, K, the variance of the gradient and cost; those that have been measured."""
    bandit = cells(members("figure1", runs), by_bins=False)
    if bandit:
        optimal = {key: int((choice.scores > OPTIMUM).sum()) for key, choice in bandit.items()}
        found = {key: f"{optimal[key]} of {choice.scores.size}" for key, choice in bandit.items()}
        holds = optimal["probe/bimodal", "discrete"] > optimal["probe/bimodal", "gaussian"]
        yield (
            "**A discrete policy finds the higher of two peaks, a Gaussian gets stuck on the lower (Figure 1).** "
            f"{'Holds' if holds else 'Does not hold'}: {found['probe/bimodal', 'discrete']} seeds against "
            f"{found['probe/bimodal', 'gaussian']}. **And it keeps both peaks.** Not here: with two equal peaks "
            "(`probe/twin`) nothing keeps a policy at both, and as the picture shows, PPO's noise carries every seed "
            f"to one of them. There the Gaussian finds the optimum with {found['probe/twin', 'gaussian']} seeds."
        )
    sizes = cells(members("figure5b", runs), by_bins=True)
    for task in sorted({task for task, _ in sizes}):
        usual = sizes.get((task, "discrete, K = 11"))
        others = {label: c for (known, label), c in sizes.items() if known == task and c is not usual}
        if usual is None or not others:
            continue
        gaps = {label: statistics.difference([c.scores], [usual.scores]).verdict for label, c in others.items()}
        by_word = {
            word: ", ".join(sorted((k.partition(" = ")[2] for k, v in gaps.items() if v == word), key=int))
            for word in ("higher", "lower", "undecided")
        }
        means = {label: c.mean_and_sd[0] for label, c in others.items()} | {"discrete, K = 11": usual.mean_and_sd[0]}
        best = max(means, key=lambda label: means[label]).partition(" = ")[2]
        outside = [verdict for label, verdict in gaps.items() if label.partition(" = ")[2] not in ("7", "15")]
        poor = gaps.get("discrete, K = 2") == "lower"
        held = (
            "Holds" if set(outside) == {"lower"} else "Holds for K = 2, the rest is undecided" if poor else "Not shown"
        )
        yield (
            f"**K from 7 to 15 is best, K = 2 much worse (Figure 5b), {task}.** {held}: "
            f"highest mean at K = {best}; against K = 11 "
            + ", ".join(f"{word} at K = {which}" for word, which in by_word.items() if which)
            + "."
        )
    if VARIANCE.exists():
        yield (
            "**The variance of the gradient grows as (K - 1) / K (Figure 5a).** Holds where the output layer has "
            "independent weights. With the orthogonal initialisation that PPO has here and in the authors' code, it "
            "falls as soon as there are more outputs than hidden units."
        )
    if COST.exists():
        (table,) = tables_of(experiments()["table3"], placed(experiments()["table3"], report.load_runs([COST])))
        lines = table.blocks[0].lines
        shown = ", ".join(
            f"K = {k}: {lines[f'discrete, K = {k}']['time']} (the paper: {lines[f'discrete, K = {k}']['paper']})"
            for k in (5, 11, 30, 100)
        )
        yield (
            "**Time grows roughly linearly with K (Table 3).** The number of parameters does, but time hardly does: "
            f"{shown}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "collect", "write"))
    parser.add_argument("--out", default="runs/campaign", help="where the runs are (default: runs/campaign)")
    parser.add_argument("--nice", type=int, default=0, help="how far to give way to others, 0 to 19")
    args = parser.parse_args()
    if args.verb == "run":
        recorded = {name_of(run) for run in report.load_runs([RECORDS])} if RECORDS.exists() else set()
        runs = [run for name, run in planned().items() if name not in recorded]
        total = sum(run.settings.steps for run in runs)
        for _ in follow_sweep(sweep(runs, args.out, nice=args.nice), len(runs), total):
            pass
    elif args.verb == "collect":
        wanted = planned()
        ended = [run for run in report.load_runs([args.out]) if name_of(run) in wanted and run.counted]
        print(report.write_compact(ended, RECORDS).runs, "runs in", RECORDS)
        pictures(draw(experiments()["figure1"], members("figure1", ended), FIGURES))
    else:
        PAGE.write_text("\n\n".join(page(report.load_runs([RECORDS]))) + "\n")


if __name__ == "__main__":
    main()
