// Circuit breakers: their states now and over time.

import { timeline } from "../core/charts.js";
import { h, keyed } from "../core/dom.js";
import { clock, plural, timeElement } from "../core/format.js";
import { acting, live, setBy, trail } from "../core/view.js";
import { empty, facts, name, statusTag, tag, words } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";

const TONES = { CLOSED: "good", HALF_OPEN: "warn", OPEN: "bad" };
const EXAMPLE = `registry.breaker(Breaker("stripe", failures=5, cooldown=30))

with context.breaker("stripe"):
    stripe.charge(...)`;

export const title = ({ name: one }) => (one ? `Breaker ${one}` : "Breakers");

export async function show(root, { params, session, signal }) {
  const list = h("div", { class: params.name ? "stack" : "grid" });
  const nothing = params.name
    ? empty("There is no such breaker", "No app declares it any longer.")
    : empty("No breakers", "A breaker stops the calls to another system while that fails:", EXAMPLE);
  const audit = trail(root);
  root.append(list, nothing);
  return live(root, apiPath("breakers", params), signal, ({ breakers }) => {
    nothing.hidden = breakers.length > 0;
    keyed(list, breakers, (breaker) => breaker.name, (breaker) => card(breaker, session));
    if (params.name) audit(breakers[0]?.events);
  });
}

/** The states between the changes that are known; the last one lasts until now. */
function states({ events, state, changed_at: since }) {
  const changes = (events ?? []).filter((event) => event.state).reverse();
  if (!changes.length) changes.push({ state, at: since });
  return changes.map(({ state: one, at }, index) => {
    const to = changes[index + 1]?.at;
    return { label: words(one), from: at, to, tone: TONES[one], title: `${words(one)} from ${clock(at)} ${to ? `to ${clock(to)}` : "on"}` };
  });
}

function card(breaker, session) {
  const { state, set } = breaker;
  const target = { name: breaker.name };
  const parts = states(breaker);
  const act = (label, tone) => acting(session, label, `${label.toLowerCase()}_breaker`, target, { small: true, tone });
  return h("section", { class: "card" },
    h("div", { class: "toolbar" }, h("h2", null, h("a", { href: link("breakers", target) }, name(breaker.name))), statusTag(state), breaker.kept_open && tag("kept open", "bad", "until an operator closes it"), set && tag("set", "info")),
    h("div", null, timeline(parts, { label: "States over time" }), h("p", { class: "muted" }, "since ", timeElement(parts[0].from, "clock"))),
    facts([
      ["State", [words(state), " since ", timeElement(breaker.changed_at, "both")]],
      ["Opened", breaker.opened_at && timeElement(breaker.opened_at, "both")],
      ["Probes from", breaker.retry_at && timeElement(breaker.retry_at, "both")],
      ["Probing", breaker.probing ? plural(breaker.probing, "call") : null],
      ["On record", state === "CLOSED" ? `${plural(breaker.failures, "failure")} of ${breaker.in_force.failures}` : null],
      ["Terms", breaker.terms],
      ["For", breaker.covers.join(", ") || "calls of handlers alone"],
      ["Counts", breaker.declared[0]?.counts.join(", ") ?? "no app declares it any longer"],
      ["Set", setBy(set)],
    ]),
    session.acts && h("div", { class: "toolbar" }, !breaker.kept_open && act("Open", "danger"), state !== "CLOSED" && act("Close", "primary"), act("Reset"),
      acting(session, "Terms", "set_breaker", target, { small: true }), set && acting(session, "Clear terms", "clear_breaker", target, { small: true })));
}
