"""What both test suites share: a real browser, and quiet about the network."""

import importlib.util
import os
import shutil

import pytest

# nothing here may reach for the network behind our back
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BROWSERS = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
]


# Playwright's event loop must not outlive the tests that use it
@pytest.fixture(scope="module")
def browser():
    """Chromium or Chrome as installed on this system, headless.

    Without it the tests that need it are skipped, except where `CI` is set: there they fail.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium on the path, or no "
                                                               "Playwright for Python")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield chromium
        chromium.close()
