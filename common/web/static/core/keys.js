// Keys of the page. A view registers its own with a label for the help; keys are ignored while
// the reader types, in dialogs, and with modifiers that belong to the browser.

const registered = [];
let pending = "";
let timer = 0;

/** Registers {key, label, run, group} entries until the signal aborts. A key may be "g o". */
export function register(entries, signal) {
  for (const entry of entries) {
    registered.push(entry);
    signal?.addEventListener("abort", () => registered.splice(registered.indexOf(entry), 1), { once: true });
  }
}

/** All that is registered now, for the help. */
export const listed = () => [...registered];

const typing = (target) =>
  target instanceof Element &&
  (target.isContentEditable || /^(textarea|select)$/i.test(target.tagName) ||
    (target.tagName === "INPUT" && !/^(checkbox|radio|button|submit|reset)$/.test(target.type)));

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const sequence = pending ? `${pending} ${event.key}` : event.key;
  // What a view registered later comes before the page's own.
  const entry = registered.findLast((one) => one.key === sequence);
  clearTimeout(timer);
  if (!entry && registered.some((one) => one.key.startsWith(sequence + " "))) {
    pending = sequence;
    timer = setTimeout(() => (pending = ""), 1500);
    return;
  }
  pending = "";
  if (!entry) return;
  if (entry.run(event) !== false) event.preventDefault();
}

export const listen = () => document.addEventListener("keydown", pressed);
