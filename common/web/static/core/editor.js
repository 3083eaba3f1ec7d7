// An editor for the data of a command: the text is checked, and what changes is shown before it is
// sent. The text itself is sent, because a browser would change long numbers.

import { get } from "./api.js";
import { diffBlock } from "./diff.js";
import { openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { bytes } from "./format.js";
import { indented } from "./parts.js";
import { apiPath } from "./router.js";

// Characters that the editor takes, and up to which it compares while the reader types.
const MOST = 1_500_000;
const COMPARED = 100_000;
const PAUSE = 250;

/** Reads the data of a command as it is now; onText(text) gets what it is to be. */
export async function editData({ domain, id, onText }) {
  const problem = h("p", { class: "problem", role: "alert" });
  const area = h("textarea", { id: "data", class: "mono", rows: 14, spellcheck: "false", disabled: true, "aria-describedby": "data-size" });
  const size = h("p", { class: "muted", id: "data-size" });
  const changed = h("div");
  const go = h("button", { type: "button", class: "primary", disabled: true, on: { click: send } }, "Retry with this data …");
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Back");
  const content = h("div", { class: "stack" }, h("label", { for: "data" }, "Data (JSON)"), area, size, problem, h("h3", null, "What changes"), changed);
  let timer = 0;
  const dialog = openDialog("Edit the data and retry", content, [cancel, go], { wide: true, onClose: () => clearTimeout(timer) });
  let before;
  try {
    const found = await get(apiPath(["payload", domain, id, "data"]));
    if (found.problem || found.cut || found.text.length > MOST) throw new Error(found.problem ?? `It has ${bytes(found.bytes)}: too much for this editor, but not for cmdbus tsq retry --data @FILE.`);
    before = indented(found.text);
  } catch (error) {
    replace(problem, error.message);
    return;
  }
  area.value = before;
  area.disabled = false;
  area.focus();
  area.setSelectionRange(0, 0);
  area.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  });
  check();

  /** Whether the text may be sent. */
  function check() {
    const text = area.value;
    replace(size, bytes(new Blob([text]).size));
    let sentence = text.trim() ? null : "Data is needed; null is data, too.";
    try {
      if (!sentence) JSON.parse(text);
    } catch (error) {
      sentence = `It is not JSON: ${error.message}.`;
    }
    replace(problem, sentence);
    area.setAttribute("aria-invalid", String(sentence !== null));
    go.disabled = sentence !== null || text === before;
    if (sentence === null) replace(changed, text.length > COMPARED ? h("p", { class: "muted" }, "It is too long to be compared here.") : diffBlock(before, text));
    return !go.disabled;
  }

  function send() {
    clearTimeout(timer);
    if (!check()) return;
    const text = area.value;
    dialog.close();
    onText(text);
  }
}
