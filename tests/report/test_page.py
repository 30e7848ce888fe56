"""The page and its pictures, as files and in a real browser."""

import re
import struct
from html.parser import HTMLParser

import pytest

from sophon.plan.resources import Resources
from sophon.report import draw, svg
from sophon.report.chart import Bar, Bars
from sophon.report.page import page
from sophon.report.paper import paper_facts
from sophon.report.plan import plan_facts
from sophon.report.profile import profile_facts
from sophon.report.write import write_report
from tests.report.conftest import RESOURCES
from tests.support.browser import browser, find_browser
from tests.support.instances import profile_of
from tests.support.results import full_result, minimal_result

NASTY = """<script>alert(1)</script><img src=x onerror="alert(1)"> $\\frac{1}{2}$ & "quotes" 'too' 照片"""


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [
            value for name, value in attrs if name in ("src", "href", "srcset", "action", "style", "xlink:href")
        ]


def _read(text):
    reader = _Reader()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def text():
    return page(paper_facts(full_result(NASTY)))


def test_the_same_facts_give_the_same_bytes(plan, tmp_path):
    pages = [write_report(plan_facts(plan), tmp_path / name) for name in ("one", "two")]
    files = [sorted(path.parent.iterdir()) for path in pages]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for one, two in zip(*files, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_what_strangers_wrote_is_never_markup(text):
    reader = _read(text)
    assert not [tag for tag, _ in reader.tags if tag in ("script", "img", "iframe", "object", "embed")]
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize(
    ("cores", "profile"),
    [
        (0, profile_of([[0.0]], [[0.0]], [[0.0]])),  # nothing at all
        (1, profile_of([[9.0, 9.0]] * 3, [[0.0, 1.0]] * 3, [[0.0, 0.0]] * 3)),  # all alike
        (64, profile_of([[9e9, 1.0]], [[0.0, 0.0]], [[1e-9, 1e9]])),  # eighteen powers of ten
    ],
)
@pytest.mark.matrix(every=3)
def test_profiles_at_the_edge_can_be_drawn(cores, profile):
    text = page(profile_facts(profile, Resources(1.0, cores, 1)))
    assert not re.search(r"\bnan\b", text)
    assert text.count("<figure") == text.count("</figure>") >= 10


def test_names_in_figures_are_text_too():
    chart = Bars(key="x", title=NASTY, caption="", unit="count", bars=(Bar("<b>$x^2$</b>", 1.0, "first"),))
    drawn = svg.inline(draw.svg(chart, draw.WIDE), "wide")
    assert "&lt;b&gt;$x^2$&lt;/b&gt;" in drawn
    assert draw.png(chart).startswith(b"\x89PNG")


def test_nothing_is_loaded_from_anywhere(text):
    links = _read(text).links
    assert all(not re.search(r"https?:|//", link) for link in links)
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "@import" not in text
    assert "default-src &#x27;none&#x27;" in text


def test_every_id_is_there_once_and_every_reference_leads_to_one(text):
    ids = [attrs["id"] for _, attrs in _read(text).tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    wanted = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert wanted <= set(ids)


def test_every_figure_has_words_and_a_table(text):
    facts = paper_facts(full_result())
    reader = _read(text)
    pictures = [attrs for _, attrs in reader.tags if attrs.get("role") == "img"]
    assert len(pictures) == len(facts.charts)
    assert all(attrs["aria-label"] for attrs in pictures)
    assert all(chart.caption.endswith(".") for chart in facts.charts)
    assert text.count("<table>") == len(facts.charts) + 1
    assert all("scope" in attrs for tag, attrs in reader.tags if tag == "th")


def test_every_colour_of_the_page_follows_light_and_dark(text):
    assert not re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", text)


def test_every_figure_is_a_png_beside_the_page(plan, tmp_path):
    facts = plan_facts(plan)
    place = write_report(facts, tmp_path / "out")
    assert place == tmp_path / "out" / "report.html"
    for chart in facts.charts:
        assert (place.parent / f"{chart.key}.png").read_bytes() == draw.png(chart)


@pytest.mark.slow
def test_every_figure_is_large_enough_to_be_read():
    for chart in paper_facts(full_result()).charts:
        width, height = struct.unpack(">II", draw.png(chart)[16:24])
        assert width >= 1300
        assert height >= 200


SHOWN = """[...document.querySelectorAll('.picture')].map(picture => {
  const boxes = [...picture.children].map(svg => svg.getBoundingClientRect()).filter(box => box.width > 0);
  const svg = [...picture.children].find(svg => svg.getBoundingClientRect().width > 0);
  const frame = boxes[0];
  const out = [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2
        || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
  });
  return {drawn: boxes.length, height: frame.height, marks: svg.querySelectorAll('path, use').length,
          cut: out.map(text => text.textContent)};
})"""

SUMMARY_OVERHANG = "(table => table.scrollWidth - table.clientWidth)(document.querySelector('section > .scroll'))"


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here")
@pytest.mark.parametrize("kind", ["result", "bare", "profile", "plan"])
def test_a_browser_shows_every_picture_and_complains_of_nothing(kind, profile, plan, tmp_path):
    facts = {
        "result": lambda: paper_facts(full_result(NASTY)),
        "bare": lambda: paper_facts(minimal_result()),
        "profile": lambda: profile_facts(profile, RESOURCES),
        "plan": lambda: plan_facts(plan),
    }[kind]()
    place = write_report(facts, tmp_path)
    with browser() as tab:
        grounds = set()
        for width, dark in ((1280, False), (1280, True), (800, False), (400, False)):
            tab.open(place, width, dark=dark)
            shown = tab.ask(SHOWN)
            assert len(shown) == len(facts.charts)
            for picture, chart in zip(shown, facts.charts, strict=True):
                assert picture["drawn"] == 1, chart.key
                assert picture["height"] > 40, chart.key
                assert picture["marks"] >= 3, chart.key
                assert not picture["cut"], (chart.key, width)
            assert tab.ask("document.documentElement.scrollWidth") <= width
            assert width < 1280 or tab.ask(SUMMARY_OVERHANG) == 0
            grounds.add(tab.ask("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2  # light and dark differ
        assert tab.complaints == []


def test_a_figure_without_a_neighbour_shows_its_numbers_beside_it(text):
    for section in re.findall(r'<div class="figures">(.*?)</div>\n</section>', text, re.DOTALL):
        opened = [" open" in tag for tag in re.findall(r"<details[^>]*>", section)]
        assert opened == [place == len(opened) - 1 and len(opened) % 2 == 1 for place in range(len(opened))]
    assert "<details open>" in text


def test_the_headline_is_one_sentence_and_says_when_a_run_cannot_be_trusted():
    good, bad = full_result("photos"), full_result("photos") | {"identical": False}
    assert re.search(
        r"<h1>Sending .* less data makes an epoch .* shorter \(policy optimal\)</h1>", page(paper_facts(good))
    )
    assert "<h1>The policies fed the model different bits: do not trust this run</h1>" in page(paper_facts(bad))
