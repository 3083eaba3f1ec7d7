// Charts of the last hour, day and week, of one domain or of all together.

import { lineChart } from "../core/charts.js";
import { h, replace, setText } from "../core/dom.js";
import { count, duration, rate } from "../core/format.js";
import { watch } from "../core/live.js";
import { choice } from "../core/parts.js";
import { apiPath } from "../core/router.js";

const SPANS = [["hour", "Hour"], ["day", "24 hours"], ["week", "7 days"]];

const NOTE = "A fleet writes them once a minute. Gaps are times in which none ran.";

/** The panel; `params` hold `domain` and `span`, as the hash does. */
export function historyPanel(params, navigate) {
  let shown = { domain: null, span: "hour" };
  let stop = null;
  let value = null;
  let names = [];
  const select = h("select", { name: "domain", on: { change: () => navigate({ domain: select.value || null }, { replace: true }) } });
  const choices = h("span", { class: "toolbar" });
  const charts = {
    rates: lineChart([], { label: "Arrived and ended", format: rate }),
    failures: lineChart([], { label: "Failed", format: rate }),
    depths: lineChart([], { label: "Waiting and running", format: count }),
    oldest: lineChart([], { label: "How long the oldest has waited", format: seconds }),
    waited: lineChart([], { label: "How long commands waited", format: bounded }),
    ran: lineChart([], { label: "How long commands ran", format: bounded }),
  };
  const note = h("p", { class: "muted" });
  const element = h("section", { class: "card", "aria-labelledby": "history" },
    h("div", { class: "toolbar" }, h("h2", { id: "history" }, "History"), h("span", { class: "filters push" }, h("label", null, "Domain", select)), choices),
    h("div", { class: "split" }, Object.values(charts)), note);

  function draw() {
    const points = value?.points ?? [];
    const at = points.map((point) => point.at);
    const step = value?.step_seconds ?? 1;
    const of = (name, divisor = 1) => points.map((point) => (point[name] === null ? null : point[name] / divisor));
    const line = (label, name, tone, fill) => ({ label, values: of(name), tone, fill });
    const perSecond = (label, name, tone, fill) => ({ label, values: of(name, step), tone, fill });
    charts.rates.update([perSecond("arrived", "in", "a"), perSecond("ended", "out", "c", true)], { at });
    charts.failures.update([perSecond("failed for good", "failed", "bad", true), perSecond("to be tried again", "retried", "b")], { at });
    charts.depths.update([
      line("waiting", "waiting", "a", true), line("at limits", "limited", "d"),
      line("running", "running", "e"), line("in trouble", "in_trouble", "bad"),
    ], { at });
    charts.oldest.update([line("oldest", "oldest_age", "b", true)], { at });
    for (const kind of ["waited", "ran"]) {
      charts[kind].update([line("p50", `${kind}_p50`, "c"), line("p95", `${kind}_p95`, "b"), line("p99", `${kind}_p99`, "bad")], { at });
    }
  }

  function fillSelect() {
    const wanted = shown.domain && !names.includes(shown.domain) ? [...names, shown.domain] : names;
    replace(select, h("option", { value: "" }, "all together"), wanted.map((name) => h("option", { value: name, selected: name === shown.domain }, name)));
    select.value = shown.domain ?? "";
  }

  function update(next) {
    const wanted = {
      domain: next.domain || null,
      span: SPANS.some(([span]) => span === next.span) ? next.span : "hour",
    };
    const reread = !stop || wanted.domain !== shown.domain || wanted.span !== shown.span;
    shown = wanted;
    const focused = choices.contains(document.activeElement);
    replace(choices, choice("Span", SPANS, shown.span, (span) => navigate({ span: span === "hour" ? null : span }, { replace: true })));
    if (focused) choices.querySelector("[aria-pressed=true]").focus();
    fillSelect();
    if (reread) {
      stop?.();
      stop = watch(apiPath("history", { domain: shown.domain, span: shown.span }), (found) => {
        value = found;
        setText(note, NOTE);
        draw();
      }, (state, { error }) => state === "failed" && setText(note, error.message ?? error));
    } else draw();
  }

  update(params);
  return {
    element,
    update,
    /** The domains that can be chosen. */
    offer(domains) {
      if (domains.join("\n") === names.join("\n")) return;
      names = domains;
      fillSelect();
    },
    close: () => stop?.(),
  };
}

const seconds = (value) => duration(value < 10 ? value : Math.round(value));
// The last bucket of a histogram has no end.
const bounded = (value) => (value === 60 ? "≥ 60 s" : duration(value));
