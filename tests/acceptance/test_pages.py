"""Tutorials are followed command by command, and every difference from the page is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tallymark.local.cache import cache_dir
from tallymark.local.jars import fetch
from tests.support.command import REPOSITORY, tallymark
from tests.support.pages import Reader

pytestmark = pytest.mark.xdist_group("processes")

PAGE = """
```text greeting.txt
hello 127.0.0.1:1
```

Text, and a block that is nothing to run:

```toml
group = "x"
```

```console
$ cat greeting.txt
hello 127.0.0.1:2
$ export HERE=1; false
$ echo $HERE; echo 2026-11-18 10:00:00 UTC 47-0123abcd 1.5 s
1
2025-01-31 09:09:09 UTC   11-aaaaaaaa  22.25 s
```
```console any-numbers
$ echo 12,345.60 records
7 records
$ printf 'first\\nlast'; sleep 60 & kill -9 $!
[1] 4711
first
...
```
"""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache directory with the real downloads, whose sandbox is taken down in the end."""
    cache = tmp_path / "cache"
    cache.mkdir()
    fetch("kafka")
    fetch("spark-kafka")
    for name in ("jars", "kafka", "java"):
        (cache_dir() / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(cache_dir() / name)
    yield cache
    tallymark("sandbox", "down", TALLYMARK_CACHE=str(cache))


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_first_three_tutorials_say_what_happens(cache: Path, tmp_path: Path) -> None:
    directory = tmp_path / "tutorial"
    directory.mkdir()
    with closing(Reader(directory, TALLYMARK_CACHE=str(cache))) as reader:
        for page in ("first-table", "dead-letters", "operating-it"):
            reader.follow(REPOSITORY / "docs" / "tutorial" / f"{page}.md")


@pytest.mark.faults
def test_running_totals_survive_kill_9_as_the_tutorial_says(cache: Path, tmp_path: Path) -> None:
    directory = tmp_path / "tutorial"
    directory.mkdir()
    with closing(Reader(directory, TALLYMARK_CACHE=str(cache))) as reader:
        reader.follow(REPOSITORY / "docs" / "tutorial" / "running-totals.md")


def test_a_page_that_tells_the_truth_is_followed(tmp_path: Path) -> None:
    follow(tmp_path, PAGE)


def test_the_addresses_of_this_machine_replace_those_of_the_page(tmp_path: Path) -> None:
    follow(tmp_path, "```console\n$ echo 127.0.0.1:$((2 + 3))\n127.0.0.1:1\n```\n```text a\n127.0.0.1:1\n```\n")
    assert (tmp_path / "a").read_text() == "127.0.0.1:5\n"


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("hello", "hallo"),
        ("\n1\n", "\n2\n"),
        ("22.25 s", "22.25 m"),
        ("7 records", "7 rows"),
        ("first\n...", "first"),
    ],
)
def test_a_difference_is_found(tmp_path: Path, true: str, false: str) -> None:
    before, after = PAGE.rsplit(true, 1)
    with pytest.raises(AssertionError, match="and not"):
        follow(tmp_path, f"{before}{false}{after}")


def follow(directory: Path, text: str) -> None:
    page = directory / "page.md"
    page.write_text(text)
    with closing(Reader(directory)) as reader:
        reader.follow(page)
