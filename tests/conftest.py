"""One set of real servers for the whole run; every test has its own topic, group and database.

The servers start in the controlling process, so that parallel workers share them, unless TALLYMARK_TEST_SERVERS has the
addresses of servers that run already. Tests that need Spark are kept on one worker (``--dist loadgroup``), so that
there is one session.
"""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tallymark.errors import SandboxError
from tallymark.local.sandbox import Sandbox
from tests.support import databases
from tests.support.kafka import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESSES = "TALLYMARK_TEST_SERVERS"
"""Environment variable: JSON with the addresses of the servers ``kafka``, ``postgresql``, ``mariadb`` and ``redis``.

It may have ``mysql``, too.
"""
LONG = {
    "test_a_run_killed_at_any_step_loses_and_repeats_nothing": "planned|read|staged|done|mariadb|redis-(written|moved)",
    "test_a_kill_at_any_other_step_costs_nothing_or_the_same": "planned|read|staged|done",
    "test_a_second_ctrl_c_leaves_at_once_and_nothing_is_half_done": "",
    "test_ctrl_c_while_spark_starts_is_one_line_and_leaves_no_java": "",
    "test_what_the_readme_shows_runs_for_a_new_user": "",
    "test_whoever_looks_at_any_time_finds_rows_and_positions_in_agreement": "",
    "test_poison_of_five_kinds_becomes_dead_letters_and_the_rest_is_applied": "mariadb|sqlite",
    "test_a_staged_row_that_is_refused_is_found_in_smaller_batches": "",
    "test_partitions_that_are_added_to_a_running_group_are_read_from_their_start": "mariadb|postgresql",
    "test_every_committed_record_is_applied_once_or_is_dead": "mariadb|sqlite",
    "test_a_killed_broker_comes_back_with_its_address_identity_and_records": "",
    "test_a_batch_with_too_many_dead_moves_nothing": "",
    "test_up_adds_what_is_missing_and_down_ends_all_but_kept_data": "",
    "test_a_group_is_paused_with_a_reason_and_resumed": "redis|sqlite",
    "test_poison_on_redis": "",
    "test_an_older_version_never_overwrites_a_newer_one": "(mariadb|redis|sqlite)-several",
    "test_tombstones_and_predicates_delete": "(mariadb|redis|sqlite)-several",
    "test_every_way_in_is_one_for_services_and_for_spark": "256|plain|any-name",
    "test_an_example_runs_and_shows_its_point": "m0[1245679]|m1[0123]",
    "test_a_cluster_goes_on_without_a_node_and_takes_it_back": "",
    "test_a_column_may_have_any_name": "executors|mariadb",
    "test_executors_stage_what_one_transaction_promotes": "mariadb",
    "test_ctrl_c_leaves_cleanly_and_does_not_wait_for_a_read_that_hangs": "",
    "test_a_batch_that_is_too_large_for_the_memory_is_read_in_smaller_ones": "",
    "test_local_files_are_loaded_and_rows_kept_over_a_stop": "mysql",
    "test_a_killed_keeper_takes_its_servers_along": "",
    "test_an_interrupted_up_leaves_nothing": "",
    "test_help_shows_an_example": "down|st",
    "test_a_service_that_ended_or_was_stopped_comes_back_with_its_data_beside_the_others": "",
    "test_a_batch_that_was_read_ahead_is_dropped_when_the_commit_before_it_fails": "mariadb",
    "test_the_later_run_goes_on_and_the_earlier_one_is_told": "mariadb",
    "test_a_connection_that_breaks_before_the_commit_is_replaced": "mariadb-reply|postgresql-request",
    "test_asking_for_the_outcome_may_break_too": "mariadb",
    "test_a_secured_kafka_tells_how_to_get_in_and_no_secret": "",
    "test_what_a_service_has_skipped_is_filled_in_later": "",
    "test_a_row_wise_function_keeps_the_record_of_each_row": "window|distinct|explode|renamed",
    "test_an_upsert_keeps_the_newest_within_a_batch_across_batches_and_partitions": "mariadb",
    "test_records_that_were_deleted_unread_are_written_down_if_that_is_wanted": "mariadb",
    "test_all_tables_of_a_batch_and_its_positions_appear_at_one_moment": "mariadb",
    "test_more_dead_records_than_the_window_allows_pause_the_group": "mariadb",
    "test_a_batch_with_more_dead_records_than_its_budget_moves_nothing": "mariadb",
    "test_a_run_that_is_paused_waits_and_goes_on_when_it_is_resumed": "mariadb",
    "test_servers_and_data_go_with_a_killed_parent": "",
    "test_kafka_keeps_the_offsets_of_a_group": "",
    "test_every_offset_is_explained_and_what_was_changed_by_hand_is_found": "",
    "test_a_pipeline_that_runs_meanwhile_shows_no_difference": "",
    "test_a_deep_audit_lists_what_is_not_in_the_tables": "",
    "test_every_sandbox_is_another_cluster_and_takes_settings": "",
    "test_letters_are_applied_once_and_what_dies_again_says_why": "mariadb|sqlite",
    "test_an_answer_that_was_lost_applies_no_letter_twice": "mariadb|postgresql",
    "test_killed_at_any_step_no_letter_is_applied_twice_or_lost": "mariadb|sqlite|moved|redis-written",
    "test_two_replays_share_the_letters_while_the_group_goes_on": "mariadb|sqlite",
    "test_letters_are_listed_shown_and_given_up": "redis",
    "test_letters_that_others_settle_meanwhile_are_left_out": "mariadb|postgresql|redis-discarded",
    "test_no_password_is_shown_anywhere": "",
    "test_what_init_writes_is_checked_and_runs_as_it_is": "",
    "test_a_query_over_kafka_that_is_killed_beside_its_commit_writes_every_record_once": "",
    "test_a_race_that_is_ended_leaves_nothing_behind": "",
    "test_a_log_that_was_cut_by_an_unclean_election_and_refilled_is_refused_or_recorded": "",
    "test_an_election_that_loses_nothing_is_no_truncation_also_if_only_markers_follow": "",
    "test_every_road_gives_the_same": "driver-(renames|explodes|nested)|direct-(fails|merges|explodes|nested|renames)",
    "test_a_run_that_dies_at_every_batch_still_gets_to_the_end": "mariadb|redis|sqlite",
    "test_at_least_once_repeats_the_rows_of_the_batch_that_was_halfway_and_loses_none": "sqlite|mariadb",
    "test_at_most_once_loses_the_rows_of_the_batch_that_was_halfway_and_repeats_none": "sqlite|mariadb",
    "test_a_row_of_several_records_has_no_single_one": "exceptAll",
    "test_after_a_day_of_everything_each_record_is_accounted_for": "",
    "test_a_race_is_told_as_json_and_leaves_nothing_behind": "",
    "test_where_java_ends_the_run_ends_with_a_sentence_and_the_next_one_goes_on": "",
    "test_services_and_loops_go_on_behind_a_broker_that_pauses_and_restarts": "",
    "test_a_commit_that_is_never_answered_is_settled_like_any_other": "mariadb-reply|postgresql-reply|redis-request",
    "test_a_consumer_that_waits_for_a_silent_store_can_be_stopped": "mariadb|redis",
    "test_a_member_whose_store_is_silent_for_good_leaves_its_group": "mariadb",
    "test_executors_stage_in_one_pass_what_only_picks_columns": "",
    "test_a_run_that_is_to_catch_up_ends_at_the_end_of_a_log_that_was_cut_meanwhile": "",
    "test_a_service_and_a_producer_go_on_without_a_broker": "",
    "test_what_kafka_has_deleted_and_what_a_reset_repeats_is_explained": "",
    "test_a_string_may_be_as_long_as_a_value": "",
    "test_of_two_that_commit_the_same_span_one_wins": "mariadb",
    "test_of_two_that_claim_at_once_the_last_one_may_commit": "mariadb",
    "test_who_takes_over_in_the_middle_of_a_commit_goes_on_where_it_ended": "mariadb",
}
"""Tests and cases that are slow and similar to others: ``make faults`` runs them."""
# Fixed examples make failures reproducible. CONTRIBUTING explains how to try others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")
_box: Sandbox | None = None


def pytest_configure(config: pytest.Config) -> None:
    # Background processes of a shell without job control ignore Ctrl-C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (
        hasattr(config, "workerinput")
        or config.option.collectonly
        or _only_unit_tests(config)
        or ADDRESSES in os.environ
    ):
        return
    global _box
    _box = Sandbox()
    with ThreadPoolExecutor() as pool:
        kafka, postgresql, mariadb = pool.submit(_box.kafka), pool.submit(_box.postgresql), pool.submit(_box.mariadb)
        redis = pool.submit(_box.valkey)
        addresses = {
            "kafka": kafka.result().brokers,
            "postgresql": postgresql.result().url,
            "mariadb": mariadb.result().url,
            "redis": redis.result().url,
        }
    os.environ[ADDRESSES] = json.dumps(addresses)


def pytest_unconfigure() -> None:
    if _box is not None:
        _box.close()


def pytest_itemcollected(item: pytest.Item) -> None:
    # xdist reads the groups before any later hook could set them.
    name, _, case = item.name.partition("[")
    if name in LONG and re.search(LONG[name], case):
        item.add_marker(pytest.mark.faults)
    if "mysql" in getattr(item, "fixturenames", ()) or databases.MYSQL in _parameters(item):
        item.add_marker(pytest.mark.xdist_group("mysql"))
    if "spark" in getattr(item, "fixturenames", ()):
        # Two Spark sessions share the tests, one in each of two workers.
        name = "spark" if item.path.stem.startswith(("test_spark", "test_secured")) else "spark too"
        item.add_marker(pytest.mark.xdist_group(name))


def _parameters(item: pytest.Item) -> list[Any]:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def _only_unit_tests(config: pytest.Config) -> bool:
    return bool(config.args) and all("tests/unit" in argument for argument in config.args)


@pytest.fixture(scope="session")
def servers() -> dict[str, str]:
    addresses: dict[str, str] = json.loads(os.environ[ADDRESSES])
    return addresses


@pytest.fixture(scope="session")
def brokers(servers: dict[str, str]) -> str:
    return servers["kafka"]


@pytest.fixture(scope="session")
def topics(brokers: str) -> Topics:
    """Creates topics and writes to them."""
    return Topics(brokers)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def database(servers: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """``database("postgresql")``: the URL of a new, empty database of that kind."""
    made: list[str] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'store.db'}"
        made.append(databases.create(servers[kind]))
        return made[-1]

    yield make
    for url in made:
        databases.drop(url)


@pytest.fixture(scope="session")
def mysql(servers: dict[str, str]) -> Iterator[str]:
    """The address of a real MySQL. If there is none, its tests are skipped with the reason."""
    if databases.MYSQL in servers:
        yield servers[databases.MYSQL]
        return
    with Sandbox() as box:
        try:
            server = box.mysql()
        except SandboxError as error:
            pytest.skip(f"no MySQL on this machine: {error}")
        yield server.url


@pytest.fixture
def redis_url(servers: dict[str, str]) -> str:
    """A Redis store with its own key prefix on the shared server."""
    return f"{servers['redis']}?tag={uuid.uuid4().hex[:12]}"


@pytest.fixture(params=databases.KINDS)
def store_url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    """A new database of each kind in turn."""
    kind: Any = request.param
    return database(kind)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tallymark.spark.session import session

    running = session({"spark.master": "local[2]"})
    yield running
    running.stop()
