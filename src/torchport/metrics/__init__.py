"""What the lazy device has done: counters, times, and a report of them.

::

    torchport.metrics.report()                           # text, with the active backend's own lines
    torchport.metrics.counter_value("UncachedCompile")   # 0 when nothing was counted
    torchport.metrics.snapshot()                         # {name: figure}
    torchport.metrics.reset()

Names that are counted: ``CreateLazyTensor``, ``DestroyLazyTensor``, ``MarkStep``, ``UncachedCompile``,
``CachedCompile``, ``Execute``; ``lazy::<op>`` for an operator that was traced, and ``aten::<op>`` for one that ran
eagerly.
"""

from torchport.metrics.counters import Counter, counter, counter_names, counter_value, increment
from torchport.metrics.reporting import (
    register_figures,
    register_report_section,
    report,
    reset,
    snapshot,
    unregister_figures,
    unregister_report_section,
)
from torchport.metrics.timers import Timer, TimerSummary, record, timed, timer, timer_names, timer_summary

__all__ = [
    "Counter",
    "Timer",
    "TimerSummary",
    "counter",
    "counter_names",
    "counter_value",
    "increment",
    "record",
    "register_figures",
    "register_report_section",
    "report",
    "reset",
    "snapshot",
    "timed",
    "timer",
    "timer_names",
    "timer_summary",
    "unregister_figures",
    "unregister_report_section",
]
