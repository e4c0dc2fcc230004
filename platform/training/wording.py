"""Former place of metric labels, now in `history`."""

from loadmaster.platform.training.history import axis_label as with_unit
from loadmaster.platform.training.history import metric_label as word
from loadmaster.platform.training.history import percent_change as percent
from loadmaster.platform.training.history import unit_suffix as unit

__all__ = ["percent", "unit", "with_unit", "word"]
