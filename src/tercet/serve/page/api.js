// Requests to the server, and small DOM helpers.

const pending = new Map(); // key -> AbortController of its latest request

/** Fetch JSON. Throws an Error with a one-line message and the HTTP status. */
export async function fetchJson(path, params = {}, options = {}) {
  const query = new URLSearchParams();
  for (const [name, values] of Object.entries(params))
    for (const value of Array.isArray(values) ? values : [values]) if (value !== undefined && value !== null) query.append(name, value);
  const response = await fetch(query.size ? `${path}?${query}` : path, options);
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(content.error || `HTTP status ${response.status}`), { status: response.status });
  return content;
}

/** Like `fetchJson`, but a new request with the same key aborts the previous one, which then returns null. */
export async function fetchLatest(key, path, params = {}, options = {}) {
  pending.get(key)?.abort();
  const control = new AbortController();
  pending.set(key, control);
  try {
    return await fetchJson(path, params, { ...options, signal: control.signal });
  } catch (error) {
    if (control.signal.aborted) return null;
    throw error;
  }
}

/** Wrap an async function: one call at a time, and of the calls made meanwhile only the latest. For dragged sliders. */
export function oneAtATime(work) {
  let next = null, busy = false;
  return async (...args) => {
    next = args;
    if (busy) return;
    busy = true;
    while (next) {
      const current = next;
      next = null;
      await work(...current);
    }
    busy = false;
  };
}

/** URL of an image. It contains the checksum, so browsers may cache it for good. */
export const imageUrl = ({ number, checksum }, index, size = "small") =>
  `/api/items/${number}/image?${new URLSearchParams({ index, size, checksum })}`;

/** Create an element with properties and children: element("li", { className: "a" }, "text", other). */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) key in node ? (node[key] = value) : node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
