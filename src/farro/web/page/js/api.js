/* Requests to the server: one function per HTTP verb. Errors carry the server's own words. */

/* Longer than the server itself waits for its store (30 s): after this time no answer will come. */
const TIMEOUT_MS = 40_000;

export class ApiError extends Error {
  constructor(status, code, message, problems) {
    super(message);
    this.status = status; // 0: the server did not answer
    this.code = code;
    this.problems = problems || [];
  }

  get unreachable() {
    return this.status === 0;
  }
}

/* { role: "Runner", tag: null, status: ["a", "b"] } → "?role=Runner&status=a&status=b" */
export function query(fields) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      const absent = item === null || item === undefined || item === "" || item === false;
      if (!absent) parameters.append(name, String(item));
    }
  }
  const text = parameters.toString();
  return text ? `?${text}` : "";
}

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

export const get = (address, signal) => request("GET", address, undefined, signal);
export const post = (address, body = {}) => request("POST", address, body);

/* The text of a file, or null where it is not a text. */
export async function getText(address, signal) {
  try {
    const response = await fetch(address, { signal: withTimeout(signal), credentials: "same-origin" });
    if (!response.ok) throw new ApiError(response.status, "error", `The server answered ${response.status}.`);
    const kind = response.headers.get("Content-Type") || "";
    return kind.startsWith("text/") ? await response.text() : null;
  } catch (error) {
    throw error instanceof ApiError ? error : noAnswer(error, "GET");
  }
}

async function request(method, address, body, signal) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  let text;
  try {
    response = await fetch(address, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: withTimeout(signal),
      credentials: "same-origin",
      cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    throw noAnswer(error, method);
  }
  if (response.status === 204) return null;
  const data = parseJson(text);
  if (!response.ok) throw refusal(response.status, (data && data.error) || {});
  return data;
}

function withTimeout(signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function refusal(status, { code = "error", message, problems }) {
  if (status === 401) return new ApiError(401, "unauthorized", "Signed out. Get a new link with: farro web --link");
  return new ApiError(status, code, message || `The server answered ${status}.`, problems);
}

/* An aborted request stays an AbortError: its page was left. Every other failure without an answer means the same. */
function noAnswer(error, method) {
  if (error.name === "AbortError") return error;
  const mayHaveHappened = error.name === "TimeoutError" && method !== "GET";
  const advice = " It is not known whether it did what you asked: check before you ask again.";
  return new ApiError(0, "unreachable", `The server does not answer.${mayHaveHappened ? advice : ""}`);
}
