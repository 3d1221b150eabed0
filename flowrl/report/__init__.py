"""Reports: what a run leaves for people to look at.

`write_report` makes a run's ``report.html``, `write_summary` a page over several seeds; `record` films
an evaluated episode.
"""

from flowrl.report.comparison import Control, gain_sentence, mcnemar_exact
from flowrl.report.filmstrip import Filmstrip, choose_start, record
from flowrl.report.page import write_report
from flowrl.report.summary import write_summary

__all__ = [
    "Control",
    "Filmstrip",
    "choose_start",
    "gain_sentence",
    "mcnemar_exact",
    "record",
    "write_report",
    "write_summary",
]
