"""Preflight: what can be known to be wrong before any hour is spent. Also what ``flowrl check`` shows."""

from flowrl.preflight.checks import check, preflight
from flowrl.preflight.findings import Checked, Dimension, Finding

__all__ = ["Checked", "Dimension", "Finding", "check", "preflight"]
