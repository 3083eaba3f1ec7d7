// Every domain with what waits, runs, comes and goes; on top what needs an operator.

import { sparkline } from "../core/charts.js";
import { confirmAction } from "../core/confirm.js";
import { h, keyed, replace, setText } from "../core/dom.js";
import { clock, count, duration, NONE, plural, rate } from "../core/format.js";
import { watch } from "../core/live.js";
import { button, codeBlock, domainLink, empty, figure, panel, searchField, tag } from "../core/parts.js";
import { link } from "../core/router.js";
import { table } from "../core/table.js";
import { problemNote } from "../core/view.js";
import { historyPanel } from "./overview_charts.js";

const SEND = `from cmdbus import CommandBus

bus = CommandBus("postgresql:///shop")
bus.send("payments", "Debit", {"amount": 5})`;
const RUN = "cmdbus-supervise --app shop.handlers:registry --dsn-file /etc/shop/dsn --procs 4 --threads 8";

// Entries that need attention, so that the domains stay in sight; the others on demand.
const SHOWN = 8;

export const title = () => "Overview";

export async function show(root, { params, session, navigate, keys }) {
  let text = params.text ?? "";
  let value = null;
  let minutes = { domains: {} };
  const lines = new Map();
  const field = searchField("text", text, "name", (wanted) => navigate({ text: wanted }, { replace: true }));
  const sums = totals();
  const attention = attentionPanel(session.acts);
  const domains = domainTable(session.acts, lineOf);
  const charts = historyPanel(params, navigate);
  const hidden = h("p", { class: "muted" });
  const problem = problemNote();
  const none = h("div", { hidden: true });
  const whole = h("div", { class: "stack", hidden: true }, sums.element,
    panel(null, h("div", { class: "toolbar" }, h("h2", null, "Domains"), h("label", { class: "push muted" }, "Show those with ", field)), domains.element, hidden),
    charts.element);
  replace(root, problem, attention.element, none, whole);

  function lineOf(domain) {
    if (!lines.has(domain)) {
      const when = (index) => clock(new Date(Date.parse(minutes.from) + 60000 * index).toISOString());
      lines.set(domain, sparkline(minutes.domains[domain]?.out, { label: `${domain}: ended in each minute`, width: 90, tone: "c", when }));
    }
    return lines.get(domain);
  }

  function render() {
    if (!value) return;
    const fresh = !value.domains.length;
    const state = fresh ? `fresh ${value.nodes.live > 0}` : "";
    none.hidden = !fresh;
    whole.hidden = fresh;
    attention.element.hidden = fresh && !value.attention.length;
    if (fresh && none.dataset.state !== state) replace(none, firstSteps(value.nodes.live > 0));
    none.dataset.state = state;
    attention.update(value);
    sums.update(value);
    domains.update(value.domains.filter(({ domain }) => domain.toLowerCase().includes(text.toLowerCase())));
    charts.offer(value.domains.map(({ domain }) => domain));
    setText(hidden, value.hidden ? `${plural(value.hidden, "quieter domain is", "quieter domains are")} not shown.` : "");
  }

  if (session.acts) {
    const run = () => {
      const row = domains.focused();
      if (row) steer(row);
      return Boolean(row);
    };
    keys([{ key: "p", label: "Pause or resume the row's domain", run }]);
  }
  const stops = [
    problem.watch("overview", (found) => {
      value = found;
      render();
    }),
    watch("history/minutes", (found) => {
      minutes = found;
      for (const [domain, line] of lines) line.update(found.domains[domain]?.out);
    }),
    charts.close,
  ];
  return {
    update(next) {
      text = next.text ?? "";
      if (field.value !== text) field.value = text;
      charts.update(next);
      render();
      return true;
    },
    close: () => stops.forEach((stop) => stop()),
  };
}

const steer = ({ domain, paused }) => confirmAction(paused ? "resume" : "pause", { target: { domain } });

function attentionPanel(acts) {
  const list = h("ul", { class: "events" });
  const note = h("p", { class: "muted" }, "Reading …");
  let [known, isOpen] = [null, false];
  const opener = button("", () => {
    isOpen = !isOpen;
    element.update(known);
  }, { small: true });
  const foot = h("div", { hidden: true }, opener);
  const element = {
    element: panel("Needs attention", list, foot, note),
    update(value) {
      const { attention, more } = (known = value);
      const rest = Math.max(0, attention.length - SHOWN);
      foot.hidden = !rest;
      opener.setAttribute("aria-expanded", String(isOpen));
      setText(opener, isOpen ? "Show fewer" : `Show ${count(rest)} more`);
      // Figures change each second: an entry keeps its element, and with it the focus.
      keyed(list, isOpen ? attention : attention.slice(0, SHOWN), ({ level, what, link: href }) => level + href + what.replace(/\d+/g, ""), (entry) => attentionItem(entry, acts));
      note.hidden = attention.length > 0 && !(more && isOpen);
      setText(note, more ? `And ${count(more)} more.` : "Nothing does: what waits is claimed, and what failed is tried again.");
    },
  };
  return element;
}

function attentionItem({ level, what, why, link: href, action }, acts) {
  const [to, reason] = [h("a", { href }, what), h("span", { class: "muted" }, why)];
  const item = h("li", { class: "toolbar" }, tag(level === "bad" ? "act" : "look", level), " ", to, " ", reason,
    action && acts && button(action.label, () => confirmAction(action.name, action.body), { small: true }));
  item.update = (next) => {
    setText(to, next.what);
    setText(reason, next.why);
  };
  return item;
}

function totals() {
  const figures = {
    waiting: figure("waiting", NONE, { href: link("commands", { status: "PENDING" }) }),
    running: figure("running", NONE, { href: link("commands", { status: "IN_PROGRESS" }) }),
    later: figure("later", NONE, { title: "Sent for a later time, or to be tried again" }),
    trouble: figure("in trouble", NONE, { href: link("troubleshooting") }),
    oldest: figure("oldest waits", NONE),
    arrive: figure("arrive", NONE),
    end: figure("end", NONE),
    nodes: figure("nodes", NONE, { href: link("fleet") }),
  };
  return {
    element: h("div", { class: "card numbers" }, Object.values(figures)),
    update({ totals: sums, nodes }) {
      figures.waiting.set(count(sums.waiting + sums.limited));
      figures.running.set(count(sums.running));
      figures.later.set(count(sums.later));
      figures.trouble.set(count(sums.in_trouble), sums.in_trouble ? "bad" : null);
      figures.oldest.set(age(sums.oldest_age), lateness(sums.oldest_age));
      figures.arrive.set(rate(sums.rate_in));
      figures.end.set(rate(sums.rate_out));
      figures.nodes.set(count(nodes.live), nodes.live ? null : "bad");
    },
  };
}

const coarse = (seconds, unit) => duration(Math.round(seconds / unit) * unit);
const age = (seconds) => (!seconds ? NONE : seconds < 10 ? duration(seconds) : coarse(seconds, seconds < 120 ? 1 : 60));
const lateness = (seconds) => (seconds >= 300 ? "bad" : seconds >= 60 ? "warn" : null);
const two = (upper, lower) => h("div", { class: "two" }, h("div", null, upper), h("div", null, lower));
// The last bucket has no end.
const atMost = (seconds) => (seconds >= 60 ? "≥ 60 s" : duration(seconds));
const times = ({ p50, p95, p99 }) => (p50 === null ? NONE : [p50, p95, p99].map(atMost).join(" · "));
const linked = (value, href, tone) => (value ? h("a", { href, class: tone && "text-" + tone }, count(value)) : "0");

function domainTable(acts, lineOf) {
  const right = (key, label, width, render) => ({ key, label, align: "right", width: `minmax(40px, ${width}px)`, render });
  const columns = [
    { key: "domain", label: "Domain", narrow: "title", width: "minmax(130px, 1fr)", render: ({ domain, paused, accepting }) =>
      h("span", null, domainLink(domain), paused && [" ", tag("paused", "warn")], !accepting && [" ", tag("refuses sends", "warn")]) },
    right("waiting", "Waiting", 86, ({ domain, waiting, limited }) => {
      const all = linked(waiting + limited, link("commands", { domain, status: "PENDING" }));
      return limited ? two(all, `${count(limited)} at limits`) : all;
    }),
    right("running", "Running", 82, ({ domain, running }) => linked(running, link("commands", { domain, status: "IN_PROGRESS" }))),
    right("later", "Later", 66, ({ later }) => count(later)),
    right("in_trouble", "Trouble", 74, ({ domain, in_trouble: many }) => linked(many, link("troubleshooting", { domain }), "bad")),
    right("oldest_age", "Oldest", 76, ({ oldest_age: seconds }) => h("span", { class: lateness(seconds) && "text-" + lateness(seconds) }, age(seconds))),
    right("rates", "In, out", 76, (row) => two(rate(row.rate_in), rate(row.rate_out))),
    { key: "line", label: "Last hour", width: "minmax(48px, 112px)", narrow: "hide", render: ({ domain }) => lineOf(domain) },
    { key: "times", label: "Waited, ran: p50 · p95 · p99", width: "minmax(96px, 190px)", render: (row) => two(times(row.waited), times(row.ran)) },
  ];
  if (acts) {
    columns.push({ key: "actions", label: "Actions", width: "168px", render: (row) => h("span", { class: "toolbar" },
      button(row.paused ? "Resume" : "Pause", () => steer(row), { small: true }),
      button("Settings", () => confirmAction("configure", { target: { domain: row.domain } }), { small: true })) });
  }
  return table({ columns, label: "Domains", keyOf: ({ domain }) => domain, link: ({ domain }) => link(["domain", domain]), empty: "No domain matches: clear the filter to see all." });
}

const firstSteps = (living) => panel(null,
  empty("Nothing was sent here yet", "Send a first command, from any program that can reach this database:", SEND),
  living ? h("p", { class: "empty" }, "A fleet runs, and waits for it.") : h("div", { class: "empty" }, h("p", null, "Start a fleet that handles it:"), codeBlock(RUN)));
