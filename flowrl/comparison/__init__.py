"""Comparisons: recipes run over seeds from the same bases, with equal budgets, and what that shows.

`make_plan` checks that recipes may be compared, `compare` runs what is missing in a directory and
writes ``comparison.json``, ``table.md``, ``report.html`` and the figures there.
"""

from flowrl.comparison.compare import Outcome, compare
from flowrl.comparison.findings import Comparison
from flowrl.comparison.place import Place
from flowrl.comparison.plan import Contender, Plan, make_plan

__all__ = ["Comparison", "Contender", "Outcome", "Place", "Plan", "compare", "make_plan"]
