// What can be done with commands that are selected, and with all that meet the filters.

import { confirmAction } from "../core/confirm.js";
import { h } from "../core/dom.js";
import { count } from "../core/format.js";
import { button, commandsTarget } from "../core/parts.js";

const IN_TROUBLE = "IN_TROUBLESHOOTING_QUEUE";
// The filters that an action on all that match carries out exactly.
const WAITING = ["status", "domain", "type", "key", "since", "until", "age"];
const TROUBLED = ["status", "domain", "type", "key", "error_code"];

/** `onDone` is called after each action. */
export function commandActions(onDone) {
  const act = (action, body) => confirmAction(action, body, { onDone });
  const inTrouble = (rows) => rows.filter((row) => row.status === IN_TROUBLE);

  return {
    /** Buttons for these rows. */
    forRows(rows) {
      const waiting = rows.filter((row) => row.status === "PENDING");
      const open = rows.filter((row) => row.status === "PENDING" || row.status === "IN_PROGRESS");
      const trouble = inTrouble(rows);
      const one = (label, action, those, tone) => those.length > 0 && button(`${label} ${count(those.length)}`, () => act(action, commandsTarget(those)), { small: true, tone });
      return [
        one("Retry", "retry", trouble, "primary"),
        one("Complete", "complete", trouble),
        one(open.length ? "Cancel in trouble:" : "Cancel", "cancel_trouble", trouble, "danger"),
        one("Reschedule", "reschedule", waiting),
        one(trouble.length ? "Cancel open:" : "Cancel", "cancel", open, "danger"),
        open.length + trouble.length === 0 && h("span", { class: "muted" }, "They have ended: nothing can be done with them."),
      ];
    },

    /** Buttons for all that meet the filters, where an action means exactly these; `since` is the time of an age. */
    forAll(filters, since) {
      const { status, domain, type, key, until, error_code } = filters;
      const only = (names) => Object.keys(filters).every((each) => names.includes(each));
      const all = (label, action, match) => button(`${label} all that match`, () => act(action, { target: { match } }), { small: true });
      if (status === "PENDING" && domain && only(WAITING)) return [all("Cancel", "cancel_all", { domain, type, key, since, until })];
      if (status !== IN_TROUBLE || !only(TROUBLED)) return [];
      const match = { domain, type, key, error_code };
      return [all("Retry", "retry", match), all("Complete", "complete", match), all("Cancel", "cancel_trouble", match)];
    },

    /** Returns false where none of these rows can be retried. */
    retry(rows) {
      const trouble = inTrouble(rows);
      if (trouble.length === 0) return false;
      act("retry", commandsTarget(trouble));
      return true;
    },
  };
}
