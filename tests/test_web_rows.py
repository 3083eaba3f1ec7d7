"""Lists, tables and pages of rows, in a browser."""

import pytest
from core_pages import page as page
from visits import Visit

pytestmark = pytest.mark.long


def test_nodes_of_keys_that_stay_are_kept_with_their_focus(page: Visit) -> None:
    assert page.read(
        """() => {
            const list = dom.h("ul");
            root.append(list);
            const build = ([, text]) => dom.h("li", {tabindex: "0"}, text);
            const show = (...items) => dom.keyed(list, items, ([key]) => key, build);
            show("a1", "b1", "c1", "a2");
            const [a, b, c] = list.children;
            b.focus();
            c.update = ([, text]) => dom.setText(c, text);
            show("c3", "x1", "b1", "a2");
            return [[...list.children].map((node) => node.textContent).join(""),
                list.children[0] === c, list.children[2] === b, list.children[3] === a,
                document.activeElement === b];
        }"""
    ) == ["3112", True, True, False, True]


def test_pages_keep_what_was_read_behind_the_first(page: Visit) -> None:
    assert page.read(
        """async () => {
            const rows = (...ids) => ids.map((id) => ({id, created_at: String(id)}));
            const seen = [], asked = [];
            const list = view.pages({
                keyOf: (row) => row.id,
                read: async (after) => [rows(3, 2), asked.push(after) < 2 ? "b" : null],
                show: (all) => seen.push(all.map(({id}) => id).join("")),
            });
            const more = async () => {
                list.more.click();
                while (list.more.disabled) await new Promise(requestAnimationFrame);
            };
            list.update(rows(5, 4), "a");
            await more();
            list.update(rows(7, 6, 5), "x");
            const hasMore = !list.more.hidden;
            await more();
            list.forget(new Set([3]));
            list.forget();
            return [seen.join(" "), asked.join(), hasMore, list.more.hidden];
        }"""
    ) == ["54 5432 765432 765432 76542 765", "a,b", True, True]


_TABLE = """async (n) => {
    window.rows = (n, k = 0) => Array.from({length: n}, (_, i) => ({id: i, n: i * k, at: null}));
    window.selections = [];
    window.grid = table.table({
        label: "Commands",
        columns: [
            {key: "id", label: "Id", narrow: "title"},
            {key: "n", label: "Number", align: "right"},
            {key: "status", label: "Status", render: () => parts.statusTag("PENDING")},
        ],
        keyOf: (row) => row.id,
        link: (row) => "#/empty/" + row.id,
        selectable: true,
        onSelect: (rows) => selections.push(rows.map((row) => row.id)),
        empty: parts.empty("No commands", "Send one.", "bus.send(...)"),
    });
    root.append(grid.element);
    await grid.update(rows(n));
}"""


def test_a_table_is_used_by_keys(page: Visit) -> None:
    page.read(_TABLE, 3)
    for key in ("j", "j", "x", "k", "x"):
        page.tab.keyboard.press(key)
    assert page.read("selections") == [[1], [1, 0]]
    assert page.read("grid.focused().id") == 0
    page.read("grid.update(rows(3, 5))")
    assert page.read("[grid.focused().n, grid.selected().map((row) => row.n)]") == [0, [5, 0]]
    page.tab.keyboard.press("ArrowDown")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_url("**/#/empty/1")


def test_keys_go_on_from_one_table_to_the_next(page: Visit) -> None:
    page.read(_TABLE, 2)
    page.read("window.upper = grid")
    page.read(_TABLE.replace("onSelect", "primary: true, onSelect"), 2)
    where = "[upper.focused()?.id, grid.focused()?.id]"
    for key, expected in (("j", [None, 0]), ("k", [1, None]), ("j", [None, 0]), ("j", [None, 1])):
        page.tab.keyboard.press(key)
        assert page.read(where) == expected


def test_a_row_that_has_gone_is_not_selected_any_more(page: Visit) -> None:
    page.read(_TABLE, 3)
    page.find("thead input").check()
    assert page.read("grid.selected().length") == 3
    page.read("grid.update(rows(1))")
    assert page.read("[grid.selected().length, selections.at(-1)]") == [1, [0]]
    page.read("grid.update([])")
    page.sees("No commands", "#view")


def test_a_table_keeps_its_semantics_where_it_is_cards(page: Visit) -> None:
    page.read(_TABLE, 2)
    for width in (1280, 380):
        page.tab.set_viewport_size({"width": width, "height": 800})
        assert page.tab.get_by_role("table", name="Commands").get_by_role("row").count() == 3
        assert page.tab.get_by_role("columnheader").count() == 4
        assert page.tab.get_by_role("cell").count() == 8
        assert page.read("document.documentElement.scrollWidth") <= width


def test_updates_of_a_thousand_rows_do_not_hold_the_browser_up(page: Visit) -> None:
    page.read(_TABLE, 1000)
    longest = page.read(
        """async () => {
            let found = 0;
            new PerformanceObserver((list) => {
                for (const entry of list.getEntries()) found = Math.max(found, entry.duration);
            }).observe({entryTypes: ["longtask"]});
            const rounds = [];
            for (let k = 1; k < 8; k += 1) {
                found = 0;
                await grid.update(k % 2 ? rows(1000, k) : rows(1000, k).reverse());
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)));
                rounds.push(found);
            }
            return rounds;
        }"""
    )
    # Other programs interrupt a round: the best of each kind is that of the page.
    assert max(min(longest[::2]), min(longest[1::2])) < 100, longest


def test_rows_keep_nothing_of_what_was_shown_before(page: Visit) -> None:
    """An hour of updates each second, and of rows that come and go."""
    page.read(_TABLE, 20)
    counted = page.tab.context.new_cdp_session(page.tab)

    def objects() -> tuple[int, int]:
        counted.send("HeapProfiler.collectGarbage")
        found = counted.send("Memory.getDOMCounters")
        return found["nodes"], found["jsEventListeners"]

    update = """async (n) => {
        const line = window.line ??= root.appendChild(charts.sparkline([1], {label: "out"}));
        for (let k = 0; k < n; k += 1) {
            await grid.update(rows(20, k).map((row) => ({...row, id: `${row.id} ${k % 7}`})));
            line.update([k, k + 1]);
        }
    }"""
    page.read(update, 100)
    before = objects()
    page.read(update, 3600)
    after = objects()
    assert after[0] <= before[0] * 1.2 and after[1] <= before[1] * 1.2
