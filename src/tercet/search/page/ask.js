// Questions to the server. Of several asked for the same place only the latest is answered.

const latest = new Map();

/** JSON of an address. Throws an Error that says in one line what was wrong. */
export async function ask(path, parameters = {}, options = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters))
    for (const each of Array.isArray(value) ? value : [value]) if (each !== undefined && each !== null) query.append(name, each);
  const answer = await fetch(query.size ? `${path}?${query}` : path, options);
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(content.error || `the server says ${answer.status}`), { status: answer.status });
  return content;
}

/** As `ask`, and null when the same place was asked for something else in the meantime. */
export async function askLatest(place, path, parameters = {}, options = {}) {
  latest.get(place)?.abort();
  const control = new AbortController();
  latest.set(place, control);
  try {
    return await ask(path, parameters, { ...options, signal: control.signal });
  } catch (error) {
    if (control.signal.aborted) return null;
    throw error;
  }
}

/** A function that calls another for the latest of its arguments, one call at a time: for sliders that are dragged. */
export function oneAtATime(work) {
  let waiting = null, busy = false;
  return async (...given) => {
    waiting = given;
    if (busy) return;
    busy = true;
    while (waiting) {
      const now = waiting;
      waiting = null;
      await work(...now);
    }
    busy = false;
  };
}

/** Of something with a number and a checksum: an address that always shows the same, so that browsers may keep it. */
export const pictureOf = ({ number, checksum }, index, size = "small") =>
  `/api/items/${number}/picture?${new URLSearchParams({ index, size, checksum })}`;

/** An element with properties and children: element("li", { className: "a" }, "text", other). */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) key in made ? (made[key] = value) : made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
