"""The page of examples/in_the_browser.py in a real browser, asked by clicks and by keys."""

import runpy
import shutil
from pathlib import Path

import pytest

from fedrecsk import portable
from tests.browser import CHOICES, Browser

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="needs Chromium: apt-get install chromium"
    ),
]
ROOT = Path(__file__).resolve().parents[1]
# What a page would send, by the part of the policy that refuses it.
SENT = {
    "connect-src": "fetch('data:,x').catch(() => 0)",
    "img-src": "new Image().src = 'data:image/gif,x'",
    "form-action": "document.body.appendChild(document.createElement('form')).submit()",
    "base-uri": "document.head.appendChild(document.createElement('base')).href = 'https://x.org'",
}
BEST = "[...document.querySelectorAll('#best button')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the example writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDRECSK_DATA", raising=False)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("page")))
        patch.setattr("tempfile.tempdir", None)
        return runpy.run_path(str(ROOT / "examples" / "in_the_browser.py"))["folder"]


def test_clicks_lead_to_the_recommendations_of_python_and_to_no_request(folder):
    model = portable.load(folder / "model.fedrecsk")
    assert {path.name for path in folder.iterdir()} == {
        "fedrecsk.js",
        "index.html",
        "model.fedrecsk",
    }
    with Browser() as page:
        page.open((folder / "index.html").as_uri())
        assert page.value(BEST) == model.recommend([], n=6)[0].tolist()
        requests = page.named().count("Network.requestWillBeSent")
        assert requests == 1
        liked = []
        for place in (0, 3, 5, 8, 13):
            liked.append(page.value(f"{CHOICES}[{place}].textContent"))
            page.click(f"{CHOICES}[{place}]")
            assert page.value(BEST) == model.recommend(liked, n=6)[0].tolist()
        reasons = page.value("document.querySelector('#best small').textContent")
        assert reasons.startswith("because you like ")
        assert any(title in reasons for title in liked)
        assert "You like 5 of" in page.value("document.getElementById('status').textContent")
        sent = "document.getElementById('sent').textContent"
        assert page.value(sent) == "Requests since then: 0. What you like stays here."
        # A second click takes the like back.
        page.click(f"{CHOICES}[13]")
        assert page.value(BEST) == model.recommend(liked[:-1], n=6)[0].tolist()
        assert page.named().count("Network.requestWillBeSent") == requests
        # Nothing was refused, and whatever is sent would be.
        assert "Log.entryAdded" not in page.named()
        for part, statement in SENT.items():
            refused = page.value(
                "new Promise((done) => { document.addEventListener('securitypolicyviolation', "
                f"(one) => done(one.effectiveDirective), {{ once: true }}); {statement}; }})"
            )
            assert refused == part
        # The page promises nothing once it has seen a request.
        page.value("performance.getEntriesByType = () => [1]; 0")
        page.click(f"{CHOICES}[13]")
        assert page.value(sent) == "Requests since then: 1."


def test_a_keyboard_and_a_narrow_screen_are_enough(folder):
    model = portable.load(folder / "model.fedrecsk")
    with Browser(width=390, height=844) as page:
        page.open((folder / "index.html").as_uri())
        assert page.value("document.documentElement.scrollWidth") <= 390
        page.value("document.getElementById('search').focus()")
        for key, code in (("Tab", 9), ("Tab", 9), (" ", 32)):
            page.press(key, code)
        pressed = page.value("document.activeElement.textContent")
        assert page.value("document.activeElement.ariaPressed") == "true"
        assert page.value(BEST) == model.recommend([pressed], n=6)[0].tolist()
        # Parts of the page have names for those who do not see it.
        tree = page.send("Accessibility.getFullAXTree")["nodes"]
        parts = {(one["role"]["value"], one["name"]["value"]) for one in tree if "name" in one}
        assert {("region", "Movies"), ("region", "Recommended")} <= parts
        assert {("searchbox", "Search by title"), ("button", pressed)} <= parts


def test_a_page_that_throws_is_noticed_and_the_browser_ends():
    with pytest.raises(AssertionError, match="too late"), Browser() as page:
        page.value(
            "new Promise((done) => { setTimeout(() => { throw Error('too late'); }); "
            "setTimeout(done); })"
        )
    assert page._process.returncode is not None
    assert not Path(page._folder.name).exists()
