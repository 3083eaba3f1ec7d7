"""What a browser reports of a page fails the visit."""

import pytest
from eventually import eventually
from visits import Visiting

pytestmark = pytest.mark.long

_PAGE = "http://page.test"
_POLICY = {"Content-Security-Policy": "default-src 'self'"}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>console.error('of the page')</script>", "error: of the page"),
        ("<script>missing()</script>", "exception: missing is not defined"),
        ("<img src='http://other.test/picture'>", "a request for http://other.test/picture"),
        ("<script nonce='none'>1</script>", "Content Security Policy"),
        ("<p style='color: red'>", "Content Security Policy"),
    ],
)
def test_a_visit_fails_with_what_the_browser_reports(
    visiting: Visiting, body: str, complaint: str
) -> None:
    headers = _POLICY if "Policy" in complaint else {}
    with pytest.raises(AssertionError, match=complaint), visiting(_PAGE) as visit:
        visit.tab.route(
            "**/*",
            lambda route: route.fulfill(body=body, content_type="text/html", headers=headers),
        )
        visit.open()


def test_a_visit_of_a_quiet_page_says_what_the_page_shows(visiting: Visiting) -> None:
    with visiting(_PAGE, scheme="dark") as visit:
        visit.tab.route(
            "**/*", lambda route: route.fulfill(body="<h1>Fleet</h1>", content_type="text/html")
        )
        visit.open("#/fleet").sees("Fleet", "h1")
        assert visit.read("matchMedia('(prefers-color-scheme: dark)').matches")
        with pytest.raises(AssertionError, match="none of 'away'"):
            visit.excuse("away")


def test_a_visit_measures_what_a_user_would_notice(visiting: Visiting) -> None:
    body = """<!doctype html><title>Fleet</title><div id="late"></div><p>below</p><input>
        <script>setTimeout(() => { late.style.height = "300px";
          const end = performance.now() + 120; while (performance.now() < end); }, 50)</script>"""
    with visiting(_PAGE) as visit:
        visit.tab.route("**/*", lambda route: route.fulfill(body=body, content_type="text/html"))
        visit.open()
        eventually(visit.shifts)
        assert max(visit.long_tasks()) > 100
        assert visit.first_paint() > 0
        assert any("label" in text for text in visit.barriers())
