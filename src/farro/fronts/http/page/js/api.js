/* Asking the server: one function a verb, errors with the server's own words. Events live in live.js. */

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

async function ask(method, address, body, signal) {
  const options = { method, signal, credentials: "same-origin", cache: "no-store", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (answer.status === 204) return null;
  const text = await answer.text();
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
  let answer;
  try {
    answer = await fetch(address, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (!answer.ok) throw new ApiError(answer.status, "error", `The server answered ${answer.status}.`);
  if (!(answer.headers.get("Content-Type") || "").startsWith("text/")) return null;
  return answer.text();
}
