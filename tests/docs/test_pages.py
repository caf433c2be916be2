"""The tests of the documentation's pages are able to fail; see `pages`."""

import pytest

from tests.support import pages
from tests.support.pages import run_page

pytest.importorskip("typer", reason="the command line needs typer")

COMMAND = "```console\n$ upconv explain 1,1,4 1,1,3 --threads 1\n{}```\n"


def test_an_output_is_compared_but_for_figures_of_time():
    run_page(COMMAND.format("problem  forward ...\n...predicted  123 us\ndirect roofline...\n"))
    with pytest.raises(AssertionError, match="Expected"):
        run_page(COMMAND.format("problem  backward ...\n"))
    run_page("```pycon\n>>> print('12.5 ms, 3 times as fast')\n7 ms, 1,000.5 times as fast\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_page("```pycon\n>>> print('12.5 MiB')\n7 MiB\n\n```\n")


def test_a_command_that_fails_says_so():
    failing = "$ upconv explain 1,1,4 1,1,3 --strike 2\n"
    with pytest.raises(AssertionError, match=r"ended with 2:\n.*strike"):
        run_page(f"```console\n{failing}```\n")
    run_page(f"```console\n{failing}error: No such option...\n$ echo $?\n2\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        run_page(f"```console\n{failing}$ echo $?\n1\n```\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```text\nupconv doctor\n```\n", "listed in tests/support/pages.py"),
        ("```python\nprint(1)\n```\n", "listed in tests/support/pages.py"),
        ("```console\nupconv doctor\n```\n", "must begin with a prompt"),
        ("A file:\n\n```json\n{}\n```\n", "must name its file"),
        ("```console\n$ python benchmarks/absent.py\n```\n", "no such file"),
        ("Type `upconv explain --strike 2`.\n", "no option --strike"),
        ("Type `upconv explode`.\n", "no command explode"),
        ("    upconv doctor\n", "indented"),
    ],
)
def test_what_is_neither_run_nor_listed_fails(text, problem):
    with pytest.raises(AssertionError, match=problem):
        run_page(text)


def test_files_are_made_and_found():
    run_page("The file `a.toml`:\n\n```toml\nx = 1\n```\n\n```console\n$ cat a.toml\nx = 1\n```\n")


def test_what_needs_an_absent_library_is_skipped(monkeypatch):
    monkeypatch.setattr(pages, "absent", lambda: ["absent_library"])
    with pytest.raises(pytest.skip.Exception, match=r"from line 2 on: .*absent_library"):
        run_page("```pycon\n>>> import absent_library\n>>> 1 / 0\n\n```\n")
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        run_page("```pycon\n>>> import absent_librari\n\n```\n")
    monkeypatch.setattr(pages, "_run", lambda _: print("pip install absent_library") or 2)
    command = "```console\n$ absent\n```\n"
    with pytest.raises(pytest.skip.Exception, match="pip install absent_library"):
        run_page(command)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):  # the rest of the page runs
        run_page(f"{command}```pycon\n>>> 1 / 0\n\n```\n")
    monkeypatch.setattr(pages, "absent", list)
    with pytest.raises(AssertionError, match="ended with 2"):
        run_page(command)
