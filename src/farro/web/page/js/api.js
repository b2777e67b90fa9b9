/* Asking the server: one function a verb, errors with the server's own words. Events live in live.js. */

/* Longer than the server itself waits for its store (30 s): who hears nothing by then hears nothing at all. */
const PATIENCE_MS = 40_000;

export class ApiError extends Error {
  constructor(status, code, message, problems) {
    super(message);
    this.status = status;
    this.code = code;
    this.problems = problems || [];
  }
}

export const query = (fields) => {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) parts.append(name, String(one));
    }
  }
  const text = parts.toString();
  return text ? `?${text}` : "";
};

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

const patient = (signal) => { const late = AbortSignal.timeout(PATIENCE_MS); return signal ? AbortSignal.any([signal, late]) : late; };

/* Whoever asked and left is told so; of everything else that ends a request without an answer the same is known. */
function unanswered(error, method) {
  if (error.name === "AbortError") return error;
  const late = error.name === "TimeoutError" && method !== "GET";
  return new ApiError(0, "unreachable", late ? "The server does not answer. Whether it did what you asked is not known: look before you ask again." : "The server does not answer.");
}

async function ask(method, address, body, signal) {
  const options = { method, signal: patient(signal), credentials: "same-origin", cache: "no-store", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  let text;
  try {
    answer = await fetch(address, options);
    text = await answer.text();
  } catch (error) {
    throw unanswered(error, method);
  }
  if (answer.status === 204) return null;
  let data = null;
  try { data = JSON.parse(text); } catch { /* not JSON: told below */ }
  if (!answer.ok) {
    const told = (data && data.error) || {};
    if (answer.status === 401) throw new ApiError(401, "unauthorized", "Signed out. Get a new link with: farro web --link");
    throw new ApiError(answer.status, told.code || "error", told.message || `The server answered ${answer.status}.`, told.problems);
  }
  return data;
}

export const get = (address, signal) => ask("GET", address, undefined, signal);
export const post = (address, body = {}) => ask("POST", address, body);

export async function text(address, signal) {
  try {
    const answer = await fetch(address, { signal: patient(signal), credentials: "same-origin" });
    if (!answer.ok) throw new ApiError(answer.status, "error", `The server answered ${answer.status}.`);
    return (answer.headers.get("Content-Type") || "").startsWith("text/") ? await answer.text() : null;
  } catch (error) {
    throw error instanceof ApiError ? error : unanswered(error, "GET");
  }
}
