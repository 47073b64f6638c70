"""Races are fair, and their reports show what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import computing, latency, totals
from bench.contenders import lineup
from bench.contenders.loops import Clock
from bench.contenders.ours import OurPipeline
from bench.contenders.streaming import ForeachBatch
from bench.contenders.totals import Key, StateStore, Totals, truth
from bench.contenders.workloads import COMPUTED, NESTED, PICKED, Workload
from bench.harness import jdbc, records, tables
from bench.harness.chart import chart
from bench.harness.race import Comparison, Course, Lap, Outcome, Result, race, spread
from bench.harness.report import markdown, rate_rows, ratio_rows, replace_section, short, summary, thousands
from tallymark.core.plan import Limits
from tallymark.errors import BadInput, TallymarkError

COURSE = Course("localhost:1", "bench-orders", 1000, "sqlite:///nowhere.db", "sqlite")


class Runner:
    """Takes the given seconds for each lap, and writes down every call."""

    def __init__(self, name: str, seconds: list[float], diary: list[str]) -> None:
        self.name = name
        self._seconds = iter(seconds)
        self._diary = diary

    def start(self, course: Course) -> None:
        self._diary.append(f"{self.name} starts")

    def lap(self, course: Course) -> Lap:
        self._diary.append(self.name)
        return Lap(course.records, next(self._seconds))

    def stop(self) -> None:
        self._diary.append(f"{self.name} stops")


def outcome(**seconds: list[float]) -> Outcome:
    results = {name: Result(name, [Lap(1000, one) for one in laps]) for name, laps in seconds.items()}
    compared = [Comparison("ours", "peer", 1.5, 3.0), Comparison("ours", "absent", 2.0)]
    return Outcome("a & b", 1000, results, compared)


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    diary: list[str] = []
    runners = [Runner("a", [100.0, 1.0, 2.0], diary), Runner("b", [100.0, 4.0, 4.0], diary)]
    results = race("a race", runners, COURSE, rounds=2).results
    assert [diary[:4], diary[-2:]] == [["a starts", "b starts", "a", "b"], ["b stops", "a stops"]]
    assert sorted(diary[4:6]) == sorted(diary[6:8]) == ["a", "b"]
    assert results["a"].rates == [1000.0, 500.0]
    assert results["a"].ratios(results["b"]) == [4.0, 2.0]


def test_several_rounds_may_warm_up() -> None:
    results = race("a race", [Runner("a", [100.0, 50.0, 2.0], [])], COURSE, rounds=1, warm=2).results
    assert results["a"].rates == [500.0]


def test_rounds_have_orders_of_their_own() -> None:
    diary: list[str] = []
    race("a race", [Runner(name, [1.0] * 4, diary) for name in "abcd"], COURSE, rounds=3)
    rounds = ["".join(diary[at : at + 4]) for at in (4, 8, 12, 16)]
    assert rounds[0] == "abcd"
    assert {"".join(sorted(one)) for one in rounds} == {"abcd"}
    assert len(set(rounds)) > 2


def test_everybody_is_stopped_when_one_fails() -> None:
    diary: list[str] = []
    with pytest.raises(StopIteration):
        race("a race", [Runner("a", [1.0] * 3, diary), Runner("b", [1.0], diary)], COURSE, rounds=2)
    assert diary[-2:] == ["b stops", "a stops"]


def test_a_contender_that_cannot_start_is_left_out_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    class Absent(Runner):
        def start(self, course: Course) -> None:
            raise TallymarkError("it is not installed")

    diary: list[str] = []
    found = race("a race", [Absent("absent", [], diary), Runner("b", [1.0, 2.0], diary)], COURSE, rounds=1)
    assert list(found.results) == ["b"]
    assert diary == ["b starts", "b", "b", "b stops"]
    assert "without absent: it is not installed" in capsys.readouterr().err


def test_two_contenders_of_one_name_are_refused() -> None:
    with pytest.raises(TallymarkError, match="same name"):
        race("a race", [Runner("a", [], []), Runner("a", [], [])], COURSE, rounds=1)


def test_medians_and_ratios_come_from_the_rounds() -> None:
    found = outcome(ours=[1.0, 2.0, 1.0], peer=[4.0, 4.0, 1.0])
    assert spread(found.results["ours"].rates) == (1000.0, 500.0, 1000.0)
    (row,) = ratio_rows(found)
    assert row == ("ours", "peer", "2.00x", "1.00-4.00", "1.5x, aim 3x", "met")


def test_who_can_be_seen_from_the_first_commit_on_alone_is_compared_from_there_on() -> None:
    ours, peer = Result("ours", [Lap(1000, 3.0, 200, 1.0)]), Result("peer", [Lap(1000, 5.0)])
    compared = [Comparison("ours", "peer", 2.0, steady=True)]
    found = Outcome("a", 1000, {"ours": ours, "peer": peer}, compared)
    (row,) = ratio_rows(Outcome.from_json(json.loads(json.dumps(found.as_json()))))
    assert row == ("ours", "peer, both from the first commit on", "2.00x", "2.00-2.00", "2x", "met")


@pytest.mark.parametrize(("ratio", "said"), [(1.4, "missed"), (1.5, "met"), (2.9, "met"), (3.0, "aim met")])
def test_a_verdict_says_what_became_of_a_target(ratio: float, said: str) -> None:
    assert Comparison("ours", "peer", 1.5, 3.0).verdict(ratio) == said
    assert Comparison("ours", "peer").verdict(ratio) == ""


def test_json_holds_all_that_tables_and_charts_are_made_of() -> None:
    found = outcome(ours=[1.0, 2.0], peer=[4.0, 4.5])
    again = Outcome.from_json(json.loads(json.dumps(found.as_json())))
    assert markdown(again) == markdown(found)
    assert chart(again, ["ours"]) == chart(found, ["ours"])


def test_a_page_shows_every_contender_and_comparison() -> None:
    said = markdown(outcome(ours=[1.0], peer=[2.0]))
    assert "| ours | 1.0 | 1.0-1.0 |" in said
    assert "| ours | peer | 2.00x | 2.00-2.00 | 1.5x, aim 3x | met |" in said
    assert "absent" not in said


def test_several_races_are_one_table_with_the_ratios_in_the_row_of_ours() -> None:
    lines = summary([outcome(ours=[1.0], peer=[2.0])]).splitlines()
    assert lines[2:4] == [
        "| a & b | ours | 1.0 | 1.0-1.0 | 2.00x (2.00-2.00) peer, target 1.5x, aim 3x: **met** |",
        "| a & b | peer | 0.5 | 0.5-0.5 |  |",
    ]


def test_the_chart_is_svg_with_a_bar_for_each_contender_the_fastest_first() -> None:
    drawn = ElementTree.fromstring(chart(outcome(peer=[2.0], ours=[1.0]), ["ours"], []))
    space = "{http://www.w3.org/2000/svg}"
    bars = drawn.findall(f"{space}rect")
    assert [bar.get("class") for bar in bars] == ["ours", "bar"]
    assert float(bars[0].get("width", 0)) == 2 * float(bars[1].get("width", 0))
    assert "a & b" in "".join(drawn.itertext())


@pytest.mark.parametrize(("rate", "said"), [(900.0, "0.9"), (43_210.0, "43.2"), (1_690_400.0, "1,690")])
def test_rates_have_the_digits_that_mean_something(rate: float, said: str) -> None:
    assert thousands(rate) == said


def test_a_section_is_replaced_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed -->\nold\n<!-- end of speed -->\nafter\n")
    replace_section(page, "speed", "new\n")
    assert page.read_text() == "before\n<!-- speed -->\nnew\n<!-- end of speed -->\nafter\n"


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed -->\nno end\n")
    with pytest.raises(BadInput, match="end of speed"):
        replace_section(page, "speed", "new")
    assert page.read_text() == "before\n<!-- speed -->\nno end\n"


@pytest.mark.parametrize(("shape", "least", "most"), [("small", 130, 150), ("large", 1000, 1150)])
def test_values_are_the_rows_as_json(shape: records.Shape, least: int, most: int) -> None:
    rows = records.rows(90_000, 90_010, 100_000, shape).to_pylist()
    for value, row in zip(records.values(90_000, 90_010, 100_000, shape), rows, strict=True):
        assert least <= len(value) <= most
        found = json.loads(value)
        assert found.pop("at") == f"{row.pop('at'):%Y-%m-%d %H:%M:%S.%f}"
        assert found == row


@pytest.mark.parametrize("key", ["shop", "customer"])
def test_expected_totals_are_those_of_the_values(key: Key) -> None:
    cents: dict[int, list[int]] = {}
    for value in records.values(0, 5_000, 5_000, "sales"):
        assert 120 <= len(value) <= 150
        found = json.loads(value, parse_float=str)
        cents.setdefault(found[key], []).append(int(found["amount"].replace(".", "")))
    columns = [{at: len(all_) for at, all_ in cents.items()}]
    columns += [{at: sum(all_) for at, all_ in cents.items()}, {at: max(all_) for at, all_ in cents.items()}]
    sums = [sum(each) for one in columns for each in (one.values(), (at * value for at, value in one.items()))]
    assert truth(key, 5_000) == (len(cents), *sums)
    assert len(cents) <= records.SALES_KEYS[key]


def test_nested_values_become_as_many_rows_as_a_lap_expects() -> None:
    found = [json.loads(value) for value in records.values(0, 1000, 1000, "nested")]
    orders = sum(one["status"] != "new" for one in found)
    items = sum(item["quantity"] > 0 for one in found for item in one["items"])
    assert [output.rows(1000) for output in NESTED.outputs] == [orders, items]
    assert sorted(one["id"] for one in found) == list(range(1000))
    assert {len(one["items"]) for one in found} == {1, 2, 3}
    assert found[12]["customer"]["address"] == {"street": "12 Main Street", "city": "Springfield", "zip": "10012"}


def test_nested_values_have_about_400_bytes() -> None:
    sizes = list(map(len, records.values(500_000, 500_300, 1_000_000, "nested")))
    assert 340 <= sum(sizes) / len(sizes) <= 400


@pytest.mark.parametrize(("workload", "expected"), [(PICKED, [1000]), (COMPUTED, [1000]), (NESTED, [666, 1999])])
def test_a_lap_counts_the_rows_of_every_table(
    workload: Workload, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = dict(zip(workload.tables(COURSE), expected, strict=True))
    monkeypatch.setattr(tables, "written", lambda course: there[course.table])
    assert workload.lap(COURSE, "ours", 2.0) == Lap(1000, 2.0)
    last = list(there)[-1]
    there[last] -= 1
    with pytest.raises(TallymarkError, match=rf"ours .* rows in {last} instead of {expected[-1]:,}"):
        workload.lap(COURSE, "ours", 2.0)


def test_every_record_has_an_id_of_its_own() -> None:
    ids = records.rows(0, 10_000, 10_000)["id"].to_pylist()
    assert sorted(ids) == list(range(10_000))
    assert ids != sorted(ids)


def test_a_number_of_records_whose_ids_would_repeat_is_refused() -> None:
    with pytest.raises(BadInput, match="id each"):
        records.fill(None, "orders", records.STEP * 2)  # type: ignore[arg-type]


def test_a_clock_knows_when_all_is_committed() -> None:
    clock = Clock(10)
    clock.committed(6)
    assert not clock.done
    clock.committed(6)
    assert clock.done
    assert clock.total == 12


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_what_is_compared_takes_part(kind: str) -> None:
    """A target for an unknown contender would never be missed."""
    contenders = [
        *lineup.scans(),
        *lineup.appending(kind, 1000, "small", jdbc=kind != "sqlite"),
        *lineup.varieties(kind, 1000),
        *lineup.slow(1000, quick=True),
        *lineup.upserting(1000, "small", 1000, quick=True),
        *lineup.in_millions(),
        *lineup.peers(kind, "append"),
        *lineup.peers(kind, "upsert"),
    ]
    names = {one.name for one in contenders}
    assert len(names) == len(contenders)
    if kind in lineup.TARGETS:
        assert {name for one in lineup.TARGETS[kind] for name in (one.ours, one.peer)} <= names
    assert all(one.least is None for one in lineup.comparisons(kind, targets=False))


@pytest.mark.parametrize("case", computing.CASES, ids=lambda case: case.title)
def test_a_race_of_functions_gives_both_the_same_work_and_ours_default_limits(case: computing.Case) -> None:
    planned = case.race(2_000_000, quick=False)
    ours, peer = planned.contenders
    assert isinstance(ours, OurPipeline)
    assert isinstance(peer, ForeachBatch)
    assert (ours.workload, ours.records) == (peer.workload, peer.records) == (case.workload, case.batch)
    assert peer.tuned
    assert ours.memory == Limits().memory
    assert list(planned.comparisons) == [Comparison(ours.name, peer.name, case.least, case.aim)]
    assert all(one.least is None for one in case.race(2_000_000, quick=True).comparisons)


def test_a_race_of_totals_gives_all_the_same_work_and_ours_default_limits() -> None:
    ours, by_record, *peers = totals.contenders("shop", Limits.records)
    for each, by in ((ours, False), (by_record, True)):
        assert isinstance(each, OurPipeline)
        assert (each.records, each.memory) == (Limits.records, Limits.memory)
        assert each.workload == Totals(key="shop", by_record=by)
    for peer in peers:
        assert isinstance(peer, StateStore)
        assert peer.workload == Totals(key="shop")
    compared = totals.comparisons(quick=False)
    assert {one.peer for one in compared} == {peer.name for peer in peers}
    assert {(one.ours, one.least) for one in compared} == {(ours.name, 2.0)}
    assert all(one.least is None for one in totals.comparisons(quick=True))


def test_latencies_that_are_compared_are_measured() -> None:
    compared = {name for ours, peer, _ in latency.TARGETS for name in (ours, peer)} | {
        name for name, _ in latency.TAILS
    }
    assert compared <= set(latency.CONTENDERS)


def test_the_tail_of_a_latency_is_judged_by_its_own_median() -> None:
    (name, most), *_ = latency.TAILS
    calm, long = [10.0] * 100, [10.0] * 80 + [10.1 * most] * 20
    assert [line.endswith(": met.") for line in latency.ratios(latency.Times({name: [calm]}))] == [True]
    assert [line.endswith(": missed.") for line in latency.ratios(latency.Times({name: [long]}))] == [True]


@pytest.mark.parametrize(("size", "said"), [(1_000_000, "1M"), (250_000, "250k"), (1_250, "1,250")])
def test_sizes_of_batches_are_short(size: int, said: str) -> None:
    assert short(size) == said


def test_spark_gets_the_password_as_an_option_and_only_the_tuned_one_rewrites() -> None:
    course = Course("localhost:1", "t", 1, "postgresql://shop:se%40cret@db:5433/shop", "postgresql", "bench_orders")
    plain, tuned = jdbc.spark_options(course, tuned=False), jdbc.spark_options(course, tuned=True)
    assert plain["url"].startswith("jdbc:postgresql://db:5433/shop")
    assert plain["password"] == "se@cret"
    assert "se@cret" not in plain["url"]
    assert "reWriteBatchedInserts" not in plain["url"]
    assert "reWriteBatchedInserts=true" in tuned["url"]
    assert tuned["batchsize"] == "10000"


@pytest.mark.parametrize(
    ("url", "kind", "has_one"),
    [
        ("postgresql://db/shop", "postgresql", True),
        ("postgresql://db/shop?tls=verify", "postgresql", False),
        ("sqlite:///shop.db", "sqlite", False),
    ],
)
def test_spark_writes_where_it_gets_in(url: str, kind: str, has_one: bool) -> None:
    assert jdbc.reaches(Course("localhost:1", "t", 1, url, kind)) is has_one


def test_rows_of_rates_are_in_the_order_of_the_race() -> None:
    assert [row[0] for row in rate_rows(outcome(peer=[2.0], ours=[1.0]))] == ["peer", "ours"]
