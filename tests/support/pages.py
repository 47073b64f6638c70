"""Follows a page of the documentation as a reader would: saves its files, runs its commands, compares their output.

A block whose info string has a second word, as in ``toml shop.toml``, is a file of that name. In a block ``console``,
lines after ``$ `` are commands of one shell, and other lines are their output. A line ``...`` is any number of lines.
Times, runs, their hosts, users, seconds, local addresses and the ends of names such as ``orders_1f9a03`` may differ;
in ``console any-numbers`` all numbers may.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.command import DEADLINE

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
NOTICE = re.compile(r"^(\[\d+\].*|bash: line \d+: .*Killed.*|Killed)\n", re.MULTILINE)
"""What a shell says of background jobs and killed processes, which depends on whether it has a terminal."""
VARIABLE = (
    (ADDRESS, "ADDRESS"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( UTC)?|\d\d [A-Z][a-z]{2} \d\d:\d\d"), "TIME"),
    (re.compile(r"\d+-[0-9a-f]{8}\b( on \S+)?"), "RUN"),
    (re.compile(r"\b[\d.]+ ?s\b"), "SECONDS"),
    (re.compile(r"\b[\w.-]+@[\w.-]+(?= since )"), "USER"),
    (re.compile(r"(?<=[a-z])_[0-9a-f]{6}(?=\W|$)"), "_NAME"),
)
NUMBER = (re.compile(r"\d[\d.,]*"), "NUMBER")
DONE = "the command has ended"


@dataclass(frozen=True)
class Block:
    kind: str
    name: str | None
    text: str


def blocks(page: Path) -> Iterator[Block]:
    return (Block(*match.groups()) for match in BLOCK.finditer(page.read_text()))


def called(block: Block) -> list[str]:
    """The commands of a block ``console``, with continued lines in one."""
    return [match[1] for match in COMMAND.finditer(block.text.replace("\\\n", ""))]


class Reader:
    """Follows pages in one directory and one shell."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self._directory = directory
        self._addresses: dict[str, str] = {}
        own = {name: value for name, value in os.environ.items() if not name.startswith("TALLYMARK_")}
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            env={**own, "PATH": f"{Path(sys.executable).parent}:{own['PATH']}", **environment},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            if block.kind == "console":
                self.type(block)
            elif block.name:
                (self._directory / block.name).write_text(self._here(block.text))

    def type(self, block: Block) -> None:
        """Run the commands of a block, and compare what they print."""
        for match in COMMAND.finditer(block.text):
            self._compare(match[1], match[2], any_numbers=block.name == "any-numbers")

    def run(self, command: str) -> str:
        """Run the command without input, and return all that it prints."""
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{{ {command}\n}} </dev/null; echo; echo {DONE}\n")
        stdin.flush()
        watchdog = threading.Timer(DEADLINE, self._shell.kill)
        watchdog.start()
        printed = ""
        for line in stdout:
            if line == f"{DONE}\n":
                break
            printed += line
        watchdog.cancel()
        assert self._shell.poll() is None, (
            f"$ {command}\ntook longer than {DEADLINE:.0f} s, or ended the shell:\n{printed}"
        )
        return printed.removesuffix("\n")

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()

    def _compare(self, command: str, shown: str, *, any_numbers: bool) -> None:
        printed = self.run(self._here(command))
        self._addresses.update(zip(ADDRESS.findall(shown), ADDRESS.findall(printed), strict=False))
        pattern = re.escape(f"{comparable(shown, any_numbers=any_numbers)}\n").replace("\\.\\.\\.\\\n", "(.*\\n)?")
        actual = f"{comparable(printed, any_numbers=any_numbers)}\n"
        assert re.fullmatch(pattern, actual, re.DOTALL), f"$ {command}\nprints\n{printed}\nand not\n{shown}"

    def _here(self, text: str) -> str:
        """The text with the addresses of this machine in place of those on the page."""
        return ADDRESS.sub(lambda match: self._addresses.get(match[0], match[0]), text)


def comparable(output: str, *, any_numbers: bool) -> str:
    output = NOTICE.sub("", output)
    for pattern, name in (*VARIABLE, *([NUMBER] if any_numbers else [])):
        output = pattern.sub(name, output)
    return "\n".join(" ".join(line.split()) for line in output.strip().splitlines())
