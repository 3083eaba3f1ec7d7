// What this browser keeps for the reader. One that keeps nothing forgets it with the page.

/** The text of a name, or null. */
export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keeps a text, or removes it with null. */
export function keep(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
  } catch {
    // Nothing else needs it.
  }
}
