"""What the views of the page share, in a browser: values, texts, charts."""

import pytest
from core_pages import page as page
from visits import Visit

pytestmark = pytest.mark.long


def test_figures_are_written_for_readers(page: Visit) -> None:
    texts = {
        "format.duration(0)": "0 s",
        "format.duration(0.0004)": "< 1 ms",
        "format.duration(0.25)": "250 ms",
        "format.duration(0.9999)": "1.0 s",
        "format.duration(9.99)": "10 s",
        "format.duration(59.9)": "1 min",
        "format.duration(200)": "3 min 20 s",
        "format.duration(7500)": "2 h 5 min",
        "format.duration(360000)": "4 d 4 h",
        "format.duration(-12)": "\u221212 s",
        "format.duration(null)": "\u2013",
        "format.count(1204)": "1,204",
        "format.count(null)": "\u2013",
        "format.plural(1, 'command')": "1 command",
        "format.plural(1204, 'command')": "1,204 commands",
        "format.rate(0)": "0/s",
        "format.rate(1234.5)": "1,235/s",
        "format.rate(12.34)": "12/s",
        "format.rate(1)": "1/s",
        "format.rate(0.05)": "3/min",
        "format.rate(0.0005)": "1.8/h",
        "format.bytes(0)": "0 B",
        "format.bytes(1023)": "1023 B",
        "format.bytes(1536)": "1.5 KiB",
        "format.bytes(1048575)": "1.0 MiB",
        "format.short('0192f3c1-0000-7000-8000-0000a1b2c3d4')": "\u2026a1b2c3d4",
        "format.short('mail')": "mail",
        "format.percent(0, 10)": "0 %",
        "format.percent(1, 1000)": "< 1 %",
        "format.percent(999, 1000)": "> 99 %",
        "format.percent(1, 0)": "\u2013",
        "format.ago(new Date(format.now() - 120000).toISOString())": "2 min ago",
        "format.ago(new Date(format.now() + 7200000).toISOString())": "in 2 h",
        "format.ago('no time')": "no time",
        "parts.words('IN_TROUBLESHOOTING_QUEUE')": "in trouble",
    }
    assert {text: page.read(text) for text in texts} == texts


def test_a_time_says_the_exact_one_and_ticks(page: Visit) -> None:
    assert page.read(
        """() => {
            const element = format.timeElement("2026-01-02T03:04:05.678Z");
            root.append(element);
            const title = element.title;
            format.setTime(element, new Date(format.now() - 30000).toISOString());
            const before = element.textContent;
            element.setAttribute("datetime", new Date(format.now() - 40000).toISOString());
            format.tick();
            return [title.includes("2026-01-02T03:04:05.678Z"), before, element.textContent];
        }"""
    ) == [True, "30 s ago", "40 s ago"]


def test_times_in_a_sentence_are_in_the_zone_of_the_viewer(page: Visit) -> None:
    assert page.read(
        """() => {
            const text = "since 2020-01-02 03:04:05+00:00: wait until 2020-01-02 03:04:06.5+00:00.";
            root.append(...format.localTimes(text));
            const texts = [...root.querySelectorAll("time")].map((one) => one.dateTime);
            const first = format.clock("2020-01-02T03:04:05Z");
            return [...texts, root.textContent.replaceAll(first, "T")];
        }"""
    ) == ["2020-01-02T03:04:05+00:00", "2020-01-02T03:04:06.5+00:00", "since T: wait until T."]


def test_a_code_breaks_between_its_words(page: Visit) -> None:
    html = page.read("parts.tag('NO_SUCH.Code').innerHTML")
    assert html == "NO_<wbr>SUCH.<wbr>Code"


def test_a_link_leads_where_its_hash_says(page: Visit) -> None:
    path = ["command", "a/b?c#d", "%41 é"]
    assert page.read("(path) => router.parse(router.link(path, {q: 'x&y=1', no: null}))", path) == {
        "view": "command",
        "parts": path[1:],
        "params": {"q": "x&y=1"},
    }
    assert page.read("router.parse('')")["view"] == "overview"
    assert page.read("router.parse('#/fleet/%E0%A4%A')")["parts"] == ["%E0%A4%A"]
    assert page.read("router.apiPath(['batch', 'a b'], {after: ''})") == "batch/a%20b"


def test_the_axis_of_a_chart_has_round_marks(page: Visit) -> None:
    assert page.read("[0, 0.003, 1, 7, 70, 101].map((top) => charts.ticks(top))") == [
        [0, 1],
        [0, 0.001, 0.002, 0.003],
        [0, 0.5, 1],
        [0, 2, 4, 6, 8],
        [0, 20, 40, 60, 80],
        [0, 50, 100, 150],
    ]
    assert page.read("[0, 1, 2, 7, 10].map((top) => charts.ticks(top, true))") == [
        [0, 1],
        [0, 1],
        [0, 1, 2],
        [0, 2, 4, 6, 8],
        [0, 5, 10],
    ]
    assert page.read("charts.runs([null, 1, 2, null, 3])") == [[1, [1, 2]], [4, [3]]]


def test_parts_of_a_timeline_are_never_too_narrow_to_meet(page: Visit) -> None:
    spans = page.read(
        """charts.layOut([
            {from: "2026-01-01T00:00:00Z", to: "2026-01-01T01:00:00Z"},
            {from: "2026-01-01T01:00:00Z", to: "2026-01-01T01:00:00.001Z"},
        ], null, null, Date.parse("2026-01-01T02:00:00Z"))"""
    )
    assert [round(span["x"]) for span in spans] == [0, 996]
    assert [round(span["width"]) for span in spans] == [1000, 4]


def test_json_is_indented_and_keeps_its_digits(page: Visit) -> None:
    text = '{"a":[1,{}],"b":12345678901234567890,"c":"x,{\\"y\\"}: \\\\","d":[ ]}'
    assert page.read("(text) => parts.indented(text)", text) == (
        '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": 12345678901234567890,\n'
        '  "c": "x,{\\"y\\"}: \\\\",\n  "d": []\n}'
    )
    assert page.read("parts.indented('{no')") == "{no"


def test_text_is_never_markup_and_hides_nothing(page: Visit) -> None:
    text = "<img src=x onerror=alert(1)>\u202egnp.exe\u0000\u200b\n\t"
    assert page.read(
        """(text) => {
            const attributes = {title: text, aria: {label: text}};
            const element = dom.h("p", attributes, [text, [null, false, 7]]);
            root.append(element);
            return [element.childElementCount, element.textContent, element.title,
                element.getAttribute("aria-label")];
        }""",
        text,
    ) == [0, _SHOWN + "7", _SHOWN, _SHOWN]
    assert page.read("dom.visible('\\ud800 and \\u{1f600}')") == "\\ud800 and \U0001f600"
    for attributes in ("{href: 'javascript:alert(1)'}", "{href: '//other.test'}", "{onclick: 'x'}"):
        assert (
            page.read(
                f"() => {{ try {{ dom.h('a', {attributes}) }} catch {{ return 'refused' }} }}"
            )
            == "refused"
        )


_SHOWN = "<img src=x onerror=alert(1)>\\u202egnp.exe\\u0000\\u200b\n\t"


def test_a_chart_says_its_figures_by_keys_and_as_a_table(page: Visit) -> None:
    page.read(
        """() => {
            const at = [0, 1, 2].map((m) => new Date(Date.UTC(2026, 0, 1, 10, m)).toISOString());
            root.append(charts.lineChart([{label: "in", values: [1, null, 3]},
                {label: "out", values: [4, 5, 6], tone: "b"}], {label: "Rates", at,
                when: (iso) => iso.slice(11, 16)}));
        }"""
    )
    assert page.tab.get_by_role("img", name="Rates").count() == 1
    page.find("svg.chart").focus()
    page.tab.keyboard.press("End")
    page.sees("10:02 · in 3 · out 6", ".readout")
    page.tab.keyboard.press("ArrowLeft")
    page.sees("10:01 · in \u2013 · out 5", ".readout")
    page.find("summary", "Figures").click()
    page.sees("10:02", "tbody")
    assert page.tab.get_by_role("row").all_inner_texts() == [
        *["Time\tin\tout", "10:00\t1\t4", "10:01\t\u2013\t5", "10:02\t3\t6"],
    ]


def test_a_sparkline_names_its_figures(page: Visit) -> None:
    page.read("root.append(charts.sparkline([3, null, 9, 1], {label: 'waiting'}))")
    assert page.tab.get_by_role("img", name="waiting: now 1, highest 9").count() == 1
    box = page.find("svg.spark").bounding_box()
    assert box
    page.tab.mouse.move(box["x"] + 2 * box["width"] / 3, box["y"] + 5)
    page.sees("9", ".tip")
    page.read("location.hash = '#/empty/other'")
    page.find(".tip").wait_for(state="hidden")
