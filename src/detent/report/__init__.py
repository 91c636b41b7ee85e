"""The results of runs: summaries, comparisons, an HTML page, figures. It reads runs and never trains.

from detent import report

runs = report.load_runs(["runs"])
for row in report.comparison(runs).rows:
    print(row.task, row.label, row.mean, row.sd, row.iqm)
report.write_page(runs, "report.html")
report.draw_figures(runs, "figures")
report.write_compact(runs, "runs.jsonl")
"""

from detent.report.compact import write_compact as write_compact
from detent.report.comparisons import Comparison as Comparison
from detent.report.comparisons import comparison as comparison
from detent.report.comparisons import read_reference as read_reference
from detent.report.figures import draw_figures as draw_figures
from detent.report.loading import load_runs as load_runs
from detent.report.page import write_page as write_page
from detent.report.summaries import RunSummary as RunSummary
