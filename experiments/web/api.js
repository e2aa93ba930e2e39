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

/** The prediction for `question`. */
export async function simulate(question) {
  const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) };
  let response;
  try {
    response = await fetch("api/simulate", request);
  } catch {
    throw new Refused("the server does not answer; is ringlab explore still running?");
  }
  return JSON.parse(await readAnswer(response));
}
