// Limits: what is in force, what apps declare and operators have set, and what is taken now.

import { bar } from "../core/charts.js";
import { confirmAction } from "../core/confirm.js";
import { h, keyed, setText } from "../core/dom.js";
import { count, plural, timeElement } from "../core/format.js";
import { acting, live, setBy } from "../core/view.js";
import { button, empty, facts, name, tag } from "../core/parts.js";
import { apiPath, link } from "../core/router.js";

const EXAMPLE = `@registry.handler("payments", "Charge", concurrency=5, rate="100/min")`;

export const title = () => "Limits";

export async function show(root, { params, session, signal, tools }) {
  const list = h("div", { class: "grid" });
  const nothing = empty("No limits", "Apps declare how many commands of a type run at once, how many start in a time, and in which order:", EXAMPLE);
  root.append(list, nothing);
  if (session.acts) tools.append(...otherType());
  return live(root, apiPath("limits", params), signal, ({ limits }) => {
    nothing.hidden = limits.length > 0;
    keyed(list, limits, (limit) => limit.name, (limit) => card(limit, session));
  });
}

/** A limit for a type that no app limits. */
function otherType() {
  const input = h("input", { type: "text", placeholder: "domain/type", "aria-label": "Domain and type", name: "limit" });
  return [input, button("Set a limit", () => (input.value.trim() ? confirmAction("set_limit", { target: { name: input.value.trim() } }) : input.focus()))];
}

/** The link of a type or domain that is covered. */
const covered = (cover) => {
  const [domain, type] = cover.split("/");
  return h("a", { href: type ? link("commands", { domain, type }) : link(["domain", domain]), class: "name" }, cover);
};

const stable = (limit) => JSON.stringify({ ...limit, usage: null });

/** A card, which is built again only where more changes than what is taken: so focus stays. */
function card(limit, session) {
  const { in_force: now, set, is_shared: shared } = limit;
  const text = stable(limit);
  const places = shared && now?.concurrency;
  const taken = bar([], { label: "Commands", legend: true });
  const note = h("p", { class: "muted", hidden: !places });
  const act = (label, action) => acting(session, label, action, { name: limit.name }, { small: true });
  const element = h("section", { class: "card" },
    h("div", { class: "toolbar" }, h("h2", null, name(limit.name)), shared && tag("shared"), set && tag("set", "info")),
    h("p", null, now ? now.text : "no limit", !shared && now ? ", by key" : ""),
    taken, note,
    facts([
      ["For", limit.covers.length ? limit.covers.map((cover, index) => [index ? ", " : "", covered(cover)]) : "no type"],
      ...limit.declared.map((one) => ["Declared", [one.text, h("span", { class: "muted" }, ` by ${one.app}, `, timeElement(one.declared_at))]]),
      ["Set", setBy(set)],
    ]),
    session.acts && h("div", { class: "toolbar" }, act("Set", "set_limit"), set && act("Clear", "clear_limit")));
  element.update = (one) => {
    if (stable(one) !== text) return card(one, session);
    const { running, limited, ready } = one.usage;
    taken.update([{ label: "running", value: running, tone: "run" }, { label: "waiting at a limit", value: limited, tone: "warn" }, { label: "ready", value: ready, tone: "info" }], { total: Math.max(places || 0, running + limited + ready) });
    if (places) setText(note, `${count(Math.min(running, places))} of ${plural(places, "place")} taken`);
    return element;
  };
  return element.update(limit);
}
