// Asking the service. The token lives in this tab's session storage and in one header.

const TOKEN_KEY = "loadmaster.token";
const TIMEOUT_MS = 10_000;

const token = {
  read: () => sessionStorage.getItem(TOKEN_KEY) ?? "",
  keep: (text) => sessionStorage.setItem(TOKEN_KEY, text),
  forget: () => sessionStorage.removeItem(TOKEN_KEY),
};

// The service said no, in its own words.
class Refusal extends Error {
  constructor(response, answer) {
    const words = typeof answer?.error === "string" ? answer.error : `the service answered ${response.status}`;
    super(answer?.field ? `${words} (${answer.field})` : words);
    this.status = response.status;
    this.waitSeconds = Math.min(600, Number(response.headers.get("Retry-After")) || 0);
  }
}

// Nobody answered, or somebody who is not the service.
class Gone extends Error {}

// Addresses are relative, so that the service may stand behind a path of a proxy.
const address = (system, what) => `v1/${encodeURIComponent(system)}/${what}`;

async function ask(path, body = null) {
  const headers = { Accept: "application/json" };
  if (token.read()) headers.Authorization = `Bearer ${token.read()}`;
  const request = { headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== null) {
    request.method = "POST";
    request.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new Gone("The service does not answer.");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Refusal(response, answer);
  if (answer === null) throw new Gone("What answers is not the service: it sent no JSON.");
  return answer;
}
