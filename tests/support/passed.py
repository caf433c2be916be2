"""Options of pytest: record which tests passed, and leave out those that passed before.

Continuous integration runs the suite twice on one Python: without the peers and with them. Tests
that passed without peers are not run again, unless the peers affect them (mark `peers`).

Write a path after "=": before pytest knows these options, it takes a file after a space for a test.
"""

from pathlib import Path

import pytest


class Passed:
    """The node ids of all tests that passed; pytest-xdist reports them to its controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed, self.others = set[str](), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # a failed teardown counts as a failed test
            self.others.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text("\n".join(sorted(self.passed - self.others)), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-passed", type=Path, help="file for the names of tests that passed")
    parser.addoption("--leave-out-passed", type=Path, help="such a file: its tests are not run")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--write-passed")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--leave-out-passed")
    if path is None:
        return
    passed = set(path.read_text(encoding="utf-8").split("\n"))
    passed -= {item.nodeid for item in items if item.get_closest_marker("peers")}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]
