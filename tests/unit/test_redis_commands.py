"""The collected commands of a block are sent so that none can fail after the script's first write."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.errors import BadInput, DataRefused
from tallymark.stores.redis.transaction import HOLDS, resolved

State = dict[str, Any]
numbers = st.integers(-5, 5) | st.just(10**15 - 1)
values = numbers | st.just("text")
fields = st.sampled_from("fg")
keys = st.sampled_from("ab")
deletion = st.tuples(st.just("DEL"), keys)
of_strings = st.one_of(deletion, st.tuples(st.just("SET"), keys, values), st.tuples(st.just("INCRBY"), keys, numbers))
of_hashes = st.one_of(
    deletion,
    st.tuples(st.just("HSET"), keys, fields, values),
    st.tuples(st.just("HDEL"), keys, fields),
    st.tuples(st.just("HINCRBY"), keys, fields, numbers),
)
# Most examples use one type: mixed types are refused early.
blocks = st.one_of(*(st.lists(some, max_size=6) for some in (of_strings, of_hashes, of_strings | of_hashes)))
states = st.dictionaries(keys, values) | st.dictionaries(keys, st.dictionaries(fields, values, min_size=1))


def holds(state: State, key: str) -> str:
    kind = {int: "string", str: "string", dict: "hash", type(None): "none"}
    return kind[type(state.get(key))]


def added(old: Any, n: int) -> int:
    assert isinstance(old, int), "a command failed in the middle"
    assert abs(old + n) < 2**63
    return old + n


def execute(state: State, command: str, key: str, *rest: Any) -> None:
    """A model of Redis, with its failures."""
    assert command in ("DEL", "SET") or holds(state, key) in ("none", HOLDS[command]), "a command failed in the middle"
    if command == "SET":
        state[key] = rest[0]
    elif command == "INCRBY":
        state[key] = added(state.get(key, 0), rest[0])
    elif command == "HSET":
        state[key] = state.get(key, {}) | {rest[0]: rest[1]}
    elif command == "HINCRBY":
        state[key] = state.get(key, {}) | {rest[0]: added(state.get(key, {}).get(rest[0], 0), rest[1])}
    elif command == "DEL" or list(state.get(key, ())) == [rest[0]]:
        state.pop(key, None)
    elif key in state:
        state[key] = {field: value for field, value in state[key].items() if field != rest[0]}


def passes(state: State, command: str, key: str, *rest: Any) -> bool:
    """The checks of the script before it writes."""
    if command != "DEL" and holds(state, key) not in ("none", HOLDS[command]):
        return False
    if command == "INCRBY":
        return isinstance(state.get(key, 0), int)
    return command != "HINCRBY" or isinstance(state.get(key, {}).get(rest[0], 0), int)


@settings(max_examples=250)
@given(state=states, wanted=blocks)
def test_what_passes_the_check_never_fails_and_does_what_was_asked_for(
    state: State, wanted: list[tuple[Any, ...]]
) -> None:
    try:
        sent = resolved(wanted)
    except (BadInput, DataRefused):
        return
    if not all(passes(state, *command) for command in sent):
        return
    found, expected = dict(state), dict(state)
    for command in sent:
        execute(found, *command)
    for command in wanted:
        execute(expected, *command)
    assert found == expected
