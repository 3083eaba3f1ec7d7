// Where the page is: #/view/part/part?name=value. All of it is in the hash, so that the page works
// below any prefix and each state of a view has its link.

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The view, its parts and its parameters. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [view, ...parts] = path.split("/").map(decoded);
  return { view: view || "overview", parts: parts.filter((part) => part !== ""), params: Object.fromEntries(new URLSearchParams(query)) };
}

/** The hash of a view: link(["command", domain, id], {tab: "audit"}). Absent values are left out. */
export function link(path, params = {}) {
  const segments = (Array.isArray(path) ? path : [path]).map((part) => encodeURIComponent(part));
  return "#/" + segments.join("/") + search(params);
}

/** ?name=value, or nothing without values. */
export function search(params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.append(name, value);
  }
  const text = query.toString();
  return text ? "?" + text : "";
}

/** The path of the API for a view, as `get` and `watch` take it. */
export const apiPath = (path, params = {}) =>
  (Array.isArray(path) ? path : [path]).map((part) => encodeURIComponent(part)).join("/") + search(params);
