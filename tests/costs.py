"""What each part of the test suite costs: seconds by area, by file and by test, the dearest first.

    python tests/costs.py [arguments of pytest]          (make test-costs)

An area is a folder of tests, or where doctests are.
Seconds are of the processor, child processes included, and so the same on a busy machine; with
`-n` they are those that tests and their fixtures took, added up over all workers. What pytest needs
to collect tests and to start is not in them.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

_FILES, _TESTS = 30, 25


class Costs:
    """A plugin that adds up what reports say."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self._distributed = False

    def pytest_configure(self, config: pytest.Config) -> None:
        self._distributed = bool(getattr(config.option, "numprocesses", None))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._distributed:
            self.tests[report.nodeid] += report.duration

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        start = sum(os.times()[:4])
        result = yield
        self.tests[item.nodeid] += sum(os.times()[:4]) - start
        return result

    def by_file(self) -> Counter[str]:
        return summed(self.tests, lambda test: test.partition("::")[0])


def summed(costs: Counter[str], name_of) -> Counter[str]:
    total: Counter[str] = Counter()
    for each, seconds in costs.items():
        total[name_of(each)] += seconds
    return total


def area(file: str) -> str:
    """The part of the project that a file of tests is about.

    >>> area("tests/onnx/test_folds.py"), area("src/upconv/ops.py"), area("docs/onnx.md")
    ('onnx', 'doctests of src', 'doctests of docs')
    """
    path = Path(file)
    if path.parts[0] != "tests":
        return f"doctests of {path.parts[0]}"
    return "/".join(path.parts[1:-1])


def table(title: str, costs: Counter[str], most: int | None = None) -> None:
    whole = sum(costs.values()) or 1.0
    print(f"\n{title}")
    for name, seconds in costs.most_common(most):
        print(f"{seconds:9.1f} s {seconds / whole:6.1%}  {name}")


def main() -> int:
    sys.path.remove(str(Path(__file__).parent))  # tests/torch would pass for an absent PyTorch
    costs = Costs()
    status = pytest.main(["-q", *sys.argv[1:]], plugins=[costs])
    files = costs.by_file()
    table("area", summed(files, area))
    table(f"the {_FILES} dearest files", files, _FILES)
    table(f"the {_TESTS} dearest tests", costs.tests, _TESTS)
    print(f"\n{sum(files.values()):.1f} s in all, {len(costs.tests)} tests")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
