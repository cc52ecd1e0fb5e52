"""Check an HTML page in a browser: console, network requests, width."""

import shutil

import pytest

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run")


def check_in_browser(file, widths=(390, 1280)):
    """Assert: no console messages, no network requests, no horizontal overflow, no scripts, images load, ids unique."""
    browser_file = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_file is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_file, args=list(ARGUMENTS))
        for width in widths:
            page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
            messages, requests = [], []
            page.on("console", lambda message, messages=messages: messages.append(message.text))
            page.on("pageerror", lambda error, messages=messages: messages.append(str(error)))
            page.on("dialog", lambda dialog, messages=messages: messages.append(dialog.message))
            page.on("request", lambda request, requests=requests: requests.append(request.url))
            page.goto(file.resolve().as_uri())
            assert messages == []
            assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("[...document.images].every(i => i.alt && i.naturalWidth > 0)")
            assert page.evaluate("document.scripts.length") == 0
            ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
            assert len(ids) == len(set(ids))
        browser.close()
