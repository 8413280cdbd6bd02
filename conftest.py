"""What both test suites share: a real browser, the option --long, and quiet about the network.

A test marked `long` runs with --long only. The last lines of a run say how many were left out.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

# nothing here may reach for the network behind our back
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Processes that run tests side by side share the processors: each, and each of its children,
# computes with its share of threads. This is settled here, before anything has loaded NumPy.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
if WORKERS > 1:
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", str(threads))

LEFT_OUT = "long: runs with --long"
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
            "msedge"]


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes long, and runs with --long only")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT))


def pytest_terminal_summary(terminalreporter):
    """Nothing is left out silently."""
    skipped = terminalreporter.getreports("skipped")
    count = sum(report.longrepr[2].endswith(LEFT_OUT) for report in skipped)
    if count:
        terminalreporter.write_line(f"long: {count} left out; add --long")


# Playwright's event loop must not outlive the tests that use it
@pytest.fixture(scope="module")
def browser():
    """Chromium or Chrome as installed on this system, headless.

    Without it the tests that need it are skipped, except where `CI` is set: there they fail.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("no Chromium on the path, or no Playwright for Python")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                  "--disable-background-networking", "--disable-component-update",
                  "--disable-sync"])
        yield chromium
        chromium.close()


# axe-core's rules of WCAG 2.2 at the levels A and AA, and one of its good practices
RULES = """async () => (await axe.run(document, {runOnly: {type: "rule", values: axe.getRules(
  ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]).map((rule) => rule.ruleId).concat(
  ["region"])}})).violations.flatMap((rule) => rule.nodes.map(
  (node) => `${rule.id}: ${node.target} ${node.html.slice(0, 160)}`))"""


@pytest.fixture(scope="session")
def barriers():
    """A function that tells of a page in a browser what axe-core finds wrong: lines of text."""
    sys.path.append(str(Path(__file__).with_name("solutions") / "tests"))
    from published import axe_script
    script = axe_script()

    def found(page):
        if not page.evaluate("'axe' in window"):
            page.evaluate(script)
        return page.evaluate(RULES)
    return found
