"""Counters, timers, and the report made of them."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchport import metrics
from torchport.metrics import TimerSummary, counters, reporting, timers
from torchport.metrics.timers import RING_SIZE, Timer


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of this test's own: a device that is active in the process may count, and report, at any time."""
    monkeypatch.setattr(counters, "_counters", {})
    monkeypatch.setattr(timers, "_timers", {})
    monkeypatch.setattr(reporting, "_sections", [])
    monkeypatch.setattr(reporting, "_figures", [])


class TestCounters:
    def test_an_unknown_counter_is_zero_and_is_not_made_by_asking(self) -> None:
        assert 0 == metrics.counter_value("NeverCounted")
        assert "NeverCounted" not in metrics.counter_names()

    def test_a_counter_is_one_object_that_hot_code_adds_to(self) -> None:
        mark_step = metrics.counter("MarkStep")
        mark_step.value += 1
        metrics.increment("MarkStep", 2)
        assert mark_step is metrics.counter("MarkStep")
        assert 3 == metrics.counter_value("MarkStep")
        assert "Counter('MarkStep', 3)" == repr(mark_step)

    def test_only_counters_that_counted_are_named(self) -> None:
        metrics.counter("Silent")
        metrics.increment("lazy::add")
        metrics.increment("aten::sort")
        assert ["aten::sort", "lazy::add"] == metrics.counter_names()

    def test_reset_keeps_the_object_that_hot_code_holds(self) -> None:
        held = metrics.counter("Execute")
        held.value += 5
        metrics.reset()
        assert [] == metrics.counter_names()
        held.value += 1
        assert 1 == metrics.counter_value("Execute")

    def test_threads_that_make_a_counter_at_once_get_one_object(self) -> None:
        start = threading.Barrier(4)
        made: list[metrics.Counter] = []

        def make() -> None:
            start.wait()
            made.append(metrics.counter("MadeAtOnce"))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert 1 == len(set(map(id, made)))


class TestTimers:
    def test_a_timer_sums_up_what_was_recorded(self) -> None:
        for value_s in (0.5, 0.25, 1.0):
            metrics.record("CompileTime", value_s)
        times = metrics.timer_summary("CompileTime")
        assert (3, 1.75, 0.25, 1.0) == (times.count, times.total_s, times.min_s, times.max_s)
        assert 0.5 == times.percentile_s(50)
        assert 1.75 / 3 == times.mean_s
        assert ["CompileTime"] == metrics.timer_names()

    def test_an_unknown_timer_is_empty(self) -> None:
        assert TimerSummary() == metrics.timer_summary("NeverTimed")
        assert 0.0 == metrics.timer_summary("NeverTimed").percentile_s(99)

    def test_percentiles_are_of_recent_samples_and_totals_of_all(self) -> None:
        timer = Timer("t")
        for _ in range(10):
            timer.record(100.0)
        for _ in range(RING_SIZE):
            timer.record(1.0)
        times = timer.summary()
        assert (RING_SIZE + 10, 1.0, 100.0) == (times.count, times.percentile_s(100), times.max_s)

    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
    def test_a_percentile_is_the_smallest_sample_that_enough_do_not_exceed(
        self, samples: list[float], percent: float
    ) -> None:
        timer = Timer("t")
        for value_s in samples:
            timer.record(value_s)
        found = timer.summary().percentile_s(percent)
        enough = [s for s in samples if 100 * sum(x <= s for x in samples) >= percent * len(samples)]
        # The bound is a product of floats: at an exact multiple either neighbour is right.
        ordered = sorted(samples)
        assert abs(ordered.index(found) - ordered.index(min(enough))) <= ordered.count(found)

    @pytest.mark.parametrize("percent", [-1, 101])
    def test_a_percentile_outside_0_and_100_is_refused(self, percent: float) -> None:
        with pytest.raises(ValueError, match="percent must be within 0 and 100"):
            TimerSummary().percentile_s(percent)

    def test_a_block_is_timed_also_when_it_raises(self) -> None:
        with pytest.raises(KeyError), metrics.timed("Block"):
            raise KeyError
        assert 1 == metrics.timer_summary("Block").count

    def test_no_sample_is_lost_between_threads(self) -> None:
        timer = metrics.timer("Shared")
        threads = [threading.Thread(target=lambda: [timer.record(1.0) for _ in range(2000)]) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert 8000 == timer.summary().count

    def test_reset_keeps_the_object_that_hot_code_holds(self) -> None:
        held = metrics.timer("ExecuteTime")
        held.record(1.0)
        metrics.reset()
        assert [] == metrics.timer_names()
        held.record(2.0)
        assert 2.0 == metrics.timer_summary("ExecuteTime").min_s

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # what is tested is just that
    def test_a_forked_child_can_record_although_a_thread_held_the_lock(self) -> None:
        timer = metrics.timer("Forked")
        with timer._lock:
            child = os.fork()
            if child == 0:
                acquired = timer._lock.acquire(timeout=5)
                os._exit(0 if acquired else 1)
        _, status = os.waitpid(child, 0)
        assert 0 == os.waitstatus_to_exitcode(status)


class TestReport:
    @pytest.fixture
    def section(self) -> None:
        def section() -> str:
            return "Backend: 3 buffers\n"

        assert section is metrics.register_report_section(section)
        metrics.register_report_section(section)

    def test_it_is_empty_when_nothing_happened(self) -> None:
        assert "" == metrics.report()

    def test_it_lists_timers_then_counters_then_extra_lines(self) -> None:
        metrics.increment("UncachedCompile", 2)
        metrics.increment("lazy::add")
        metrics.record("CompileTime", 3723.004005006)
        percentiles = "; ".join(f"{p}%=1h02m03s004ms005.006us" for p in (1, 5, 10, 20, 50, 80, 90, 95, 99))
        assert (
            "Metric: CompileTime\n"
            "  TotalSamples: 1\n"
            "  Accumulator: 1h02m03s004ms005.006us\n"
            "  Mean: 1h02m03s004ms005.006us\n"
            f"  Percentiles: {percentiles}\n"
            "Counter: UncachedCompile\n"
            "  Value: 2\n"
            "Counter: lazy::add\n"
            "  Value: 1\n"
            "as they are\n"
        ) == metrics.report("as they are")

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "0.000us"), (0.0000015, "1.500us"), (0.25, "250ms000.000us"), (61, "1m01s000ms000.000us")],
    )
    def test_a_duration_begins_with_its_largest_unit(self, seconds: float, text: str) -> None:
        metrics.record("T", seconds)
        assert f"  Accumulator: {text}\n" in metrics.report()

    @pytest.mark.usefixtures("section")
    def test_a_registered_section_is_in_it_once_and_survives_a_reset(self) -> None:
        metrics.increment("MarkStep")
        assert "Counter: MarkStep\n  Value: 1\nBackend: 3 buffers\n" == metrics.report()
        metrics.reset()
        assert "Backend: 3 buffers\n" == metrics.report()

    def test_a_section_that_is_taken_out_is_gone(self) -> None:
        def section() -> str:
            return "x"

        metrics.register_report_section(section)
        metrics.unregister_report_section(section)
        metrics.unregister_report_section(section)
        assert "" == metrics.report()

    def test_a_section_that_raises_is_named_with_its_reason_and_spoils_nothing_else(self) -> None:
        def broken() -> str:
            raise ValueError("no such counter on this chip")

        metrics.register_report_section(broken)
        metrics.increment("MarkStep")
        text = metrics.report("end")
        assert "Counter: MarkStep\n  Value: 1\n" in text
        assert "broken: failed with ValueError: no such counter on this chip\nend\n" in text


class TestSnapshot:
    def test_it_has_every_figure_and_is_a_copy(self) -> None:
        metrics.increment("Execute")
        metrics.record("ExecuteTime", 0.5)
        before = metrics.snapshot()
        metrics.increment("Execute")
        assert {
            "Execute": 1,
            "ExecuteTime.count": 1,
            "ExecuteTime.total_s": 0.5,
            "ExecuteTime.min_s": 0.5,
            "ExecuteTime.max_s": 0.5,
            "ExecuteTime.p50_s": 0.5,
        } == before

    def test_it_has_the_registered_figures(self) -> None:
        def figures() -> dict[str, float]:
            return {"acme.buffers": 3}

        metrics.register_figures(figures)
        assert {"acme.buffers": 3} == metrics.snapshot()
        metrics.unregister_figures(figures)
        assert {} == metrics.snapshot()

    def test_figures_that_fail_say_whose_they_are(self) -> None:
        def broken() -> dict[str, float]:
            raise OSError("driver is gone")

        metrics.register_figures(broken)
        with pytest.raises(RuntimeError, match=r"the figures of .*broken failed: driver is gone"):
            metrics.snapshot()


def test_every_public_name_is_exported_and_documented() -> None:
    assert [] == [name for name in metrics.__all__ if not getattr(metrics, name).__doc__]
