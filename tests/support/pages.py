"""A page of documentation as one test: its Python, commands and files, in order, in one folder.

    pycon          a doctest
    console        lines that begin with "$ " are run; the lines below a command are its output
    json, toml     written to the file that the sentence above the block names in backticks

Output is compared as in doctest: "..." matches any text, and all white space is equal. A number
with a unit of time or "times as fast" equals any other. A command without output below may print
anything. Its exit code must be 0 unless the next line is "$ echo $?". Commands find the files of
`page_files.FILES` that the page names. `SHORTER` adds options that shorten measurements. Commands
and blocks that are not run are listed with the reason in `NOT_RUN` and `ONLY_SHOWN`; any other
block fails.

If a library is absent, commands that need it are left out, and a page ends where its Python needs
it. Such a page counts as skipped, for the reason that the command or the import gave.
"""

import doctest
import io
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.page_files import FILES, make_files
from tests.support.paths import ROOT

OPTIONAL = ("torch", "onnx", "onnxruntime", "openvino", "dask", "zarr", "scipy", "typer")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST

NOT_RUN = {
    r"make [\w-]+": "makes an environment, and runs the tests; continuous integration runs them",
    r"pip install .*": "changes the environment, or needs a network",
    r"upconv bench --device cuda.*": "needs an NVIDIA GPU",
    r"python (benchmarks/(?!table)\w+\.py)( .*)?": "measures for minutes",
}
if platform.machine() not in ("x86_64", "AMD64"):
    NOT_RUN[r"UPCONV_JIT_CPU=haswell .*"] = "needs a processor with AVX2"
"""Pattern of a command -> why it is not run. A file that the pattern captures must exist."""

_SKETCH = "a sketch of a change, with gaps"
ONLY_SHOWN = {
    "--- a/src/upconv/engines/__init__.py": _SKETCH,
    "--- /dev/null": _SKETCH,
    "--- a/src/upconv/onnx/passes/__init__.py": _SKETCH,
    "import torch, upconv": "needs an NVIDIA GPU; tests/engines/cudnn/test_on_gpu.py has it",
    "repos:": "read by pre-commit, which clones a repository",
    "layer kind layers computed by before after faster why": "times of one machine",
    ".LBB0_5:": "machine code of one processor and one version of LLVM, with gaps and remarks",
}
"""First line of a block of another language -> why it is not run."""

SHORTER = {
    "optimize": ("--seconds", "0.02", "--threads", "1"),  # threads of ONNX Runtime spin
    "bench": ("--seconds", "0.01", "--peers", "none"),  # tests/cli/test_bench.py has peers
    "bench --quick": ("--only", "dilated"),
    "bench --threads": ("--only", "dilated"),
}
"""Beginning of an upconv command -> options that are added to it, so that it measures briefly."""

BRIEF_ROOFLINE = {"_SECONDS": 0.01, "_LARGEST_ARRAY": 1 << 20}
"""Settings for `bench`, which measures the machine's roofline each time."""

BLOCK = re.compile(r"^(```+)(\S*)[^\n]*\n(.*?)^\1[^\S\n]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(upconv [^`]+)`(?!`)")
INDENTED = re.compile(r"^ {4,}(?:\$|upconv|python|pip|make|cat|git) .*", re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:json|toml))`[^`]*\Z")
TIME = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)? (?:ns|µs|us|ms|s|min|times as fast)\b")


def reason_not_to_run(command: str) -> str:
    """Return why a command is not run; "" for one that is."""
    for pattern, reason in NOT_RUN.items():
        if match := re.fullmatch(pattern, command):
            files = [name for name in match.groups() if name and name.endswith(".py")]
            assert all((ROOT / name).is_file() for name in files), f"{command}: no such file"
            return reason
    return ""


def examples(text: str) -> Iterator[doctest.Example]:
    """Yield what a page shows, as examples of doctest.

    >>> example, _ = examples("```console\\n$ upconv --version\\nupconv 1.0\\n```")
    >>> example.source, example.want
    ("_shell('upconv --version', True)\\n", 'upconv 1.0\\n')
    """
    shown = [(match.start(), _of_block(match, text)) for match in BLOCK.finditer(text)]
    prose = BLOCK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    assert not (match := INDENTED.search(prose)), f"an indented command is not run: {match[0]}"
    shown += [(match.start(), _of_inline(match, text)) for match in INLINE.finditer(prose)]
    for _, group in sorted(shown, key=lambda pair: pair[0]):
        yield from group


def _of_block(match: re.Match[str], text: str) -> Iterator[doctest.Example]:
    language, content, line = match[2], match[3], text.count("\n", 0, match.start(3))
    if language == "pycon":
        for example in doctest.DocTestParser().get_examples(content):
            example.lineno += line
            yield example
    elif language == "console":
        assert content.startswith("$ "), f"a block of commands must begin with a prompt: {content}"
        for part in COMMAND.finditer(content):
            command = re.sub(r"\s+#.*", "", part[1].replace("\\\n", ""))
            if not reason_not_to_run(command):
                source = f"_shell({command!r}, {bool(part[2])})"
                offset = content.count("\n", 0, part.start())
                yield doctest.Example(source, part[2], lineno=line + offset)
        yield doctest.Example("_shell.expect_success()", "", lineno=line)
    elif language in ("json", "toml"):
        name = NAMED_FILE.search(text[: match.start()].rstrip("\n").rpartition("\n\n")[2])
        assert name, f"the sentence above a {language} block must name its file: {content}"
        yield doctest.Example(f"_ = Path({name[1]!r}).write_text({content!r})", "", lineno=line)
    else:  # Sphinx runs its own directives
        first = " ".join(content.partition("\n")[0].split())
        assert first in ONLY_SHOWN or language.startswith("{"), (
            f"line {line}: a block must be pycon, console, json or toml, which are run, or"
            f" listed in tests/support/pages.py: {first!r}"
        )


def _of_inline(match: re.Match[str], text: str) -> Iterator[doctest.Example]:
    """Run a command in a sentence if it names files that readers have; otherwise look it up."""
    words, line = match[1].split(), text.count("\n", 0, match.start())
    if any(word in FILES for word in words):
        words += ["--force"] if words[1] in ("optimize", "rewrite", "mxnet") else []
        yield doctest.Example(f"_shell({shlex.join(words)!r}, False)", "", lineno=line)
        yield doctest.Example("_shell.expect_success()", "", lineno=line)
    else:
        yield doctest.Example(f"_look_up({words[1:]!r})", "", lineno=line)


def look_up(words: list[str]) -> None:
    """Assert that words name a command of upconv, or a part of one, and its options."""
    from typer.main import get_command

    from upconv.cli.app import app

    command: Any = get_command(app)
    for word in words:
        if word.startswith("-"):
            known = [option for param in command.params for option in param.opts]
            assert word in known, f"{command.name} has no option {word}"
        elif commands := getattr(command, "commands", {}):
            assert word in commands, f"{command.name} has no command {word}"
            command = commands[word]


class Shell:
    """Runs a command line in the current folder, and prints its output as a terminal shows it."""

    def __init__(self) -> None:
        self._status, self._command, self._output = 0, "", ""
        self.skipped: list[str] = []
        """The output of commands that need an absent library."""

    def __call__(self, command: str, shown: bool) -> None:
        """Run a command; `shown`: whether the page shows its output."""
        if command == "echo $?":
            print(self._status)
            self._status = 0
            return
        self.expect_success()
        with redirect_stdout(io.StringIO()) as output:
            self._status, self._command = _run(command), command
        self._output = output.getvalue()
        if self._status and absent() and "pip install" in self._output:
            self._status = 0
            self.skipped.append(self._output.strip())
        elif shown:
            print(self._output, end="")

    def expect_success(self) -> None:
        """Fail if the last command failed and its exit code is not shown."""
        assert not self._status, f"{self._command} ended with {self._status}:\n{self._output}"


def _run(command: str) -> int:
    """Return the exit code. Only commands that need a shell, or others, run in a process."""
    words = shlex.split(command, comments=True)
    if words[0] != "upconv" or "|" in words:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        sys.stdout.write(done.stdout)
        return done.returncode
    with ExitStack() as stack:
        if ">" in words:
            file = stack.enter_context(Path(words.pop()).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(file))
            words.remove(">")
        else:
            stack.enter_context(redirect_stderr(sys.stdout))
        return upconv_command(*words[1:])


def upconv_command(*arguments: str) -> int:
    """Run `upconv arguments` in this process, and return its exit code."""
    from upconv import set_num_threads
    from upconv.__main__ import main

    line = " ".join(arguments)
    added = [option for key in SHORTER if line.startswith(key) for option in SHORTER[key]]
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            warnings.catch_warnings(),
            mock.patch("sys.unraisablehook", sys.unraisablehook),
            mock.patch("sys.argv", ["upconv", *arguments, *added]),
            mock.patch.multiple("upconv.engines.jit.roofline", **BRIEF_ROOFLINE),
        ):
            main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
        set_num_threads(None)  # undo --threads, which applies to a process
    return 0


class Checker(doctest.OutputChecker):
    """Compares output; all times are equal."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(TIME.sub("1 s", want), TIME.sub("1 s", got), optionflags)


class Runner(doctest.DocTestRunner):
    """Skips the rest of a page where a library is absent."""

    def report_unexpected_exception(self, out, test, example, exc_info) -> None:
        error = exc_info[1]
        if isinstance(error, ImportError) and _names_an_absent_library(error):
            line = (test.lineno or 0) + example.lineno + 1
            pytest.skip(f"from line {line} on: {error}")
        super().report_unexpected_exception(out, test, example, exc_info)


def _names_an_absent_library(error: ImportError) -> bool:
    """Return whether the error names an absent module, or a command that installs one."""
    return error.name in absent() or (bool(absent()) and "pip install" in str(error))


def absent() -> list[str]:
    """Return the optional libraries that are not installed."""
    return [name for name in OPTIONAL if not find_spec(name)]


def run_page(text: str, path: str = "page") -> None:
    """Run what a page shows, in a temporary folder that holds the files that it names.

    Raises `AssertionError` with doctest's report of the first failing example.
    """
    shell = Shell()
    names = {"__name__": "__main__", "Path": Path, "_shell": shell, "_look_up": look_up}
    test = doctest.DocTest(list(examples(text)), names, Path(path).name, path, 0, text)
    runner = Runner(Checker(), verbose=False, optionflags=FLAGS)
    report: list[str] = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        make_files(text)
        failed = runner.run(test, out=report.append).failed
    assert not failed, "".join(report)
    if shell.skipped:
        pytest.skip("; ".join(dict.fromkeys(shell.skipped)))


class PageFile(pytest.File):
    """A page, for pytest."""

    def collect(self) -> Iterator[pytest.Item]:
        yield PageItem.from_parent(self, name=self.path.name)


class PageItem(pytest.Item):
    """Runs a page."""

    def runtest(self) -> None:
        run_page(self.path.read_text(encoding="utf-8"), str(self.path))

    def repr_failure(self, excinfo, style=None):
        told = isinstance(excinfo.value, AssertionError)
        return str(excinfo.value) if told else super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, 0, self.name
