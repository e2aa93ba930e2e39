// The server's answers.

/** A question that was refused, with the server's reason. */
export class Refused extends Error {}

async function readAnswer(response) {
  const text = await response.text();
  if (response.ok) return text;
  let reason = text.trim();
  try {
    reason = JSON.parse(text).error ?? reason;
  } catch {
    // Not JSON: the text itself is the reason.
  }
  throw new Refused(reason || `the server answered ${response.status}`);
}

/** What can be chosen. */
export async function presets() {
  return JSON.parse(await readAnswer(await fetch("api/presets")));
}

/** The TOML of a preset. */
export async function presetText(name) {
  return readAnswer(await fetch(`api/preset/${encodeURIComponent(name)}`));
}

let running = null;

/** The prediction for `question`; a newer question gives up an older one, which then yields null. */
export async function simulate(question) {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  try {
    const response = await fetch("api/simulate", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question),
      signal: mine.signal,
    });
    return JSON.parse(await readAnswer(response));
  } catch (error) {
    if (error.name === "AbortError") return null;
    if (error instanceof Refused) throw error;
    throw new Refused("the server does not answer; is ringlab explore still running?");
  }
}
