// Requests to the decision service. The token is kept in the session storage of this tab.

const TOKEN_KEY = "loadmaster.token";
const TIMEOUT_MS = 10_000;

export const token = {
  read: () => sessionStorage.getItem(TOKEN_KEY) ?? "",
  save: (text) => sessionStorage.setItem(TOKEN_KEY, text),
  remove: () => sessionStorage.removeItem(TOKEN_KEY),
};

// An error response of the service.
export class ServiceError extends Error {
  constructor(response, body) {
    const text = typeof body?.error === "string" ? body.error : `HTTP status ${response.status}`;
    super(body?.field ? `${text} (${body.field})` : text);
    this.status = response.status;
    this.retryAfterSeconds = Math.min(600, Number(response.headers.get("Retry-After")) || 0);
  }
}

// No response, or a response that is not JSON.
export class ConnectionError extends Error {}

// Paths are relative, so that the service can run behind a path prefix of a proxy.
export const systemPath = (system, resource) => `v1/${encodeURIComponent(system)}/${resource}`;

export const tenantQuery = (tenant) => `tenant=${encodeURIComponent(tenant)}`;

export async function request(path, body = null) {
  const headers = { Accept: "application/json" };
  if (token.read()) headers.Authorization = `Bearer ${token.read()}`;
  const options = { headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== null) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ConnectionError("The service does not respond.");
  }
  const content = await response.json().catch(() => null);
  if (!response.ok) throw new ServiceError(response, content);
  if (content === null) throw new ConnectionError("The response is not JSON; this may not be the service.");
  return content;
}
