"""The page in a real browser against a real server: mouse, keyboard, drag and drop."""

import contextlib
import shutil
import threading

import pytest

import tercet
from tests.browser import ARGUMENTS
from tests.checksums import record_again
from tests.search.small_indexes import get, serving, shared_index


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for name, given in (("first", ("vsepp", 0)), ("second", ("vsepp", 1)), ("regions", ("scan", 0))):
        shutil.copytree(shared_index(*given), folder / name)
    settings = {"data": "scenes:60", "objectives": ("triplet-sh", "nt-xent"), "seeds": 2, "epochs": 2, "processes": 1}
    settings["no_tune"] = True
    tercet.compare(**settings, runs=folder / "runs").save()
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with serving(folder / "first", folder / "second", folder / "regions", "--runs", folder / "runs") as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser():
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no browser on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield opened
        opened.close()


@contextlib.contextmanager
def visiting(browser, address, path="", width=1280, **options):
    """Open a page; check that it logs nothing, requests nothing from other sites, and is accessible."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    logged, requested = [], []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address + path)
    yield page
    assert logged == []
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every((i) => i.hasAttribute('alt'))")
    named = """[...document.querySelectorAll('button, a, input, select')].every((e) => e.ariaLabel || e.labels?.length
        || e.innerText.trim() || e.closest('[hidden], dialog:not([open])'))"""
    assert page.evaluate(named)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    context.close()


def until(page, condition, *arguments):
    """Poll from outside: wait_for_function would evaluate a string in the page, which its security policy forbids."""
    for _ in range(600):
        if page.evaluate(condition, *arguments):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"timed out: {condition}")


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_search_by_text_keyboard_and_mouse(browser, address, width):
    with visiting(browser, address, width=width) as page:
        until(page, "document.activeElement.id === 'q'")  # by itself, once the page is drawn
        page.keyboard.type("a red square")
        page.keyboard.press("Enter")
        page.wait_for_selector("#results li img")
        _, expected = get(address, "/api/search", q="a red square")
        captions = page.locator("#results .hit-caption").all_inner_texts()
        assert captions == [hit["captions"][0] for hit in expected["results"]]
        assert "q=a+red+square" in page.url
        page.locator("#results button").nth(1).focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#item .grid li")
        assert page.locator("#item").get_attribute("open") is not None
        assert "2, similarity" in page.locator("#item .facts").inner_text()
        page.locator("#item .grid button").first.press("Enter")  # a neighbour, by keyboard
        until(page, "document.activeElement.id === 'item-title'")
        page.keyboard.press("Escape")
        assert page.locator("#item").get_attribute("open") is None
        page.fill("#q", "a blue ring")
        page.press("#q", "Enter")
        until(page, "document.getElementById('search-status').textContent.includes('blue ring')")
        page.go_back()
        until(page, "document.getElementById('search-status').textContent.includes('red square')")
        assert page.input_value("#q") == "a red square"
        page.click("nav a[data-tab=compare]")
        page.click("nav a[data-tab=search]")  # restores the previous search
        until(page, "document.getElementById('search-status').textContent.includes('red square')")
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_search_by_a_dropped_image(browser, address):
    with visiting(browser, address) as page:
        until(page, "document.getElementById('server-status').textContent.includes('images')")
        page.evaluate(
            """async (path) => {
                const content = await (await fetch(path)).blob();
                const transfer = new DataTransfer();
                transfer.items.add(new File([content], "mine.jpg", { type: "image/jpeg" }));
                dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
            }""",
            "/api/items/3/image?index=first",
        )
        page.wait_for_selector("#results li img")
        assert "nearest to mine.jpg" in page.locator("#search-status").inner_text()
        _, item = get(address, "/api/items/3", index="first")
        assert page.locator("#results .hit-caption").first.inner_text() == item["captions"][0]


def test_search_by_a_chosen_file(browser, address, tmp_path):
    content = get(address, "/api/items/4/image", index="first")[1]
    (tmp_path / "chosen.jpg").write_bytes(content)
    (tmp_path / "broken.jpg").write_text("no image")
    with visiting(browser, address) as page:
        until(page, "document.getElementById('server-status').textContent.includes('images')")
        page.set_input_files("#file", tmp_path / "chosen.jpg")
        page.wait_for_selector("#results li img")
        assert "nearest to chosen.jpg" in page.locator("#search-status").inner_text()


def test_attention_is_drawn(browser, address):
    with visiting(browser, address, "#search?q=a+red+square&index=regions") as page:
        page.click("#results li button")
        page.wait_for_selector("#item .words button")
        assert page.locator("#item .words button").all_inner_texts() == ["<start>", "a", "red", "square", "<end>"]
        data_url = "(canvas) => canvas.toDataURL()"
        before = page.locator("#item canvas").evaluate(data_url)
        page.get_by_role("button", name="square", exact=True).click()
        assert page.locator("#item canvas").evaluate(data_url) != before
        assert "re-ranked" in page.locator("#item .facts").inner_text()


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_compare_and_jump_to_a_difference(browser, address, width):
    with visiting(browser, address, "#compare", width=width) as page:
        page.wait_for_selector("#compare-indexes input:checked")
        page.fill("#compare-q", "a blue ring")
        page.click("#compare-form button[type=submit]")
        page.wait_for_selector("#columns section:nth-child(2) li")
        assert page.locator("#columns h3").all_inner_texts() == ["first", "second"]
        second = page.locator("#columns section:nth-child(2)")
        assert "\u25b2" in second.inner_text()  # changes of rank
        assert second.locator(":is(.right, .wrong)").count() == 0  # of this query the right image is not known
        page.click("#find-differences")
        page.wait_for_selector("#differences tbody tr")
        query = page.locator("#differences tbody a").first.inner_text()
        page.locator("#differences tbody a").first.click()
        until(page, "(q) => document.getElementById('compare-status').textContent.includes(q)", query)
        hits = page.locator("#columns li")
        for hit in hits.all():  # coloured by whether it is the image of the caption, and by nothing else
            is_right = query in hit.locator(".hit-caption").inner_text()
            assert hit.locator(".right" if is_right else ".wrong").count() == 1 or not is_right
        colours = "(name) => getComputedStyle(document.querySelector(`#columns .${name}`)).color"
        assert hits.locator(".wrong").count() + hits.locator(".right").count() == hits.count()
        if hits.locator(".right").count():
            assert page.evaluate(colours, "right") != page.evaluate(colours, "wrong")


def test_an_image_search_is_in_the_box_and_the_address(browser, address, folder, tmp_path):
    from PIL import Image

    Image.new("RGB", (40, 30), "red").save(tmp_path / "mine.png")
    with visiting(browser, address, "#search?q=a+ring") as page:
        page.wait_for_selector("#results li")
        page.set_input_files("#file", tmp_path / "mine.png")
        until(page, "document.getElementById('search-status').textContent.includes('nearest to mine.png')")
        assert page.evaluate("location.hash").startswith("#search?image=mine.png&index=")
        assert page.input_value("#q") == ""
        assert page.get_attribute("#q", "placeholder") == "images like mine.png"
        page.go_back()
        until(page, "document.getElementById('search-status').textContent.includes('nearest to \"a ring\"')")
        assert page.input_value("#q") == "a ring"
        page.go_forward()  # the file is not kept, and the page says so
        until(page, "document.getElementById('search-status').textContent.includes('Choose mine.png again')")
        assert page.locator("#results li").count() == 0


def test_runs_are_sorted_and_can_be_indexed(browser, address, folder):
    with visiting(browser, address, "#runs", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.wait_for_selector("#runs-table tbody tr")
        for descending in (True, False):
            page.click("#runs-table th button[data-column=rsum]")
            shown = [float(text) for text in page.locator("#runs-table tbody td:nth-child(3)").all_inner_texts()]
            assert shown == sorted(shown, reverse=descending)
            sorted_by = page.locator("#runs-table th[aria-sort]:not([aria-sort=none])")
            assert sorted_by.get_attribute("aria-sort") == ("descending" if descending else "ascending")
        names = page.locator("#runs-table .folder").all_inner_texts()
        assert all((folder / "runs" / name).is_dir() for name in names)
        page.locator("#runs-table tbody tr button").first.click()
        commands = page.locator("#item-content code").inner_text()
        assert f"tercet index runs/{names[0]} --images PHOTOS --out" in commands
        page.click("#item-content button")
        assert page.evaluate("navigator.clipboard.readText()") == commands
        page.keyboard.press("Escape")


@pytest.mark.slow
def test_runs_live(browser, address, folder):
    with visiting(browser, address, "#runs") as page:
        page.wait_for_selector("#comparisons table")
        assert page.locator("#comparisons .verdict").first.inner_text()
        assert page.locator("#runs-table tbody tr").count() == 4
        page.wait_for_selector("#curves path.curve")
        page.select_option("#metric", "t2i_r1")
        page.select_option("#count", "hardest_share")
        until(page, "document.querySelector('#curves svg').getAttribute('aria-label').includes('t2i R@1')")
        settings = {"data": "scenes:60", "objective": "triplet", "epochs": 2, "batch_size": 50, "runs": folder / "runs"}
        trained = threading.Thread(target=tercet.train, kwargs=settings)
        trained.start()  # the page updates by itself
        until(page, "document.querySelectorAll('#runs-table tbody tr').length === 5")
        trained.join()
        (written,) = (folder / "runs").glob("*_triplet_s0_*/metrics.jsonl")
        counted = next(line for line in written.read_text().splitlines() if '"cocos"' in line)
        curve = "document.querySelector('#counts path.curve').getAttribute('d')"
        until(page, f"({curve} || '').length > 0")
        before = page.evaluate(curve)
        machine = written.with_name("machine.json")
        ended = machine.rename(folder / "machine.json")  # the run is unfinished again
        with written.open("a") as more:  # the page shows lines written within an epoch too
            more.write(counted.replace('"step": 0', '"step": 99', 1) + "\n")
        until(page, f"(before) => {curve} !== before", before)
        ended.rename(machine)
        record_again(machine)
        until(page, "document.querySelector('#runs-table tbody tr').innerText.includes('finished')")
        page.locator("#runs-table tbody tr input").first.uncheck()
        until(page, "document.querySelectorAll('#curves path.curve').length === 4")
        page.click("#comparisons a")
        page.wait_for_selector("#figures svg")
        page.go_back()


def test_playground(browser, address):
    with visiting(browser, address, "#playground", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.wait_for_selector("#batch td")
        assert page.locator("#diagrams svg").count() == 4  # pull, push, T, P
        lines = "[...document.querySelectorAll('#diagrams svg .contour')].map((e) => e.getAttribute('d')).join()"
        before, gradient = page.evaluate(lines), page.locator("#batch tbody").inner_text()
        slider = page.locator("#set-tau")
        box = slider.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2)
        page.mouse.down()
        moved = []
        for share in (0.3, 0.45, 0.6, 0.75):
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
            until(page, f"(before) => ({lines}) !== before", before)
            moved.append(page.evaluate(lines))
        page.mouse.up()
        assert len(set(moved)) > 1  # the contour lines move while dragging
        until(page, "(before) => document.querySelector('#batch tbody').innerText !== before", gradient)
        tau = float(slider.input_value())
        until(page, "(tau) => document.getElementById('python').textContent.includes(`tau=${tau}`)", tau)
        page.click("#copy")
        until(page, "document.getElementById('copy-status').textContent === 'copied'")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert eval(copied) == tercet.objective("cir/sig-ms", tau=tau)
        link, contours = page.url, page.evaluate(lines)
    with visiting(browser, address, link.removeprefix(address)) as page:  # the link restores the settings
        page.wait_for_selector("#diagrams svg .contour")
        assert page.evaluate(lines) == contours
        page.goto(f"{address}#playground?objective=cir/sig-ms&tau=500&nothing=1")
        until(page, "document.getElementById('python').textContent.includes('tau=500')")
        assert page.locator("#set-tau + output").inner_text() == "500"
        until(page, "document.getElementById('playground-status').textContent.includes('no setting nothing')")
        page.check("#triplet-weights input[value=con]")
        until(page, "document.getElementById('python').textContent.includes('con/sig-ms')")
        page.select_option("#objective", "nt-xent")
        until(page, "document.querySelectorAll('#diagrams svg').length === 2")
        page.focus("#set-temperature")
        page.keyboard.press("ArrowRight")
        until(page, "document.getElementById('python').textContent.includes('temperature=')")


def test_playground_requests_combine_no_two_objectives(browser, address):
    """Settings of one objective sent with the name of another would get a 422, which the browser logs."""
    with visiting(browser, address, "#playground?objective=con/sig-ms&tau=50") as page:
        page.wait_for_selector("#batch td")
        page.wait_for_load_state("networkidle")
        page.select_option("#objective", "nt-xent")
        until(page, "document.getElementById('python').textContent.includes('nt-xent')")


def test_the_link_opened_last_is_shown(browser, address):
    """Two links are opened before the list of objectives is known, and the responses come in reverse order."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    held = []
    page.route("**/api/objectives", lambda route: held.append(route))
    with page.expect_request("**/api/objectives"):
        page.goto(f"{address}#playground?objective=con/sig-ms&tau=50")
    page.goto(f"{address}#playground?objective=nt-xent&temperature=0.1")
    until(page, "document.querySelector('nav a[aria-current]').href.includes('nt-xent')")
    for route in reversed(held):
        with page.expect_response("**/api/diagram?*"):
            route.continue_()
    page.wait_for_load_state("networkidle")
    until(page, "document.getElementById('python').textContent !== ''")
    assert "nt-xent" in page.inner_text("#python")
    assert page.locator("#objective").input_value() == "nt-xent"
    assert "nt-xent" in page.url
    context.close()


@pytest.mark.slow
def test_the_search_box_works_before_any_script_is_loaded(browser, address):
    """On a CPU six times slower and with scripts delayed, text typed before they load stays and is searched for."""
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 6})
    release = threading.Event()
    delayed = []
    page.route("**/*.js", lambda route: delayed.append(route) if not release.is_set() else route.continue_())
    page.goto(address, wait_until="commit")
    page.wait_for_selector("#q")
    page.locator("#q").press_sequentially("a blue ring")
    assert page.input_value("#q") == "a blue ring"
    assert delayed  # no script has been delivered
    assert page.locator("#results li").count() == 0
    release.set()
    for route in delayed:
        route.continue_()
    until(page, "document.getElementById('server-status').textContent.includes('images')")
    assert page.input_value("#q") == "a blue ring"
    page.press("#q", "Enter")
    page.wait_for_selector("#results li img")
    context.close()


@pytest.mark.slow
def test_a_query_sent_before_the_models_are_loaded_is_answered_later(browser, folder):
    with serving(folder / "regions", "--runs", folder / "runs", wait=False) as (address, _):
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(90_000)
        page.goto(f"{address}?q=a+red+square")  # as submitted by the form without scripts
        page.wait_for_selector("#results li img")
        assert page.url.endswith("#search?q=a+red+square")
        context.close()


@pytest.mark.slow
def test_dark_and_light(browser, address):
    colours = []
    for scheme in ("light", "dark"):
        with visiting(browser, address, "#search?q=a+star", color_scheme=scheme) as page:
            page.wait_for_selector("#results li img")
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
